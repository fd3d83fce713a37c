from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import FakeComparer, Shown, at_random, by_worth, check_scores, ids, names
from touche_llm.errors import UsageError
from touche_llm.ranking.listwise import Listwise, find_central_ranking

SEVERAL = st.integers(1, 5).flatmap(lambda size: st.lists(st.permutations("abcde"[:size]), min_size=1, max_size=5))


def disagreements(ranking: Sequence[str], rankings: Sequence[Sequence[str]]) -> int:
    """Kendall's distance to all of the rankings."""
    place = {each: number for number, each in enumerate(ranking)}
    return sum(place[above] > place[below] for one in rankings for above, below in combinations(one, 2))


def true_order(worth: list[str]) -> FakeComparer:
    return FakeComparer(order=by_worth({each: float(-place) for place, each in enumerate(worth)})[1])


@pytest.mark.parametrize(
    ("size", "window", "stride", "places"),
    [
        (2, 20, 10, [(0, 2)]),
        (21, 20, 10, [(1, 21), (0, 11)]),
        (10, 4, 2, [(6, 10), (4, 8), (2, 6), (0, 4)]),
        (10, 4, 3, [(6, 10), (3, 7), (0, 4)]),
        (5, 2, 1, [(3, 5), (2, 4), (1, 3), (0, 2)]),
    ],
)
async def test_windows_go_from_the_end_to_the_beginning_and_overlap_by_what_the_stride_leaves(
    size: int, window: int, stride: int, places: list[tuple[int, int]]
) -> None:
    comparer = FakeComparer(order=lambda shown: shown)
    await Listwise(window=window, stride=stride).rerank(names(size), comparer)
    assert comparer.compared == [tuple(names(size)[start:end]) for start, end in places]


@given(st.integers(2, 30), st.integers(2, 8), st.data())
@settings(max_examples=30, deadline=None)
async def test_without_error_as_many_of_the_best_as_windows_share_are_in_place(
    size: int, window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window - 1))
    worth = data.draw(st.permutations(names(size)))
    ranking = await Listwise(window=window, stride=stride).rerank(names(size), true_order(worth))
    assert ids(ranking)[: window - stride] == worth[: window - stride]
    check_scores(ranking, names(size))


async def test_a_window_without_an_answer_keeps_its_order_and_the_next_goes_on() -> None:
    worth = {each: float(place) for place, each in enumerate(names(6))}
    order = by_worth(worth)[1]

    def some(shown: Shown) -> Sequence[str] | None:
        return None if "d05" in shown else order(shown)

    ranking = await Listwise(window=4, stride=2).rerank(names(6), FakeComparer(order=some))
    # 2-6 stays, then 0-4 is turned round.
    assert ids(ranking) == ["d03", "d02", "d01", "d00", "d04", "d05"]


async def test_shuffles_show_the_same_documents_in_several_orders_the_first_time_as_they_are() -> None:
    comparer = FakeComparer(order=at_random(1)[1])
    chosen = Listwise(window=8, stride=4, shuffles=4)
    await chosen.rerank(names(8), comparer)
    assert sorted(comparer.compared)[0] == tuple(names(8))
    assert len(set(comparer.compared)) == 4
    assert {frozenset(shown) for shown in comparer.compared} == {frozenset(names(8))}
    again, other = FakeComparer(order=at_random(1)[1]), FakeComparer(order=at_random(1)[1])
    await chosen.rerank(names(8), again)
    assert again.compared == comparer.compared
    await chosen.model_copy(update={"seed": 1}).rerank(names(8), other)
    assert other.compared != comparer.compared


# The mean ranks lead to a ranking that is farther away than the second of these.
@example([list("becad"), list("baedc"), list("dcbae")])
@given(SEVERAL)
@settings(deadline=None)
def test_the_central_ranking_is_as_near_to_all_as_any_ranking_that_was_given(rankings: list[list[str]]) -> None:
    central = find_central_ranking(rankings)
    assert sorted(central) == sorted(rankings[0])
    distance = disagreements(central, rankings)
    assert distance <= min(disagreements(each, rankings) for each in rankings)
    # Hence this bound, which holds for the nearest of the given rankings already.
    least = min(disagreements(each, rankings) for each in permutations(rankings[0]))
    assert distance <= 2 * least


# Neither the mean ranks nor one of these is such a ranking.


def test_windows_that_do_not_overlap_are_refused() -> None:
    for chosen in ({"window": 5, "stride": 5}, {"window": 27}, {"shuffles": 0}, {"window": 1}):
        with pytest.raises(UsageError):
            Listwise(**chosen)
