from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import ids
from touche_llm.data.records import Candidate, Judgment, ScoredDocument
from touche_llm.judging.grades import combine_grades
from touche_llm.ranking.balance import BalanceSettings, balance
from touche_llm.ranking.scores import PartialRanking, rank_by_first_stage, rank_by_judgment
from touche_llm.tasks.parts import Scale

WEIGHTS = {"relevance": 1.0, "quality": 0.5, "first_stage": 0.25}
SCALES = {"relevance": Scale(0, 3), "quality": Scale(0, 3)}


def candidates(*scores: float) -> list[Candidate]:
    return [
        Candidate("1", f"d{rank:02}", rank, score) for rank, score in enumerate(scores, start=1)
    ]


def judgment(
    document: str,
    relevance: float,
    quality: float,
    source: Literal["probabilities", "value", "inherited"] = "probabilities",
) -> Judgment:
    return Judgment(
        topic_id="1",
        document_id=document,
        grades={"relevance": relevance, "quality": quality},
        stance="NO",
        source=source,
        prompt="test",
    )


def by_id(*judgments: Judgment) -> Mapping[str, Judgment]:
    return {each.document_id: each for each in judgments}


def test_scores_of_the_first_stage_are_scaled_to_one_and_nothing() -> None:
    assert [each.score for each in rank_by_first_stage(candidates(30.0, 20.0, 10.0))] == [
        1.0,
        0.5,
        0.0,
    ]
    assert [each.score for each in rank_by_first_stage(candidates(-1.0, -3.0))] == [1.0, 0.0]


def test_the_score_is_the_weighted_mean_of_grades_and_first_stage() -> None:
    (found,) = rank_by_judgment(
        [ScoredDocument("a", 0.5)], by_id(judgment("a", 3.0, 1.5)), WEIGHTS, SCALES
    ).judged
    # (1 · 3/3 + 0.5 · 1.5/3 + 0.25 · 0.5) / 1.75
    assert found.score == pytest.approx(1.375 / 1.75)


def test_equal_scores_keep_the_order_of_the_first_stage() -> None:
    judgments = by_id(*(judgment(each, 2.0, 1.0) for each in "abc"))
    found = rank_by_judgment(
        [ScoredDocument(each, 0.0) for each in "cab"], judgments, WEIGHTS, SCALES
    )
    assert found.ranking.documents == ["c", "a", "b"]


def test_judged_documents_come_before_inherited_ones_and_those_before_the_rest() -> None:
    first = [ScoredDocument(each, 1.0 - place / 8) for place, each in enumerate("uvijab")]
    judgments = by_id(
        judgment("a", 0.0, 0.0),
        judgment("b", 0.0, 3.0),
        *(judgment(each, 3.0, 3.0, "inherited") for each in "ij"),
    )
    # Without its weight the first stage, in which it stands behind, does not help "a".
    for first_stage in (WEIGHTS["first_stage"], 0.0):
        found = rank_by_judgment(first, judgments, {**WEIGHTS, "first_stage": first_stage}, SCALES)
        assert found.ranking.documents == ["b", "a", "i", "j", "u", "v"]
        assert (found.inherited, found.unjudged) == (["i", "j"], ["u", "v"])


def test_each_grade_counts_as_its_share_of_its_own_scale() -> None:
    scales = {"relevance": Scale(1, 5), "quality": Scale(0, 2)}
    weights = {"relevance": 1.0, "quality": 0.5}
    assert combine_grades(judgment("a", 4.0, 1.0), weights, scales) == pytest.approx(
        (0.75 + 0.5 * 0.5) / 1.5
    )
    assert combine_grades(judgment("a", 1.0, 0.0), weights, scales) == 0.0
    assert combine_grades(judgment("a", 5.0, 2.0), weights, scales) == 1.0
    assert (
        combine_grades(
            judgment("a", 5.0, 2.0), {"relevance": 0.0, "quality": 0.0, "first_stage": 1.0}, scales
        )
        == 0.0
    )


