"""Setwise comparison: heapsort and insertion."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import FakeComparer, Shown, at_random, by_worth, check_scores, ids, names
from touche_llm.ranking.setwise import Insertion, Setwise

METHODS = [Setwise, Insertion]
SIZES, CHILDREN, TOPS = st.integers(2, 14), st.integers(1, 6), st.integers(1, 16)


def worth_of(order: list[str]) -> Mapping[str, float]:
    return {each: float(-place) for place, each in enumerate(order)}


@pytest.mark.parametrize("method", METHODS)
@given(st.data(), SIZES, CHILDREN, TOPS)
@settings(max_examples=30, deadline=None)
async def test_without_error_the_best_are_in_order_and_the_others_stay_as_they_came(
    method: type[Setwise], data: st.DataObject, size: int, children: int, top: int
) -> None:
    order = data.draw(st.permutations(names(size)))
    comparer = FakeComparer(by_worth(worth_of(order))[0], seed=size)
    ranking = await method(children=children, top=top).rerank(names(size), comparer)
    assert ids(ranking) == order[:top] + sorted(order[top:])
    check_scores(ranking, names(size))


@pytest.mark.parametrize("method", METHODS)
@given(st.integers(0, 10**6), SIZES, CHILDREN, TOPS)
@settings(max_examples=30, deadline=None)
async def test_whatever_is_answered_each_document_is_there_once_and_the_ranking_is_the_same_every_time(
    method: type[Setwise], seed: int, size: int, children: int, top: int
) -> None:
    settings = method(children=children, top=top, both_orders=seed % 2 == 0)
    one, other = FakeComparer(at_random(seed)[0], seed=seed), FakeComparer(at_random(seed)[0], concurrency=1)
    ranking = await settings.rerank(names(size), one)
    check_scores(ranking, names(size))
    assert ranking == await settings.rerank(names(size), other)
    assert one.comparisons == other.comparisons


async def test_a_question_without_an_answer_is_decided_by_the_ranking_before() -> None:
    # d takes the place of a, which was taken out, and the question about it is not answered.
    best, _ = by_worth(worth_of(list("abcd")))

    def some(shown: Shown) -> Mapping[str, float] | None:
        return None if shown[0] == "d" else best(shown)

    ranking = await Setwise(children=2, top=3).rerank(list("abcd"), FakeComparer(some))
    assert ids(ranking) == list("abcd")


async def test_insertion_asks_once_a_block_where_nothing_beats_the_last_of_the_best() -> None:
    comparer = FakeComparer(by_worth(worth_of(names(10)))[0])
    assert ids(await Insertion(children=3, top=4).rerank(names(10), comparer)) == names(10)
    assert [shown for shown in comparer.compared if set(shown) - set(names(4))] == [
        ("d03", "d04", "d05", "d06"),
        ("d03", "d07", "d08", "d09"),
    ]


async def test_insertion_finds_the_place_of_a_document_by_halving() -> None:
    worth = {**worth_of(names(9)), "d08": 1.0}
    comparer = FakeComparer(by_worth(worth)[0])
    ranking = await Insertion(children=1, top=8).rerank(names(9), comparer)
    assert ids(ranking) == ["d08", *names(8)]
    # d07 drops out; the seven left need three questions.
    assert [shown for shown in comparer.compared if "d08" in shown] == [
        ("d07", "d08"),
        ("d03", "d08"),
        ("d01", "d08"),
        ("d00", "d08"),
    ]


async def test_insertion_asks_again_about_the_rest_of_a_block_of_which_one_moved_up() -> None:
    worth = {"a": 5, "b": 4, "c": 1, "d": 6, "e": 4.5}
    comparer = FakeComparer(by_worth(worth)[0])
    ranking = await Insertion(children=3, top=2).rerank(list("abcde"), comparer)
    assert ids(ranking) == ["d", "a", "b", "c", "e"]
    # d goes up and b drops out; then a, the last of the best, is compared with the rest of the block.
    assert ("b", "c", "d", "e") in comparer.compared and ("a", "c", "e") in comparer.compared
