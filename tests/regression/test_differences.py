"""What differs between two runs, as findings and in words, from runs made here."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.data.records import Candidate
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.regression.check import (
    RunDifference,
    compare_rankings,
    format_differences,
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


def test_documents_that_came_or_went_moved_furthest_and_stances_are_those_of_documents_in_both() -> (
    None
):
    found = compare_rankings(run("abcde", {"a": "CON"}), run("edbfa", {"f": "CON"}))
    assert [(each.kind, each.topic, each.document, each.old, each.new) for each in found] == [
        ("rank", "1", "c", 3, None),
        ("rank", "1", "f", None, 4),
        ("rank", "1", "a", 1, 5),
        ("rank", "1", "e", 5, 1),
        ("rank", "1", "d", 4, 2),
        ("rank", "1", "b", 2, 3),
        ("stance", "1", "a", "CON", "PRO"),
    ]
    assert compare_rankings(run("abc"), run("abc")) == []


def test_in_words_the_first_five_are_shown_and_the_others_counted() -> None:
    names = "abcdefgh"
    text = format_differences("r", compare_rankings(run(names), run(names[::-1])))
    assert "ranks moved: 8\n" in text and "topic 1 document a: rank 1 → 8" in text
    assert text.count("    topic 1 document ") == 5 and text.endswith("    and 3 more")
    text = format_differences("r", compare_rankings(run("ab"), run("ac")))
    assert (
        "document b: rank 2 → none" in text
        and "document c: rank none → 2" in text
        and "more" not in text
    )
    gone = [RunDifference("missing", "judge", "1", document) for document in names[:7]]
    listed = format_differences("r", gone)
    assert "answers missing: 7\n    judge: topic 1 document a\n" in listed and listed.endswith(
        " and 2 more"
    )
    assert format_differences("r", gone[:5]).endswith("topic 1 document e")
    assert format_differences("r", []) == "r: as recorded"
