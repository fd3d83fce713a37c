from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import FakeComparer, Shown, by_worth, check_scores, ids, names
from touche_llm.ranking.pairwise import Pairwise

BOTH, ONE = Pairwise(), Pairwise(both_orders=False)


def first_wins(shown: Shown) -> Mapping[str, float]:
    """A judge that only looks at the place."""
    return {shown[0]: 0.9, shown[1]: 0.1}


@pytest.mark.parametrize("size", [2, 3, 7])
async def test_every_pair_is_asked_once_in_each_order_or_with_the_better_one_first(size: int) -> None:
    documents = names(size)
    both, one = FakeComparer(first_wins), FakeComparer(first_wins)
    await BOTH.rerank(documents, both)
    await ONE.rerank(documents, one)
    assert sorted(both.compared) == sorted((a, b) for a in documents for b in documents if a != b)
    assert sorted(one.compared) == [(a, b) for a in documents for b in documents if a < b]


async def test_questions_that_begin_with_the_same_document_follow_on_each_other() -> None:
    comparer = FakeComparer(first_wins, concurrency=1)
    await BOTH.rerank(names(5), comparer)
    first = [shown[0] for shown in comparer.compared]
    assert first == sorted(first)


async def test_the_score_is_the_mean_probability_to_win() -> None:
    shares = {("a", "b"): 0.75, ("b", "a"): 0.5, ("a", "c"): 1.0, ("c", "a"): 0.5, ("b", "c"): 0.25, ("c", "b"): 0.0}

    def best(shown: Shown) -> Mapping[str, float]:
        one, other = shown
        return {one: shares[one, other], other: 1.0 - shares[one, other]}

    found = {each.document_id: each.score for each in await BOTH.rerank(["a", "b", "c"], FakeComparer(best))}
    # a: 0.75, 1 - 0.5, 1.0, 1 - 0.5; b: 0.5, 1 - 0.75, 0.25, 1 - 0.0; c: 0.5, 1 - 1.0, 0.0, 1 - 0.25.
    assert found == pytest.approx({"a": 2.75 / 4, "b": 2.0 / 4, "c": 1.25 / 4})


@given(st.permutations(names(6)))
@settings(max_examples=30, deadline=None)
async def test_without_error_the_order_is_the_true_one(worth: list[str]) -> None:
    best, _ = by_worth({each: float(place) for place, each in enumerate(worth)})
    for chosen in (BOTH, ONE):
        assert ids(await chosen.rerank(names(6), FakeComparer(best))) == worth[::-1]


async def test_a_pair_with_an_answer_in_one_order_alone_counts_for_neither() -> None:
    best, _ = by_worth({"a": 1, "b": 2, "c": 3})

    def some(shown: Shown) -> Mapping[str, float] | None:
        return None if shown == ("c", "a") else best(shown)

    found = {each.document_id: each.score for each in await BOTH.rerank(["a", "b", "c"], FakeComparer(some))}
    assert found == {"a": 0.0, "b": 0.5, "c": 1.0}


@pytest.mark.parametrize("settings", [BOTH, ONE])
@pytest.mark.parametrize("silent", ["a", "b", "d"])
async def test_a_document_without_any_answer_keeps_its_place(settings: Pairwise, silent: str) -> None:
    best, _ = by_worth({"a": 1, "b": 2, "c": 3, "d": 4})

    def some(shown: Shown) -> Mapping[str, float] | None:
        return None if silent in shown else best(shown)

    ranking = await settings.rerank(list("abcd"), FakeComparer(some))
    others = [each for each in "dcba" if each != silent]
    place = "abcd".index(silent)
    assert ids(ranking) == [*others[:place], silent, *others[place:]]
    check_scores(ranking, list("abcd"))


async def test_while_one_answer_is_awaited_all_other_pairs_are_asked() -> None:
    comparer = FakeComparer(first_wins, concurrency=4, held=lambda shown: shown == ("d00", "d01"))
    async with comparer.holding(BOTH.rerank(names(6), comparer)) as ranking:
        assert len(comparer.answered) == 6 * 5 - 1
        assert not ranking.done()
    check_scores(await ranking, names(6))
