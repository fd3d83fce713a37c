"""What a run says about its labels: stances that differ from the answers as written, and labels without information."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sample_runs import config_for, run_scripted
from tests.scripted_engine import Label, Values
from touche_llm.data.io import read_records
from touche_llm.data.records import Judgment
from touche_llm.llm.counts import LOW_INFORMATION
from touche_llm.llm.request import Request
from touche_llm.pipeline.run_directory import RunDirectory

# The model writes "Y" and SECOND; three sides share 0.56, and NO has 0.44.
TORN: Values = {
    "relevance": {0: 0.2, 1: 0.4, 2: 0.2, 3: 0.2},
    "quality": {0: 0.1, 1: 0.2, 2: 0.5, 3: 0.2},
    "position": {"YES": 0.56, "NO": 0.44},
    "stance": {"FIRST": 0.2, "SECOND": 0.6, "NEUTRAL": 0.2},
}


def vary(request: Request) -> Values:
    """Different answers about documents, each nearly certain."""
    grade = sum(map(ord, str(request.origin.document_id))) % 4
    sure: dict[Label, float] = {label: 0.97 if label == grade else 0.01 for label in range(4)}
    chosen = ("FIRST", "SECOND", "NEUTRAL", "FIRST")[grade]
    side: dict[Label, float] = {label: 0.98 if label == chosen else 0.01 for label in ("FIRST", "SECOND", "NEUTRAL")}
    return {"relevance": sure, "quality": sure, "position": {"YES": 0.99, "NO": 0.01}, "stance": side}


async def judge(folder: Path, script: Callable[[Request], Values], **flags: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the notices of a run about its labels, and the counts in its metadata."""
    _, progress = await run_scripted(config_for(folder, **{"depth": 20, **flags}), folder / "out", script)
    labels = RunDirectory(folder / "out").read_metadata().stages["judge"]["labels"]["judge"]
    return [notice for notice in progress.notices if "prompt comparative/judge" in notice], labels


async def test_stances_that_differ_from_the_answers_are_counted(tmp_path: Path) -> None:
    notices, labels = await judge(tmp_path, lambda request: TORN, limit_topics=2)
    judgments = read_records(tmp_path / "out" / "judgments.jsonl", Judgment, "judgments")
    assert {(one.stance, one.readings["stance"].answered) for one in judgments} == {("NO", "SECOND")}
    assert labels["overruled"] == labels["answers"] == len(judgments) == 40
    assert not any("differ" in notice for notice in notices)  # a fact of the run, and no fault


async def test_the_same_answer_for_all_documents_is_a_warning(tmp_path: Path) -> None:
    notices, labels = await judge(tmp_path, lambda request: TORN)
    assert labels["answers"] >= 50
    assert labels["bits"] == {"relevance": 0.0, "quality": 0.0, "stance": 0.0}
    (notice,) = (notice for notice in notices if "bits" in notice)
    assert all(field in notice for field in labels["bits"])


async def test_labels_that_differ_are_not(tmp_path: Path) -> None:
    notices, labels = await judge(tmp_path, vary)
    assert min(labels["bits"].values()) > 1.0 > LOW_INFORMATION
    assert notices == [] and labels["overruled"] == 0


async def test_few_answers_give_no_information(tmp_path: Path) -> None:
    notices, labels = await judge(tmp_path, lambda request: TORN, limit_topics=1)
    assert labels["answers"] < 50 and set(labels["bits"].values()) == {None}
    assert not any("bits" in notice for notice in notices)


@pytest.mark.parametrize("chosen", [True, False])
async def test_replay_gives_the_same_counts(tmp_path: Path, chosen: bool) -> None:
    script = vary if chosen else lambda request: TORN
    _, first = await judge(tmp_path, script)
    _, again = await judge(tmp_path, lambda request: pytest.fail("sent"))
    assert again == first