@given(st.integers(0, 9), st.integers(0, 5), st.data())
def test_scores_stay_with_the_places_and_documents_without_one_stay_below(
    scored: int, unscored: int, data: st.DataObject
) -> None:
    documents = [f"d{place:02}" for place in range(scored + unscored)]
    ranking = PartialRanking(
        [ScoredDocument(each, 9.0 - place) for place, each in enumerate(documents[:scored])],
        documents[scored:],
    )
    depth = data.draw(st.integers(0, len(documents) + 1))
    top, below = ranking.take(depth), ranking.drop(depth)
    assert top.documents == documents[:depth] and below.documents == documents[depth:]
    assert top.scored + below.scored == ranking.scored

    order = data.draw(st.permutations(documents))
    reordered = ranking.reorder(order)
    assert reordered.documents == order
    assert [each.score for each in reordered.scored] == [each.score for each in ranking.scored]
    filled = ranking.fill_scores()
    assert ids(filled) == documents
    lowest = min([each.score for each in ranking.scored], default=0.0)
    assert all(each.score == lowest for each in filled[scored:])


SIDES = ("PRO", "CON")
LABELS = ("PRO", "CON", "NEU", "NO")
# In 64ths, so that differences are exact.
SCORES = st.integers(0, 64).map(lambda score: score / 64)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[list[str], dict[str, float], dict[str, str]]:
    """A ranking, and the worth and the stance of its documents.

    Worth need not fall with the rank.
    """
    ranking = [f"d{place:02}" for place in range(draw(st.integers(0, 12)))]
    worth = {each: draw(SCORES) for each in ranking}
    return ranking, worth, {each: draw(st.sampled_from(LABELS)) for each in ranking}


def balanced(labels: str, worth: list[float], margin: float, places: int = 9) -> str:
    """The labels in their new order: P, C, and N for no side."""
    names = {"P": "PRO", "C": "CON", "N": "NEU"}
    ranking = [f"{place}{label}" for place, label in enumerate(labels)]
    scores = dict(zip(ranking, worth, strict=True))
    stances = {each: names[each[-1]] for each in ranking}
    chosen = BalanceSettings(margin=margin, places=places)
    return "".join(each[-1] for each in balance(ranking, scores, stances, SIDES, chosen))


@given(rankings(), SCORES, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_no_document_passes_one_that_is_better_by_more_than_the_margin_or_rises_too_far(
    drawn: tuple[list[str], dict[str, float], dict[str, str]], margin: float, places: int
) -> None:
    before, worth, stances = drawn
    order = balance(before, worth, stances, SIDES, BalanceSettings(margin=margin, places=places))
    assert sorted(order) == sorted(before)
    for place, each in enumerate(order):
        assert before.index(each) - place <= places
        for passed in order[place + 1 :]:
            if before.index(passed) < before.index(each):
                assert worth[passed] - worth[each] <= margin
    # Where all are about equal, documents of one side, and those of none, keep their order.
    equal = balance(before, worth, stances, SIDES, BalanceSettings(margin=1.0, places=places))
    for group in (["PRO"], ["CON"], ["NEU", "NO"]):
        same = [each for each in equal if stances[each] in group]
        assert same == sorted(same)


def test_a_document_within_the_margin_goes_up_and_one_beyond_it_stays() -> None:
    assert balanced("PPC", [0.75, 0.5, 0.375], 0.125) == "PCP"
    assert balanced("PPC", [0.75, 0.5, 0.25], 0.125) == "PPC"
    # Also where the better one that it would pass does not stand directly above.
    assert balanced("PPPC", [0.5, 0.5, 0.9, 0.5], 0.125) == "PPPC"


def test_a_document_rises_by_so_many_places_at_most() -> None:
    assert balanced("PPPC", [0.5] * 4, 0.0, places=2) == "PCPP"
    assert balanced("PPPPC", [0.5] * 5, 0.0, places=2) == "PPCPP"
