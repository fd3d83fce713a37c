"""Commands that are killed between two operations on files: the folder says the truth or is refused, and heals."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sample_runs import Silent, config_for, judge_stage, rank_stage, run_stages
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.cli.measured_runs import given_runs
from touche_llm.config import Config
from touche_llm.data.io import read_records
from touche_llm.data.records import Judgment
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.llm.answers import list_fields
from touche_llm.llm.cache import Cache
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request
from touche_llm.report.folder import open_folder
from touche_llm.tasks import get_task

# More than any stage needs; the loop over the points ends where nothing was killed.
MOST_OPERATIONS = 100


class Killed(BaseException):
    """Stands in for SIGKILL: from then on no operation on files has an effect."""


class Killer:
    """Counts the operations that change which files there are, and kills at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.left: int | None = None
        for name in ("replace", "unlink", "rename"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name), str(folder)))

    def _counted(self, operation: Any, folder: str) -> Any:
        def counted(path: Any, *others: Any, **more: Any) -> Any:
            if self.left is not None and str(path).startswith(f"{folder}/"):
                self.left -= 1
                if self.left < 0:
                    raise Killed
            return operation(path, *others, **more)

        return counted


def answer(request: Request) -> Mapping[str, Any]:
    if request.origin.document_id is None:
        return {"first": "tea", "second": "coffee"}
    if "best" in list_fields(request.schema):
        return {"best": {"A": 0.2, "B": 0.8}}
    if list(list_fields(request.schema)) == ["position", "stance"]:
        return {"position": {"YES": 0.7, "NO": 0.3}, "stance": "SECOND"}
    return {"relevance": len(request.messages[1].content) % 4, "quality": 1, "stance": "FIRST"}


class Work:
    """A run of few documents, stage by stage or whole, that counts what it requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.requests = 0

    def config(self, **flags: Any) -> Config:
        # Topic 20 names no objects, so that there is a file of objects too.
        return config_for(self.folder, topic=("3", "20"), depth=3, **flags)

    def perform(self, command: str, config: Config) -> None:
        asyncio.run(self._perform(command, config))

    async def _perform(self, command: str, config: Config) -> None:
        with Cache(config.cache.file, config.cache.mode) as cache:
            engine = ScriptedEngine(self._answer)
            model = ModelClient(engine_info=FACTS, engine=engine, cache=cache)
            stages: dict[str, Callable[..., Awaitable[object]]] = {
                "run": run_stages,
                "judge": judge_stage,
                "rank": rank_stage,
            }
            await stages[command](config, self.out, Silent(), model)

    def _answer(self, request: Request) -> Mapping[str, Any]:
        self.requests += 1
        return answer(request)

    def files(self) -> dict[str, bytes]:
        """What a run is made of; the metadata has times in it."""
        return {path.name: path.read_bytes() for path in self.out.iterdir() if path.name != "ir-metadata.yml"}


def agrees(out: Path) -> bool:
    """Whether the folder is refused, or its configuration and metadata describe its files."""
    try:
        with open_folder(out) as folder:
            stages = yaml.safe_load((out / "ir-metadata.yml").read_bytes())["stages"]
            judgments = read_records(out / "judgments.jsonl", Judgment, "judgments")
            lines = sum(map(len, folder.run.rankings.values()))
            compared = (out / "comparisons.jsonl").exists()
            return (
                stages["judge"]["judgments"] == len(judgments)
                and set(stages["judge"]["prompts"].values()) >= {each.prompt for each in judgments}
                and list(folder.config.rank) == stages["rank"]["steps"]
                and compared == ("comparisons" in stages["rank"])
                and stages["rank"]["lines"] == lines
                and (out / "run.txt").read_text().split()[-1] == folder.config.tag
            )
    except DataError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("run", {"rank": ("judge", "pairwise:3"), "tag": "second", "stance__depth": 2}),
        ("judge", {"stance__depth": 2, "tag": "second", "depth_of_judge": 2}),
        ("rank", {"rank": ("judge", "pairwise:3"), "tag": "second"}),
    ],
)
def test_a_kill_at_any_operation_leaves_a_folder_that_is_true_or_refused_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, flags: dict[str, Any]
) -> None:
    work = Work(tmp_path)
    depth = flags.pop("depth_of_judge", None)
    first, second = work.config(), work.config(**flags)
    second = second if depth is None else second.model_copy(update={"depth": depth})
    work.perform("run", first)
    before = tmp_path / "before"
    shutil.copytree(work.out, before)
    work.perform(command, second)
    wanted = work.files()
    asked = work.requests
    killer = Killer(monkeypatch, work.out)
    refused = 0
    for point in range(MOST_OPERATIONS):
        shutil.rmtree(work.out)
        shutil.copytree(before, work.out)
        killer.left = point
        try:
            work.perform(command, second)
        except Killed:
            pass
        else:
            break
        finally:
            killer.left = None
        assert agrees(work.out), point
        try:
            work.perform("rank", second)
        except DataError as error:
            refused += "touche-llm" in str(error)
        else:
            assert agrees(work.out), point
        work.perform(command, second)
        for path in work.out.glob(".*"):
            path.unlink()  # a temporary file of the killed process
        assert work.files() == wanted
    assert point > 5 and (refused > 0) is (command != "rank")
    assert work.requests == asked


@pytest.mark.parametrize("stage", ["retrieve", "judge", "rank"])
def test_an_unfinished_stage_is_refused_by_all_that_read_its_outputs(tmp_path: Path, stage: str) -> None:
    work = Work(tmp_path)
    work.perform("run", work.config())
    path = work.out / "ir-metadata.yml"
    path.write_text(path.read_text() + f"unfinished: {stage}\n")
    command = f"touche-llm {stage}"
    with pytest.raises(DataError, match=command), open_folder(work.out):
        pass
    (tmp_path / "qrels.txt").write_text("3 0 d 1\n")
    qrels = read_qrels({"relevance": tmp_path / "qrels.txt"}, get_task("comparative"))
    for given in (work.out, work.out / "run.txt"):
        with pytest.raises(DataError, match=command):
            given_runs([given], qrels, get_task("comparative"))
    for number, later in enumerate(("judge", "rank")):
        if ("retrieve", "judge", "rank").index(stage) <= number:
            with pytest.raises(DataError, match=command):
                work.perform(later, work.config())
            assert yaml.safe_load(path.read_bytes())["unfinished"] == stage
    work.perform("run", work.config())
    assert "unfinished" not in yaml.safe_load(path.read_bytes())
    with open_folder(work.out) as folder:
        assert set(folder.stages) == {"retrieve", "judge", "rank"}


def test_metadata_of_another_program_ends_a_stage_before_anything_is_replaced(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.perform("run", work.config())
    (work.out / "ir-metadata.yml").write_text("- none of ours\n")
    before = work.files()
    for command in ("judge", "rank", "run"):
        with pytest.raises(DataError):
            work.perform(command, work.config(tag="other"))
        assert work.files() == before
