"""Answers whose log-probabilities do not show their labels: counted, said, and the end of a run that has no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.cli.conftest import Touche, made_app, touche
from tests.fake_server import FakeServer, fields_in, good
from tests.sample_runs import Silent, config_for, run_on, run_scripted, with_cache
from touche_llm.cli.demo import SAMPLES
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment
from touche_llm.errors import EngineError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.label_statistics import LabelCounts
from touche_llm.runs.directory import RunDirectory

__all__ = ["made_app", "touche"]

SAMPLE = SAMPLES / "comparative"
DEPTH = 12


class Misspelling(FakeServer):
    """Server whose log-probabilities spell another text than some answers.

    Thoughts are not numbered.
    """

    def __init__(self, is_wrong: Callable[[int], bool]) -> None:
        super().__init__(rest=self.answer)
        self.is_wrong = is_wrong

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        sent = orjson.loads((await good(request, body)).body)  # type: ignore[attr-defined]
        if self.is_wrong(sum(bool(fields_in(each)) for each in self.bodies)):
            sent["choices"][0]["logprobs"]["content"].pop(1)
        return web.json_response(sent)


def read_labels(out: Path) -> Mapping[str, LabelCounts]:
    """The counts of labels that the judge stage of a run recorded, by purpose of the prompt."""
    record = RunDirectory(out).read_metadata().stages.judge
    assert record is not None
    return record.labels


def read_judgments(out: Path) -> list[Judgment]:
    return read_records(out / "judgments.jsonl", Judgment, "judgments")


async def test_a_run_says_how_many_answers_it_read_as_text(tmp_path: Path) -> None:
    progress, out = Silent(), tmp_path / "out"
    config = config_for(tmp_path, topic=("3", "7"), depth=DEPTH)
    await run_on(Misspelling(lambda number: number % 3 == 0), config, out, progress=progress)
    unread = [judgment for judgment in read_judgments(out) if judgment.source == "value"]
    assert len(unread) == 8
    (notice,) = (notice for notice in progress.notices if "log-probabilities" in notice)
    assert "8 of 24" in notice
    labels = read_labels(out)
    assert list(labels) == ["judge"]
    counts = labels["judge"]
    assert (counts.answers, counts.unread) == (24, 8)
    assert any(f"document {judgment.document_id}" in counts.first for judgment in unread)
    assert "do not spell" in counts.first


async def test_a_run_without_any_answer_to_read_stops_and_keeps_them(tmp_path: Path) -> None:
    server, out = Misspelling(lambda number: True), tmp_path / "out"
    config = config_for(tmp_path, topic=("3",), depth=5)
    with pytest.raises(EngineError, match="sampling.logprobs: false.*cache.mode: refresh"):
        await run_on(server, config, out)
    assert len(server.bodies) == 5 and not (out / "judgments.jsonl").exists()
    with Cache(config.cache.file) as cache:
        assert len(cache.find("answer")) == 5
    # They are found again, and are no more readable than before.
    again = Misspelling(lambda number: True)
    with pytest.raises(EngineError):
        await run_on(again, config, out)
    assert again.bodies == []
    repaired = Misspelling(lambda number: False)
    await run_on(repaired, with_cache(config, mode=CacheMode.REFRESH), out)
    assert {judgment.source for judgment in read_judgments(out)} == {"probabilities"}


def test_show_and_the_report_of_a_run_name_the_first_such_answer(
    touche: Touche, tmp_path: Path
) -> None:
    run = [
        "run",
        "--topics",
        str(SAMPLE / "topics.xml"),
        "--corpus",
        str(SAMPLE / "passages.jsonl"),
        "--topic",
        "3",
    ]
    with Misspelling(lambda number: number == 2).in_thread() as server:
        done = touche(*run, "--depth", "4", "--out", "out", "--base-url", server.url)
    assert done.returncode == 0, done.stderr
    place = read_labels(Path("out"))["judge"].first.partition(":")[0]
    assert place.startswith("topic 3, document ") and place in " ".join(done.stderr.split())
    assert place in " ".join(touche("show", "out").stdout.split())
    assert touche("report", "out").returncode == 0 and place in Path("out/report.html").read_text()
    (row,) = json.loads(touche("runs", ".", "--format", "json").stdout)
    assert row["unread"] == 1


async def test_the_same_answer_for_all_documents_is_a_warning(tmp_path: Path) -> None:
    side = {"FIRST": 0.2, "SECOND": 0.6, "NEUTRAL": 0.2}
    grades = {0: 0.2, 1: 0.4, 2: 0.2, 3: 0.2}
    answer = {
        "relevance": grades,
        "quality": grades,
        "position": {"YES": 0.56, "NO": 0.44},
        "stance": side,
    }
    _, progress = await run_scripted(
        config_for(tmp_path, depth=20), tmp_path / "out", lambda request: answer
    )
    labels = read_labels(tmp_path / "out")["judge"]
    assert labels.answers >= 50
    assert labels.bits == {"relevance": 0.0, "quality": 0.0, "stance": 0.0}
    (notice,) = (
        each for each in progress.notices if "prompt comparative/judge" in each and "bits" in each
    )
    assert all(field in notice for field in labels.bits)
