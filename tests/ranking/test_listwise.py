from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import (
    FakeComparer,
    Shown,
    at_random,
    by_worth,
    check_scores,
    ids,
    names,
)
from touche_llm.errors import UsageError
from touche_llm.ranking.central_ranking import find_central_ranking
from touche_llm.ranking.listwise import Listwise
from touche_llm.ranking.tournament import Tournament

SEVERAL = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.permutations("abcde"[:size]), min_size=1, max_size=5)
)


def disagreements(ranking: Sequence[str], rankings: Sequence[Sequence[str]]) -> int:
    """Kendall's distance to all of the rankings."""
    place = {each: number for number, each in enumerate(ranking)}
    return sum(
        place[above] > place[below] for one in rankings for above, below in combinations(one, 2)
    )


@pytest.mark.parametrize(
    ("size", "window", "stride", "places"),
    [
        (2, 20, 10, [(0, 2)]),
        (21, 20, 10, [(1, 21), (0, 11)]),
        (40, 20, 10, [(20, 40), (10, 30), (0, 20)]),
        (10, 4, 3, [(6, 10), (3, 7), (0, 4)]),
    ],
)
async def test_windows_go_from_the_end_to_the_beginning_and_overlap_by_what_the_stride_leaves(
    size: int, window: int, stride: int, places: list[tuple[int, int]]
) -> None:
    comparer = FakeComparer(order=lambda shown: shown)
    await Listwise(window=window, stride=stride).rerank(names(size), comparer)
    assert comparer.compared == [tuple(names(size)[start:end]) for start, end in places]


async def test_a_window_without_an_answer_keeps_its_order_and_the_next_goes_on() -> None:
    def some(shown: Shown) -> Sequence[str] | None:
        return None if "d05" in shown else shown[::-1]

    ranking = await Listwise(window=4, stride=2).rerank(names(6), FakeComparer(order=some))
    # 2-6 stays, then 0-4 is turned round.
    assert ids(ranking) == ["d03", "d02", "d01", "d00", "d04", "d05"]


async def test_shuffles_show_the_same_documents_in_several_orders_the_first_time_as_they_are() -> (
    None
):
    compared: list[list[Shown]] = []
    for seed in (0, 0, 1):
        comparer = FakeComparer(order=at_random(1)[1])
        await Listwise(window=8, stride=4, shuffles=4, seed=seed).rerank(names(8), comparer)
        compared.append(comparer.compared)
    assert min(compared[0]) == tuple(names(8))
    assert len(set(compared[0])) == 4
    assert {frozenset(shown) for shown in compared[0]} == {frozenset(names(8))}
    assert compared[0] == compared[1] != compared[2]


# The mean ranks lead to a ranking that is farther away than the second of these.
@example([list("becad"), list("baedc"), list("dcbae")])
@given(SEVERAL)
@settings(max_examples=40, deadline=None)
def test_the_central_ranking_is_as_near_to_all_as_any_ranking_that_was_given(
    rankings: list[list[str]],
) -> None:
    central = find_central_ranking(rankings)
    assert sorted(central) == sorted(rankings[0])
    assert disagreements(central, rankings) <= min(
        disagreements(each, rankings) for each in rankings
    )


def test_windows_that_do_not_overlap_are_refused() -> None:
    with pytest.raises(UsageError):
        Listwise(window=5, stride=5)


async def test_a_stage_won_is_a_point_and_the_place_in_the_last_group_a_part_of_one() -> None:
    comparer = FakeComparer(
        order=by_worth({each: float(place) for place, each in enumerate(names(8))})[1]
    )
    ranking = await Tournament(group=4, rounds=1).rerank(names(8), comparer)
    # The groups are 0, 2, 4, 6 and 1, 3, 5, 7; 4, 5, 6 and 7 have won a point, then 1, 3/4, 2/4,
    # 1/4 in the last one.
    assert [set(shown) for shown in comparer.compared] == [
        {"d00", "d02", "d04", "d06"},
        {"d01", "d03", "d05", "d07"},
        {"d04", "d05", "d06", "d07"},
    ]
    points = {
        "d07": 2.0,
        "d06": 1.75,
        "d05": 1.5,
        "d04": 1.25,
        "d00": 0.0,
        "d01": 0.0,
        "d02": 0.0,
        "d03": 0.0,
    }
    assert ids(ranking) == list(points)
    assert [each.score for each in ranking] == pytest.approx([each / 2 for each in points.values()])


async def test_groups_are_shown_shuffled_and_another_way_in_each_round_and_for_each_seed() -> None:
    shown: list[list[Shown]] = []
    for seed in (0, 0, 1):
        comparer = FakeComparer(order=sorted)
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
