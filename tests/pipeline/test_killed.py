"""Folders of commands that were killed: an unfinished stage is refused.

Tests/faults kills real commands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from tests.sample_runs import (
    Silent,
    config_for,
    judge_stage,
    rank_stage,
    run_stages,
    scripted_model,
)
from tests.write_demo_cassette import script_of
from touche_llm.cli.measured_runs import given_runs
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.runs.open_folder import open_folder
from touche_llm.tasks import get_task

Stage = Callable[..., Awaitable[object]]


async def run(folder: Path, *stages: Stage, tag: str = "first") -> None:
    """Run stages over few documents.

    Topic 20 names no objects, so that there is a file of objects too.
    """
    config = config_for(folder, topic=("3", "20"), depth=3, tag=tag)
    with scripted_model(config, script_of("comparative")) as (model, _):
        for stage in stages:
            await stage(config, folder / "out", Silent(), model)


@pytest.mark.parametrize("stage", ["retrieve", "judge", "rank"])
async def test_an_unfinished_stage_is_refused_by_all_that_read_its_outputs(
    tmp_path: Path, stage: str
) -> None:
    await run(tmp_path, run_stages)
    out = tmp_path / "out"
    path = out / "ir-metadata.yml"
    path.write_text(path.read_text() + f"unfinished: {stage}\n")
    command = f"touche-llm {stage}"
    with pytest.raises(DataError, match=command), open_folder(out):
        pass
    (tmp_path / "qrels.txt").write_text("3 0 d 1\n")
    qrels = read_qrels({"relevance": tmp_path / "qrels.txt"}, get_task("comparative"))
    for given in (out, out / "run.txt"):
        with pytest.raises(DataError, match=command):
            given_runs([given], qrels, get_task("comparative"))
    later_stages: tuple[Stage, ...] = (judge_stage, rank_stage)
    for number, later in enumerate(later_stages):
        if ("retrieve", "judge", "rank").index(stage) <= number:
            with pytest.raises(DataError, match=command):
                await run(tmp_path, later)
            assert yaml.safe_load(path.read_bytes())["unfinished"] == stage
    await run(tmp_path, run_stages)
    assert "unfinished" not in yaml.safe_load(path.read_bytes())
    with open_folder(out) as folder:
        assert set(folder.stages.finished) == {"retrieve", "judge", "rank"}


async def test_metadata_of_another_program_ends_a_stage_before_anything_is_replaced(
    tmp_path: Path,
) -> None:
    await run(tmp_path, run_stages)
    out = tmp_path / "out"
    (out / "ir-metadata.yml").write_text("- none of ours\n")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for command in (judge_stage, rank_stage, run_stages):
        with pytest.raises(DataError):
            await run(tmp_path, command, tag="other")
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
