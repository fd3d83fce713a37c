"""The search for runs, and what their overviews take from an index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sample_runs import Silent, config_for, retrieve_stage
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_overview import BROKEN, MAX_DEPTH, find_runs, read_overview, read_texts
from touche_llm.tasks import get_task


def test_runs_are_found_down_to_the_greatest_depth_and_no_deeper(tmp_path: Path) -> None:
    root = tmp_path / "root"
    deepest = root.joinpath(*map(str, range(MAX_DEPTH)))
    deepest.mkdir(parents=True)
    (deepest / "run.txt").touch()
    assert find_runs(root) == ([deepest], True)
    assert find_runs(tmp_path) == ([], False)


async def test_the_beginning_of_a_document_is_read_from_the_index_and_none_from_a_damaged_one(tmp_path: Path) -> None:
    config, task = config_for(tmp_path, topic=("3",), depth=1), get_task("comparative")
    found = await retrieve_stage(config, tmp_path / "out", Silent())
    topic, document_id = found.topics[0], found.rankings["3"][0].document_id
    wanted = [(topic, document_id), (topic, "nowhere")]
    texts = read_texts(config, task, wanted)
    assert list(texts) == [("3", document_id)]
    assert 0 < len(texts["3", document_id]) <= 300
    assert config.index is not None
    (config.index / "manifest.json").write_text("{}")
    assert read_texts(config, task, wanted) == {}


def test_a_run_that_the_system_does_not_let_us_read_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: RunDirectory) -> None:
        raise PermissionError(13, "no entry", directory.config_file)

    monkeypatch.setattr(RunDirectory, "read_config", refuse)
    overview = read_overview(tmp_path)
    assert (overview.state, overview.config, "no entry" in overview.problem) == (BROKEN, None, True)
