"""What differs between two runs, as findings and in words, from runs made here."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from touche_llm.data.records import Candidate
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import Qrels
from touche_llm.regression.differences import (
    RunDifference,
    compare_measures,
    compare_rankings,
    format_differences,
)
from touche_llm.tasks.definition import Scale

LABELS = ("PRO", "CON")


def run(ranking: str, stances: Mapping[str, str] | None = None) -> ParsedRun:
    """A run of topic 1 over documents of one letter; each is PRO unless others are given."""
    lines = [Candidate("1", document, rank, 10.0 - rank) for rank, document in enumerate(ranking, start=1)]
    return ParsedRun({"1": lines}, {("1", document): (stances or {}).get(document, "PRO") for document in ranking})


def test_documents_that_came_or_went_moved_furthest_and_the_others_by_their_ranks() -> None:
    found = compare_rankings("r", run("abcde"), run("edbfa"))
    assert [(each.kind, each.topic, each.document, each.old, each.new) for each in found] == [
        ("rank", "1", "c", 3, None),
        ("rank", "1", "f", None, 4),
        ("rank", "1", "a", 1, 5),
        ("rank", "1", "e", 5, 1),
        ("rank", "1", "d", 4, 2),
        ("rank", "1", "b", 2, 3),
    ]


def test_stances_are_compared_where_both_runs_have_the_document() -> None:
    found = compare_rankings("r", run("ab", {"a": "CON"}), run("ba", {"b": "CON"}))
    assert [(each.kind, each.document, each.old, each.new) for each in found] == [
        ("rank", "a", 1, 2),
        ("rank", "b", 2, 1),
        ("stance", "a", "CON", "PRO"),
        ("stance", "b", "PRO", "CON"),
    ]
    found = compare_rankings("r", run("ab"), run("ac", {"c": "CON"}))
    assert [(each.kind, each.document) for each in found] == [("rank", "b"), ("rank", "c")]


def test_where_no_rank_and_no_stance_differs_the_files_do() -> None:
    (same,) = compare_rankings("r", run("abc"), run("abc"))
    assert (same.kind, same.document) == ("run", None)


def test_figures_are_those_before_and_those_now() -> None:
    grades = {"relevance": {"1": {"a": 3.0, "b": 0.0}}, "quality": {"1": {"a": 0.0, "b": 3.0}}}
    true = {"1": {"a": "PRO", "b": "CON"}}
    found = compare_measures(
        "r", run("ab", {"b": "CON"}), run("ba"), Qrels(grades, true, LABELS, dict.fromkeys(grades, Scale(0, 3)))
    )
    values = {each.name: (each.old, each.new) for each in found}
    second = pytest.approx(1 / 1.584962500721156)
    assert values["relevance nDCG@5"] == (1.0, second) and values["quality nDCG@5"] == (second, 1.0)
    assert values["stance macro-F1"] == (1.0, pytest.approx(1 / 3))
    assert len(values) == 3 and {each.kind for each in found} == {"measure"}


def test_in_words_the_first_five_are_shown_and_the_others_counted() -> None:
    names = "abcdefgh"
    text = format_differences("r", compare_rankings("r", run(names), run(names[::-1])))
    assert "ranks moved: 8 documents of 1 topics, the furthest first:" in text
    assert text.count("    topic 1 document ") == 5 and text.endswith("    and 3 more")
    assert "topic 1 document a: rank 1 → rank 8" in text
    text = format_differences("r", compare_rankings("r", run("ab"), run("ac")))
    assert "document b: rank 2 → not in the run" in text and "document c: not in the run → rank 2" in text
    assert "more" not in text
    gone = [RunDifference("r", "missing", "judge", "1", document) for document in names[:7]]
    listed = format_differences("r", gone)
    assert "answers missing: 7 of judge: topic 1 document a, " in listed and listed.endswith(" and 2 more")
    assert format_differences("r", gone[:5]).endswith("topic 1 document e")
    assert format_differences("r", gone[:2]).endswith("topic 1 document b")
    assert format_differences("r", []) == "r: as recorded"
