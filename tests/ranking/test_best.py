from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.ranking.fake_comparer import FakeComparer, Shown, by_worth, check_scores, ids
from touche_llm.ranking.pairwise import Pairwise
from touche_llm.ranking.setwise import Setwise

BOTH, ONE = Pairwise(), Pairwise(both_orders=False)


def first_wins(shown: Shown) -> Mapping[str, float]:
    """A judge that only looks at the place."""
    return {shown[0]: 0.9, shown[1]: 0.1}


async def test_the_score_is_the_mean_probability_to_win() -> None:
    shares = {
        ("a", "b"): 0.75,
        ("b", "a"): 0.5,
        ("a", "c"): 1.0,
        ("c", "a"): 0.5,
        ("b", "c"): 0.25,
        ("c", "b"): 0.0,
    }

    def best(shown: Shown) -> Mapping[str, float]:
        one, other = shown
        return {one: shares[one, other], other: 1.0 - shares[one, other]}

    found = {
        each.document_id: each.score
        for each in await BOTH.rerank(["a", "b", "c"], FakeComparer(best))
    }
    # a: 0.75, 1 - 0.5, 1.0, 1 - 0.5; b: 0.5, 1 - 0.75, 0.25, 1 - 0.0; c: 0.5, 1 - 1.0, 0.0, 1 -
    # 0.25.
    assert found == pytest.approx({"a": 2.75 / 4, "b": 2.0 / 4, "c": 1.25 / 4})


async def test_a_pair_with_an_answer_in_one_order_alone_counts_for_neither() -> None:
    best, _ = by_worth({"a": 1, "b": 2, "c": 3})

    def some(shown: Shown) -> Mapping[str, float] | None:
        return None if shown == ("c", "a") else best(shown)

    found = {
        each.document_id: each.score
        for each in await BOTH.rerank(["a", "b", "c"], FakeComparer(some))
    }
    assert found == {"a": 0.0, "b": 0.5, "c": 1.0}


@pytest.mark.parametrize("settings", [BOTH, ONE])
@pytest.mark.parametrize("silent", ["a", "b", "d"])
async def test_a_document_without_any_answer_keeps_its_place(
    settings: Pairwise, silent: str
) -> None:
    best, _ = by_worth({"a": 1, "b": 2, "c": 3, "d": 4})

    def some(shown: Shown) -> Mapping[str, float] | None:
        return None if silent in shown else best(shown)

    ranking = await settings.rerank(list("abcd"), FakeComparer(some))
    others = [each for each in "dcba" if each != silent]
    place = "abcd".index(silent)
    assert ids(ranking) == [*others[:place], silent, *others[place:]]
    check_scores(ranking, list("abcd"))


async def test_a_question_without_an_answer_is_decided_by_the_ranking_before() -> None:
    # d takes the place of a, which was taken out, and the question about it is not answered.
    best, _ = by_worth({"a": 4, "b": 3, "c": 2, "d": 1})

    def some(shown: Shown) -> Mapping[str, float] | None:
        return None if shown[0] == "d" else best(shown)

    ranking = await Setwise(children=2, top=3).rerank(list("abcd"), FakeComparer(some))
    assert ids(ranking) == list("abcd")
