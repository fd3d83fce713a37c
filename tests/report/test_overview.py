"""What a report says of a run as a whole, from rows, rankings and labels made here."""

from __future__ import annotations

from typing import Any

import pytest

from touche_llm.data.records import Candidate
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import Qrels
from touche_llm.pipeline.config_file import load_config
from touche_llm.report.overview import (
    collect_assessor_labels,
    collect_labels,
    compute_label_shares,
    count_movements,
    describe_run,
    extract_costs,
    find_differences,
    find_dropped,
    get_assessments,
)
from touche_llm.report.records import DocumentRow, DroppedCandidate
from touche_llm.tasks import get_task

LABELS = ("PRO", "CON", "NEU", "NO")
QRELS = Qrels(
    {"relevance": {"1": {"a": 2.0, "b": 0.5}}, "quality": {"1": {"a": 3.0}}},
    {"1": {"a": "PRO", "c": "CON"}, "2": {"a": "PRO"}},
    LABELS,
    {},
    {},
    [],
)


def row(rank: int, document: str = "", first: int = 1, judge: int | None = None) -> DocumentRow:
    return DocumentRow(rank, document or f"d{rank}", "PRO", 1.0, first, judge, {}, "", {})


def candidates(*documents: str) -> list[Candidate]:
    return [Candidate("1", document, rank, -rank) for rank, document in enumerate(documents, start=1)]


@pytest.mark.parametrize(
    ("first", "band"),
    [(1, 0), (5, 0), (6, 1), (10, 1), (11, 2), (20, 2), (21, 3), (50, 3), (51, 4), (100, 4), (101, 5)],
)
def test_bands_end_with_their_last_rank(first: int, band: int) -> None:
    counts = count_movements({"1": [row(1, first=first)]}, {})["candidates"]["1–5"]
    assert counts == [int(number == band) for number in range(6)]


@pytest.mark.parametrize(
    ("rank", "group"), [(1, "1–5"), (5, "1–5"), (6, "6–10"), (10, "6–10"), (11, "11–20"), (20, "11–20")]
)
def test_groups_end_with_their_last_rank(rank: int, group: str) -> None:
    found = count_movements({"1": [row(rank, first=7, judge=3)]}, {})
    assert found == {"candidates": {group: [0, 1, 0, 0, 0, 0]}, "judge": {group: [1, 0, 0, 0, 0, 0]}}


def test_below_the_last_group_nothing_is_counted_and_without_a_rank_by_judgments_none_of_these() -> None:
    assert count_movements({"1": [row(21)]}, {}) == {}
    assert set(count_movements({"1": [row(1)]}, {})) == {"candidates"}


def test_candidates_are_counted_by_where_they_went_and_those_that_are_gone_in_the_last_band() -> None:
    rows = {"1": [row(1, "b", first=2), row(12, "a", first=1)], "2": [row(1, "x", first=1)]}
    found = count_movements(rows, {"1": candidates("a", "b", "gone")})
    assert found["run"] == {"1–5": [1, 0, 1, 0, 0, 1]}
    assert found["candidates"] == {"1–5": [2, 0, 0, 0, 0, 0], "11–20": [1, 0, 0, 0, 0, 0]}


def test_of_the_first_five_candidates_those_below_what_is_shown_have_left() -> None:
    rows = [row(1, "c"), row(2, "a"), row(3, "b")]
    found = find_dropped(candidates("a", "b", "c", "gone", "d", "sixth"), rows, 2, QRELS)
    assert found == [
        DroppedCandidate("b", 2, 3, {"relevance": "0.5"}),
        DroppedCandidate("gone", 4, None, {}),
        DroppedCandidate("d", 5, None, {}),
    ]
    assert [each.document_id for each in find_dropped(candidates("a", "b", "c"), rows, 3, None)] == []


def test_what_people_said_is_of_the_topic_and_the_document() -> None:
    assert get_assessments(QRELS, "1", "a") == {"relevance": "2", "quality": "3", "stance": "PRO"}
    assert get_assessments(QRELS, "1", "c") == {"stance": "CON"}
    assert get_assessments(QRELS, "2", "b") == get_assessments(QRELS, "9", "a") == get_assessments(None, "1", "a") == {}
    assert sorted(collect_assessor_labels(QRELS)) == ["CON", "PRO", "PRO"] and collect_assessor_labels(None) == []


