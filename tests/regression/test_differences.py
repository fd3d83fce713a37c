"""Differences between two runs, as records and as text, from runs made here."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.data.records import Candidate
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.regression.check import compare_labels, compare_ranks
from touche_llm.regression.result import (
    CheckResult,
    LabelDifference,
    MissingAnswer,
    PromptDifference,
    RankDifference,
    format_result,
)


def run(ranking: str, stances: Mapping[str, str] | None = None) -> ParsedRun:
    """A run of topic 1 over documents of one letter; each is PRO unless others are given."""
    lines = [
        Candidate("1", document, rank, 10.0 - rank)
        for rank, document in enumerate(ranking, start=1)
    ]
    return ParsedRun(
        {"1": lines},
        {("1", document): (stances or {}).get(document, "PRO") for document in ranking},
    )


def test_documents_that_came_or_went_moved_furthest() -> None:
    differences = compare_ranks(run("abcde"), run("edbfa"))
    assert differences == [
        RankDifference("1", "c", 3, None),
        RankDifference("1", "f", None, 4),
        RankDifference("1", "a", 1, 5),
        RankDifference("1", "e", 5, 1),
        RankDifference("1", "d", 4, 2),
        RankDifference("1", "b", 2, 3),
    ]
    assert compare_ranks(run("abc"), run("abc")) == []


def test_labels_are_compared_of_documents_in_both_runs() -> None:
    differences = compare_labels(run("abcde", {"a": "CON"}), run("edbfa", {"f": "CON"}))
    assert differences == [LabelDifference("1", "a", "CON", "PRO")]
    assert compare_labels(run("abc"), run("cba")) == []


def test_the_text_lists_five_documents_and_counts_the_others() -> None:
    documents = "abcdefgh"
    ranks = compare_ranks(run(documents), run(documents[::-1]))
    text = format_result("r", CheckResult(topics=("1",), ranks=tuple(ranks)))
    assert text.splitlines()[:4] == [
        "r: differs",
        "  topics: 1",
        "  ranks: 8",
        "    topic 1 document a: 1 → 8",
    ]
    assert text.count("    topic 1 document ") == 5
    assert text.endswith("    and 3 more")

    ranks = compare_ranks(run("ab"), run("ac"))
    text = format_result("r", CheckResult(topics=("1",), ranks=tuple(ranks)))
    assert "document b: 2 → none" in text
    assert "document c: none → 2" in text
    assert "more" not in text


def test_the_text_names_prompts_with_missing_answers() -> None:
    missing = tuple(MissingAnswer("1", document) for document in "abcdefg")
    prompts = (
        PromptDifference("judge", has_changed_template=True, missing=missing),
        PromptDifference(
            "objects", has_changed_template=False, missing=(MissingAnswer("2", None),)
        ),
    )
    text = format_result("r", CheckResult(topics=("1", "2"), prompts=prompts))
    assert text.splitlines() == [
        "r: differs",
        "  topics: 1, 2",
        "  prompt judge, template changed, answers missing: 7",
        *(f"    topic 1 document {document}" for document in "abcde"),
        "    and 2 more",
        "  prompt objects, answers missing: 1",
        "    topic 2",
    ]


def test_the_text_of_a_check_without_differences_or_with_an_error() -> None:
    assert format_result("r", CheckResult()) == "r: as recorded"
    text = format_result("r", CheckResult(error="run.txt: damaged"))
    assert text.splitlines() == ["r: differs", "  cannot be replayed: run.txt: damaged"]


def test_the_text_without_ranks_and_labels_says_what_else_differs() -> None:
    (_, topics, rest) = format_result("r", CheckResult(topics=("1",))).splitlines()
    assert topics == "  topics: 1"
    assert "scores" in rest
