"""results.tsv: each submitted line with its grades, the stance's probabilities and where the stance comes from."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.sample_runs import config_for, run_scripted
from touche_llm.api.rank import Ranking
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment, Reading, RunLine, StanceReading
from touche_llm.judging.stance_labels import ChosenStance, StanceSettings, choose_label
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.request import Request
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

COMPARATIVE = get_task("comparative")
SHARES = {"FIRST": 0.5, "SECOND": 0.2, "NEUTRAL": 0.0, "NO": 0.3}
OTHER_SHARES = {"FIRST": 0.1, "SECOND": 0.6, "NEUTRAL": 0.1, "NO": 0.2}


def judgment(document: str = "d", **given: Any) -> Judgment:
    fields: dict[str, Any] = {
        "grades": {"relevance": 2.5, "quality": 1.0},
        "stance": "FIRST",
        "readings": {"stance": Reading(answered="FIRST", probabilities=SHARES)},
        "source": "probabilities",
        "prompt": "p",
    }
    return Judgment(topic_id="1", document_id=document, **{**fields, **given})


def reading(**given: Any) -> StanceReading:
    fields: dict[str, Any] = {
        "probabilities": OTHER_SHARES,
        "source": "probabilities",
        "orders": 2,
        "prompt": "s",
        "answer_keys": [],
    }
    return StanceReading(topic_id="1", document_id="d", **{**fields, **given})


@pytest.mark.parametrize(
    ("judged", "read", "settings", "expected"),
    [
        (judgment(), reading(), StanceSettings(), ChosenStance("SECOND", "stance", OTHER_SHARES)),
        (
            judgment(),
            None,
            StanceSettings(depth=0, thresholds={"NO": 0.3}),
            ChosenStance("NO", "threshold", SHARES),
        ),
        (
            judgment(),
            None,
            StanceSettings(depth=0, thresholds={"NO": 0.4}),
            ChosenStance("FIRST", "judge", SHARES),
        ),
        # The thresholds belong to the stance prompt here.
        (
            judgment(),
            None,
            StanceSettings(depth=20, thresholds={"NO": 0.3}),
            ChosenStance("FIRST", "judge", SHARES),
        ),
        (
            judgment(),
            reading(),
            StanceSettings(thresholds={"NO": 0.2}),
            ChosenStance("NO", "threshold", OTHER_SHARES),
        ),
        (
            judgment(),
            reading(source="value", probabilities={**dict.fromkeys(SHARES, 0.0), "SECOND": 1.0}),
            StanceSettings(thresholds={"NO": 0.0}),
            ChosenStance("SECOND", "stance", None),
        ),
        (
            judgment(source="inherited", readings={}),
            None,
            None,
            ChosenStance("FIRST", "inherited", None),
        ),
        (None, None, StanceSettings(), ChosenStance("NO", "imputed", None)),
    ],
)
def test_the_stance_says_where_it_comes_from(
    judged: Judgment | None,
    read: StanceReading | None,
    settings: StanceSettings | None,
    expected: ChosenStance,
) -> None:
    assert choose_label(judged, read, COMPARATIVE, settings) == expected


def test_a_pair_without_a_judgment_has_no_label() -> None:
    assert choose_label(None, None, get_task("sentence_pairs"), None) is None


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def script(request: Request) -> Any:
    if request.origin.document_id is None:
        return {"first": "tea", "second": "coffee"}
    if list(list_fields(request.schema)) == ["position", "stance"]:
        return {
            "position": {"YES": 0.8, "NO": 0.2},
            "stance": {"FIRST": 0.7, "SECOND": 0.1, "NEUTRAL": 0.2},
        }
    if len(request.messages[1].content) % 5 == 0:
        return {"relevance": 9}
    return {"relevance": 2, "quality": {0: 0.5, 1: 0.5}, "stance": {"SECOND": 0.9, "NO": 0.1}}


async def test_every_line_of_the_run_is_there_with_what_the_model_said_of_it(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    lines, _ = await run_scripted(
        config_for(tmp_path, topic=("3", "20"), depth=12, stance__depth=3), out, script
    )
    rows = rows_of(out / "results.tsv")
    assert [
        (each["topic"], each["document"], each["rank"], each["score"], each["stance"])
        for each in rows
    ] == [
        (line.topic_id, line.document_id, str(line.rank), f"{line.score:.6f}", line.stance)
        for line in lines
    ]
    judgments = {
        (each.topic_id, each.document_id): each
        for each in read_records(out / "judgments.jsonl", Judgment, "judgments")
    }
    stances = {
        (each.topic_id, each.document_id): each
        for each in read_records(out / "stances.jsonl", StanceReading, "them")
    }
    assert {each["stance_source"] for each in rows} == {"judge", "stance", "imputed"}
    for each in rows:
        key = each["topic"], each["document"]
        given = judgments.get(key)
        assert (each["stance_source"] == "imputed") is (given is None)
        assert (each["stance_source"] == "stance") is (key in stances)
        if given is None:
            assert {each[name] for name in ("relevance", "quality", "p_FIRST", "p_NO")} == {""}
            continue
        assert (float(each["relevance"]), float(each["quality"])) == (
            given.grades["relevance"],
            given.grades["quality"],
        )
        shares = (
            stances[key].probabilities if key in stances else given.readings["stance"].probabilities
        )
        assert {name: float(each[f"p_{name}"]) for name in COMPARATIVE.stances} == shares


@pytest.mark.parametrize(
    "task", [get_task("sentence_pairs"), get_task("controversial"), COMPARATIVE]
)
def test_ids_come_back_as_they_were_and_columns_are_those_of_the_task(
    tmp_path: Path, task: Task
) -> None:
    ids = ['"', 'a"b', "'=1+1", "\x00\x1b[31m", "#", "NA", ","]
    stance = task.stances[0]
    lines = [
        RunLine("1", stance, document, rank, 1 / rank, "t")
        for rank, document in enumerate(ids, start=1)
    ]
    labels = {"1": {document: ChosenStance(stance, "imputed", None) for document in ids}}
    Ranking({}, {}, task, lines, labels, {}).write_results(tmp_path / "results.tsv")
    with (tmp_path / "results.tsv").open(newline="") as stream:
        header, *rows = csv.reader(stream, delimiter="\t")
    assert [row[1] for row in rows] == ids
    assert all(len(row) == len(header) for row in rows)
    assert header[6:] == [*task.question.grades, *(f"p_{each}" for each in task.stances)]
    frame = pd.read_csv(tmp_path / "results.tsv", sep="\t", keep_default_na=False)
    assert list(frame["rank"]) == list(range(1, len(ids) + 1))