@pytest.mark.parametrize(
    ("grades", "stance", "people", "expected"),
    [
        ({"relevance": 2.4, "quality": 1.5}, "PRO", {"relevance": "2", "quality": "2", "stance": "PRO"}, []),
        ({"relevance": 2.5, "quality": 1.4}, "PRO", {"relevance": "2", "quality": "1"}, ["relevance"]),
        ({"relevance": 0.1}, "PRO", {"relevance": "-2", "stance": "CON"}, ["stance"]),
        ({"relevance": 1.0}, "PRO", {"quality": "1"}, None),
        ({"relevance": 1.0}, "PRO", {}, None),
        ({}, "NO", {"relevance": "0", "stance": "PRO"}, None),
    ],
)
def test_the_model_differs_from_assessors_where_rounded_grades_or_stances_do(
    grades: dict[str, float], stance: str, people: dict[str, str], expected: list[str] | None
) -> None:
    assert find_differences(grades, stance, people, get_task("comparative")) == expected


def test_labels_are_counted_over_all_lines_and_the_first_of_each_topic() -> None:
    rankings = {
        topic: [Candidate(topic, f"d{rank}", rank, -rank) for rank in range(1, size + 1)]
        for topic, size in (("1", 21), ("2", 3))
    }
    stances = {(topic, each.document_id): "PRO" for topic, ranking in rankings.items() for each in ranking}
    stances["1", "d6"] = stances["1", "d21"] = "CON"
    del stances["2", "d1"]
    sets = collect_labels(ParsedRun(rankings, stances))
    assert {name: (len(given), given.count("CON")) for name, given in sets.items()} == {
        "all lines": (23, 2),
        "first 5": (7, 0),
        "first 20": (22, 1),
    }
    assert compute_label_shares({"some": ["PRO", "PRO", "CON", "NO"], "none": []}, LABELS) == {
        "some (4)": {"PRO": 0.5, "CON": 0.25, "NEU": 0.0, "NO": 0.25}
    }


@pytest.mark.parametrize(
    ("source", "corpus"),
    [
        ({"corpus": "passages.jsonl", "index": "folder"}, "passages.jsonl"),
        ({"index": "folder"}, "folder"),
        ({"retriever.name": "elasticsearch", "elasticsearch.index": "touche"}, "touche"),
        ({"retriever.name": "chatnoir", "chatnoir.index": "clueweb22/b"}, "clueweb22/b"),
    ],
)
def test_facts_of_a_run_are_those_of_its_settings_metadata_and_rankings(source: dict[str, Any], corpus: str) -> None:
    config = load_config(None, {"topics": "topics.xml", "tag": "mine", "rank": ["judge", "pairwise:5"], **source})
    rankings = {"1": candidates("a", "b"), "2": candidates("c")}
    judge = {"model": "org/model", "revision": "abc", "engine": "vLLM 1"}
    task = get_task("comparative")
    assert describe_run(config, task, {"judge": judge}, ParsedRun(rankings, {})) == {
        "task": task.title,
        "model": "org/model abc",
        "engine": "vLLM 1",
        "ranked by": "judge, pairwise:5",
        "for": config.objective,
        "corpus": corpus,
        "topics": "2",
        "lines": "3",
        "tag": "mine",
    }
    assert {"model", "engine"}.isdisjoint(describe_run(config, task, {}, ParsedRun(rankings, {})))


def test_costs_are_those_of_the_metadata_and_none_where_it_does_not_tell() -> None:
    found = extract_costs(
        {"seconds": 1.5, "documents cut": 0, "requests": {"requests": 3, "prompt_tokens": None, "other": 1}}
    )
    known = {name: value for name, value in found.items() if value is not None}
    assert known == {"seconds": 1.5, "documents cut": 0, "requests": 3}
    assert set(extract_costs({})) == set(found) and set(
        extract_costs({"requests": "many", "seconds": "long"}).values()
    ) == {None}
