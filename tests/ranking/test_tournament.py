from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import FakeComparer, Shown, at_random, by_worth, check_scores, ids, names
from touche_llm.ranking.listwise import Tournament


def worth(size: int) -> dict[str, float]:
    """The first is the worst."""
    return {each: float(place) for place, each in enumerate(names(size))}


async def test_one_group_is_a_ranking_by_one_answer_a_round() -> None:
    comparer = FakeComparer(order=by_worth(worth(6))[1])
    ranking = await Tournament(group=6, rounds=1).rerank(names(6), comparer)
    assert ids(ranking) == names(6)[::-1]
    # The first has all points that can be had, each next one a sixth less.
    assert [each.score for each in ranking] == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert len(comparer.compared) == 1


async def test_a_stage_won_is_a_point_and_the_place_in_the_last_group_a_part_of_one() -> None:
    comparer = FakeComparer(order=by_worth(worth(8))[1])
    ranking = await Tournament(group=4, rounds=1).rerank(names(8), comparer)
    # The groups are 0, 2, 4, 6 and 1, 3, 5, 7; 4, 5, 6 and 7 have won a point, then 1, 3/4, 2/4, 1/4 in the last one.
    assert [set(shown) for shown in comparer.compared] == [
        {"d00", "d02", "d04", "d06"},
        {"d01", "d03", "d05", "d07"},
        {"d04", "d05", "d06", "d07"},
    ]
    points = {"d07": 2.0, "d06": 1.75, "d05": 1.5, "d04": 1.25, "d00": 0.0, "d01": 0.0, "d02": 0.0, "d03": 0.0}
    assert [each.document_id for each in ranking] == list(points)
    assert [each.score for each in ranking] == pytest.approx([each / 2 for each in points.values()])


@given(st.integers(2, 40), st.integers(2, 9), st.integers(1, 3), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
async def test_whatever_is_answered_it_ends_with_each_document_once_and_is_the_same_every_time(
    size: int, group: int, rounds: int, seed: int
) -> None:
    chosen = Tournament(group=group, rounds=rounds, seed=seed)
    one = FakeComparer(order=at_random(seed)[1], seed=seed)
    other = FakeComparer(order=at_random(seed)[1], concurrency=1)
    ranking = await chosen.rerank(names(size), one)
    check_scores(ranking, names(size))
    assert ranking == await chosen.rerank(names(size), other)
    assert all(2 <= len(shown) <= group for shown in one.compared)


@given(st.permutations(names(17)), st.integers(2, 9))
@settings(max_examples=30, deadline=None)
async def test_without_error_the_best_half_of_a_group_is_on_top(true: list[str], group: int) -> None:
    order = by_worth({each: float(-place) for place, each in enumerate(true)})[1]
    ranking = await Tournament(group=group, rounds=2).rerank(names(17), FakeComparer(order=order))
    assert ids(ranking)[: group // 2] == true[: group // 2]


async def test_groups_are_shown_shuffled_and_another_way_in_each_round_and_for_each_seed() -> None:
    def order(shown: Shown) -> Sequence[str]:
        return sorted(shown)

    shown: list[list[Shown]] = []
    for seed in (0, 0, 1):
        comparer = FakeComparer(order=order)
        await Tournament(group=10, rounds=2, seed=seed).rerank(names(10), comparer)
        shown.append(comparer.compared)
    assert shown[0] == shown[1] != shown[2]
    assert len({tuple(names(10)), *shown[0], *shown[2]}) == 5


async def test_a_group_without_an_answer_keeps_the_order_so_far() -> None:
    ranking = await Tournament(group=5, rounds=2).rerank(names(5), FakeComparer())
    assert ids(ranking) == names(5)
    ranking = await Tournament(group=4, rounds=2).rerank(names(9), FakeComparer())
    # Of 0, 3, 6 and of 1, 4, 7 and of 2, 5, 8 the first two go on, and so forth.
    assert ids(ranking)[:2] == names(2)
    check_scores(ranking, names(9))
