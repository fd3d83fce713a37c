"""All methods with a model: what holds whatever is answered, and what they find where the answers are right."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle_engine import Grades, OracleEngine, Outcome, judge_with, rank_with
from tests.ranking.fake_comparer import FakeComparer, at_random, by_worth, check_scores, ids, names
from touche_llm.ranking.insertion import Insertion
from touche_llm.ranking.listwise import Listwise
from touche_llm.ranking.pairwise import Pairwise
from touche_llm.ranking.registry import ComparingMethod
from touche_llm.ranking.setwise import Setwise
from touche_llm.ranking.sliding import Sliding
from touche_llm.ranking.steps import STEPS
from touche_llm.ranking.tournament import Tournament

HEAPS: Mapping[str, Any] = {
    "children": st.integers(1, 19),
    "top": st.integers(1, 16),
    "both_orders": st.booleans(),
}
CHOSEN: Mapping[str, st.SearchStrategy[ComparingMethod]] = {
    "pairwise": st.builds(Pairwise, both_orders=st.booleans()),
    "sliding": st.builds(Sliding, passes=st.integers(1, 10), both_orders=st.booleans()),
    "setwise": st.builds(Setwise, **HEAPS),
    "insertion": st.builds(Insertion, **HEAPS),
    "listwise": st.tuples(st.integers(2, 9), st.integers(1, 8), st.integers(1, 3))
    .filter(lambda drawn: drawn[1] < drawn[0])
    .map(lambda drawn: Listwise(window=drawn[0], stride=drawn[1], shuffles=drawn[2])),
    "tournament": st.builds(
        Tournament, group=st.integers(2, 9), rounds=st.integers(1, 3), seed=st.integers(0, 9)
    ),
}
every_method = pytest.mark.parametrize("name", CHOSEN)


def count_sure(method: ComparingMethod) -> int:
    """How many of the best are found if all answers are right."""
    match method:
        case Setwise():  # and insertion
            return method.top
        case Sliding():
            return method.passes
        case Listwise():
            return method.window - method.stride
        case Tournament():
            return method.group // 2
    return 1000


def test_every_method_that_compares_is_here() -> None:
    comparing = [name for name, step in STEPS.items() if issubclass(step.method, ComparingMethod)]
    assert comparing == list(CHOSEN)


@every_method
@given(st.data(), st.integers(2, 14))
@settings(max_examples=20, deadline=None)
async def test_without_error_the_best_are_in_order(
    name: str, data: st.DataObject, size: int
) -> None:
    method, order = data.draw(CHOSEN[name]), data.draw(st.permutations(names(size)))
    comparer = FakeComparer(
        *by_worth({each: float(-place) for place, each in enumerate(order)}), seed=size
    )
    ranking = await method.rerank(names(size), comparer)
    sure = count_sure(method)
    assert ids(ranking)[:sure] == order[:sure]
    if isinstance(method, Setwise):
        assert ids(ranking)[sure:] == sorted(order[sure:])
    check_scores(ranking, names(size))


@every_method
@given(st.data(), st.integers(2, 14), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 0.9]))
@settings(max_examples=40, deadline=None)
async def test_whatever_is_answered_the_ranking_is_whole_and_the_same_every_time_within_the_bound(
    name: str, data: st.DataObject, size: int, seed: int, trust: float
) -> None:
    method = data.draw(CHOSEN[name])
    # Some models mostly agree with the order shown; the answers contradict each other, so any slip
    # in a sequence shows.
    one = FakeComparer(*at_random(seed, trust), seed=seed)
    other = FakeComparer(*at_random(seed, trust), concurrency=1)
    ranking = await method.rerank(names(size), one)
    check_scores(ranking, names(size))
    assert ranking == await method.rerank(names(size), other)
    assert one.comparisons == other.comparisons
    assert len(set(one.compared)) == len(one.compared)
    bound = method.bound_comparisons(size)
    assert bound is None or len(one.compared) <= bound


@every_method
@given(st.data(), st.integers(2, 24), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
async def test_no_request_shows_more_documents_than_the_method_says(
    name: str, data: st.DataObject, size: int, seed: int
) -> None:
    method = data.draw(CHOSEN[name])
    comparer = FakeComparer(*at_random(seed, 0.5))
    await method.rerank(names(size), comparer)
    shown = max(map(len, comparer.compared), default=0)
    assert shown <= method.max_shown
    # Where there are enough documents, it is reached; blocks and groups may be smaller.
    if name not in ("insertion", "tournament") and size >= method.max_shown:
        assert shown == method.max_shown


def distinct_grades(size: int) -> dict[str, float]:
    """Three grades, as people give them, and a little more of its own for each document."""
    return {each: number % 3 + 0.02 * number / size for number, each in enumerate(names(size))}


def best_first(grades: Mapping[str, float]) -> list[str]:
    return sorted(grades, key=lambda document: -grades[document])


def rank(
    engine: OracleEngine, rankings: Mapping[str, Sequence[str]], steps: str, **ranking: Any
) -> Outcome:
    return asyncio.run(rank_with(engine, rankings, steps, ranking))


@every_method
def test_after_the_judge_every_method_finds_the_best_five_though_the_first_stage_has_them_last(
    name: str,
) -> None:
    grades = {"1": {each: number / 10 for number, each in enumerate(names(30))}}
    engine = OracleEngine(grades)
    judgments = asyncio.run(judge_with(engine, {"1": names(30)}))
    found = asyncio.run(rank_with(engine, {"1": names(30)}, f"judge,{name}:8", judgments=judgments))
    assert found.rankings["1"][:5] == best_first(grades["1"])[:5]


@pytest.mark.parametrize(
    ("steps", "chosen", "requests"),
    [
        ("pairwise:10", {}, 10 * 9),
        ("pairwise:10", {"pairwise": {"both_orders": False}}, 10 * 9 // 2),
        # The first stage is right: nothing moves, and the second pass repeats the comparisons of
        # the first.
        ("sliding:10", {"sliding": {"passes": 2, "both_orders": True}}, 2 * 9),
        # A heap of 13 with three children: four nodes have any; nothing moves while it is built.
        ("setwise:13", {"setwise": {"top": 1}}, 4),
        # Three documents take two questions in a heap of two children; one for each block of the
        # other ten.
        ("insertion:13", {"insertion": {"top": 3, "children": 2}}, 1 + 1 + 5),
        ("listwise:30", {"listwise": {"window": 20, "stride": 10}}, 2),
        ("listwise:20", {"listwise": {"window": 5, "stride": 2, "shuffles": 3}}, 3 * 9),
        # 30 in three groups, 15 in two, 10 in one.
        ("tournament:30", {"tournament": {"rounds": 2}}, 2 * (3 + 2 + 1)),
    ],
)
def test_a_right_first_stage_is_confirmed_with_as_many_questions_as_the_method_says(
    steps: str, chosen: Mapping[str, Any], requests: int
) -> None:
    grades: Grades = {"1": distinct_grades(30)}
    found = rank(OracleEngine(grades), {"1": best_first(grades["1"])}, steps, **chosen)
    assert found.rankings["1"] == best_first(grades["1"])
    assert found.requests == requests
