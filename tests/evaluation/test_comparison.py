"""Losses against a baseline that unjudged documents alone could explain."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import pytest

from tests.evaluation.judged_runs import qrels_of, run_of
from touche_llm.errors import ToucheWarning
from touche_llm.evaluation import evaluate
from touche_llm.evaluation.measures import compare_runs, evaluate_run, find_unjudged_losses

# By grade: a 3, b 2, c 1, d to h 0; all other documents are unjudged.
GRADES: Mapping[str, float] = {"a": 3, "b": 2, "c": 1, **dict.fromkeys("defgh", 0)}
QRELS = qrels_of({topic: GRADES for topic in "123"})
DEPTH = 20
BASELINE = run_of({topic: list("abcdefgh") for topic in "123"})


def losses(run: Mapping[str, Sequence[str]], baseline: Mapping[str, Sequence[str]] | None = None) -> set[str]:
    ours, theirs = (
        evaluate_run(name, given, QRELS, DEPTH)
        for name, given in (("run", run_of(run)), ("base", run_of(baseline) if baseline else BASELINE))
    )
    return set(find_unjudged_losses(ours, theirs, "relevance"))


def everywhere(documents: str) -> dict[str, list[str]]:
    return {topic: list(documents) for topic in "123"}


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        # The same judged documents in the same order, behind unjudged ones.
        ("xyabcdefgh", {"nDCG@5", "nDCG@10"}),
        ("xyzvabcdefgh", {"nDCG@5", "nDCG@10", "P@5"}),
        # Unjudged documents in all places of judged ones.
        ("xyzvw", {"nDCG@5", "nDCG@10", "P@5", "R@20"}),
        # Unjudged documents took the places of the last judged ones.
        ("axyzv", {"nDCG@5", "nDCG@10", "P@5", "R@20"}),
    ],
)
def test_a_loss_by_unjudged_documents_alone_is_found(documents: str, expected: set[str]) -> None:
    assert losses(everywhere(documents)) == expected


@pytest.mark.parametrize(
    "documents",
    # A worse order, with unjudged documents in front and between; empty places, which are none; and no loss at all.
    ["xdabcefgh", "baxcydefgh", "a", "abcxdefgh"],
)
def test_a_loss_by_judged_documents_is_not_found(documents: str) -> None:
    assert losses(everywhere(documents)) == set()


def test_a_comparison_notes_such_a_loss_with_both_differences() -> None:
    runs = {"unjudged": everywhere("xyabcdefgh"), "judged": everywhere("dabcefgh")}
    base = evaluate_run("base", BASELINE, QRELS, DEPTH)
    others = [evaluate_run(name, run_of(run), QRELS, DEPTH) for name, run in runs.items()]
    frame, notes = compare_runs(base, others)
    (note,) = notes
    assert note.startswith("unjudged: relevance: the loss against base could come from unjudged documents alone")
    row = frame.set_index(["run", "measure"]).loc["unjudged", "relevance nDCG@5"]
    assert row["difference"] < 0.0 and f"nDCG@5 {row['difference']:+.4f} (judged documents alone +0.0000)" in note
    assert (row["judged"], row["baseline_judged"]) == pytest.approx((3 / 5, 1.0))


def test_the_share_of_judged_documents_is_at_the_cutoff_of_each_measure() -> None:
    qrels = qrels_of({"1": GRADES}, {"1": {"a": "FIRST", "x": "NO"}})
    stances = {("1", name): "FIRST" for name in "abxy"}
    found = evaluate_run("run", run_of({"1": list("axbycdzefg")}, stances), qrels, 8)
    judged = found.summary().set_index("measure")["judged"]
    expected = {"nDCG@5": 3 / 5, "nDCG@10": 7 / 10, "P@5": 3 / 5, "R@8": 5 / 8, "touche_nDCG@5": 3 / 5}
    assert {name: judged[f"relevance {name}"] for name in expected} == pytest.approx(expected)
    # Without a cutoff the whole ranking counts; stances are judged apart.
    assert (judged["stance macro-F1"], judged["stance macro-F1@5"]) == pytest.approx((2 / 10, 2 / 5))
    assert judged["stance precision FIRST"] == pytest.approx(2 / 10)


@pytest.mark.parametrize(("documents", "warned"), [("xyabcdefgh", True), ("dabcefgh", False)])
def test_the_library_warns_of_a_loss_against_a_baseline_that_unjudged_documents_could_explain(
    documents: str, warned: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(run_of(everywhere(documents)), QRELS, baseline=BASELINE)
    found = [each for each in caught if "could come from unjudged documents alone" in str(each.message)]
    assert [each.category for each in found] == [ToucheWarning] * warned
