from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest

from tests.ranking.fake_comparer import ids
from touche_llm.data.records import Candidate, Judgment, ScoredDocument
from touche_llm.judging.labels import combine_grades
from touche_llm.ranking.order import rank_by_first_stage, rank_by_judgment
from touche_llm.tasks.definition import Scale

WEIGHTS = {"relevance": 1.0, "quality": 0.5, "first_stage": 0.25}
SCALES = {"relevance": Scale(0, 3), "quality": Scale(0, 3)}


def candidates(*scores: float) -> list[Candidate]:
    return [Candidate("1", f"d{rank:02}", rank, score) for rank, score in enumerate(scores, start=1)]


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
    assert [each.score for each in rank_by_first_stage(candidates(30.0, 20.0, 10.0))] == [1.0, 0.5, 0.0]
    assert [each.score for each in rank_by_first_stage(candidates(-1.0, -3.0))] == [1.0, 0.0]


def test_the_score_is_the_weighted_mean_of_grades_and_first_stage() -> None:
    (found,) = rank_by_judgment([ScoredDocument("a", 0.5)], by_id(judgment("a", 3.0, 1.5)), WEIGHTS, SCALES)
    # (1 · 3/3 + 0.5 · 1.5/3 + 0.25 · 0.5) / 1.75
    assert found.score == pytest.approx(1.375 / 1.75)


def test_equal_scores_keep_the_order_of_the_first_stage() -> None:
    judgments = by_id(*(judgment(each, 2.0, 1.0) for each in "abc"))
    found = rank_by_judgment([ScoredDocument(each, 0.0) for each in "cab"], judgments, WEIGHTS, SCALES)
    assert ids(found) == ["c", "a", "b"]


def test_judged_documents_come_before_inherited_ones_and_those_before_the_rest() -> None:
    first = [ScoredDocument(each, 1.0 - place / 8) for place, each in enumerate("uvijab")]
    judgments = by_id(
        judgment("a", 0.0, 0.0), judgment("b", 0.0, 3.0), *(judgment(each, 3.0, 3.0, "inherited") for each in "ij")
    )
    # Without its weight the first stage, in which it stands behind, does not help "a".
    for first_stage in (WEIGHTS["first_stage"], 0.0):
        found = rank_by_judgment(first, judgments, {**WEIGHTS, "first_stage": first_stage}, SCALES)
        assert ids(found) == ["b", "a", "i", "j", "u", "v"]


def test_each_grade_counts_as_its_share_of_its_own_scale() -> None:
    scales = {"relevance": Scale(1, 5), "quality": Scale(0, 2)}
    weights = {"relevance": 1.0, "quality": 0.5}
    assert combine_grades(judgment("a", 4.0, 1.0), weights, scales) == pytest.approx((0.75 + 0.5 * 0.5) / 1.5)
    assert combine_grades(judgment("a", 1.0, 0.0), weights, scales) == 0.0
    assert combine_grades(judgment("a", 5.0, 2.0), weights, scales) == 1.0


def test_where_all_weights_of_a_judgment_are_nothing_its_score_is_nothing() -> None:
    assert (
        combine_grades(judgment("a", 3.0, 3.0), {"relevance": 0.0, "quality": 0.0, "first_stage": 1.0}, SCALES) == 0.0
    )
