from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import Best, FakeComparer, at_random, by_worth, check_scores, ids, names
from touche_llm.ranking.pairwise import Sliding


def bubble_sort(documents: list[str], best: Best, passes: int) -> list[str]:
    """What the passes give one after the other, with questions in one order."""
    order = list(documents)
    for done in range(min(passes, len(order) - 1)):
        for place in range(len(order) - 1, done, -1):
            shares = best((order[place - 1], order[place]))
            if shares is not None and shares[order[place]] > shares[order[place - 1]]:
                order[place - 1], order[place] = order[place], order[place - 1]
    return order


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 10), st.sampled_from([1, 2, 3, 16]))
@settings(max_examples=30, deadline=None)
async def test_passes_under_way_at_once_give_what_one_after_the_other_gives(
    seed: int, size: int, passes: int, concurrency: int
) -> None:
    # The answers contradict each other: no order is behind them, so any slip in the sequence shows.
    best, _ = at_random(seed)
    comparer = FakeComparer(best, concurrency=concurrency, seed=seed)
    ranking = await Sliding(passes=passes, both_orders=False).rerank(names(size), comparer)
    assert ids(ranking) == bubble_sort(names(size), best, passes)
    check_scores(ranking, names(size))


@given(st.permutations(names(8)), st.integers(1, 9))
@settings(max_examples=30, deadline=None)
async def test_as_many_of_the_best_as_there_are_passes_are_in_place(worth: list[str], passes: int) -> None:
    best, _ = by_worth({each: float(-place) for place, each in enumerate(worth)})
    ranking = await Sliding(passes=passes).rerank(names(8), FakeComparer(best))
    assert ids(ranking)[:passes] == worth[:passes]


async def test_a_pass_takes_one_question_for_each_pair_of_neighbours_that_it_can_still_move() -> None:
    # What comes last is the best: no pair comes back, so each pass asks for all of its own.
    worth = {each: float(place) for place, each in enumerate(names(6))}
    comparer = FakeComparer(by_worth(worth)[0])
    await Sliding(passes=3, both_orders=False).rerank(names(6), comparer)
    assert len(comparer.compared) == len(set(comparer.compared)) == 5 + 4 + 3


async def test_the_next_pass_begins_while_the_one_before_waits() -> None:
    worth = {each: float(place) for place, each in enumerate(names(6))}
    # The first pass waits at its third pair; the second one can compare the last two documents all the same.
    comparer = FakeComparer(by_worth(worth)[0], held=lambda shown: shown == ("d02", "d05"))
    settings = Sliding(passes=3, both_orders=False)
    async with comparer.holding(settings.rerank(names(6), comparer)):
        assert comparer.answered == [("d04", "d05"), ("d03", "d05"), ("d03", "d04")]
