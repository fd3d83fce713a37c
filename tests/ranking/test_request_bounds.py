"""Bounds of the number of comparisons: never left, whatever is answered, and reached for few documents."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import FakeComparer, Shown, names
from touche_llm.ranking.comparer import RequestBounds, make_random
from touche_llm.ranking.steps import METHODS, RankingSettings, bound_requests, parse_steps

COMPARING = [name for name, method in METHODS.items() if method.kind is not None]


def settings_of(name: str, **given: object) -> Any:
    return type(getattr(RankingSettings(), name)).model_validate(given)


def bounds_of(name: str, documents: int, own: Any) -> RequestBounds:
    found: RequestBounds = own.bound_requests(documents, partial(make_random, "test", "1"))
    return found


class Undecided(Exception):
    """A question that is not answered yet."""


def count_requests(name: str, documents: int, own: Any, choose: Any) -> int:
    """How many questions a method sends if `choose` picks a document, or the order, of those shown."""

    def best(shown: Shown) -> Mapping[str, float]:
        chosen = choose(shown, 1)[0]
        return {each: float(each == chosen) for each in shown}

    comparer = FakeComparer(best, lambda shown: choose(shown, len(shown)))

    async def rerank() -> None:
        await own.rerank(names(documents), comparer)

    asyncio.run(rerank())
    assert len(set(comparer.compared)) == len(comparer.compared)
    return len(comparer.compared)


OWN: Mapping[str, st.SearchStrategy[Mapping[str, object]]] = {
    "pairwise": st.fixed_dictionaries({"both_orders": st.booleans()}),
    "sliding": st.fixed_dictionaries({"passes": st.integers(1, 8), "both_orders": st.booleans()}),
    "listwise": st.fixed_dictionaries(
        {"window": st.integers(3, 6), "stride": st.integers(1, 2), "shuffles": st.integers(1, 4)}
    ),
    "tournament": st.fixed_dictionaries({"group": st.integers(2, 6), "rounds": st.integers(1, 4)}),
    **dict.fromkeys(
        ("setwise", "insertion"),
        st.fixed_dictionaries({"children": st.integers(1, 5), "top": st.integers(1, 12), "both_orders": st.booleans()}),
    ),
}


@settings(deadline=None, max_examples=150)
@given(data=st.data(), documents=st.integers(2, 16), seed=st.integers(0, 2**32), trust=st.sampled_from([0.0, 0.5, 0.9]))
@pytest.mark.parametrize("name", COMPARING)
def test_no_answers_lead_out_of_the_bounds(
    name: str, data: st.DataObject, documents: int, seed: int, trust: float
) -> None:
    own = settings_of(name, **data.draw(OWN[name]))
    found, generator = bounds_of(name, documents, own), random.Random(seed)

    def choose(shown: Shown, count: int) -> Sequence[str]:
        # Some models mostly agree with the order shown.
        return shown[:count] if generator.random() < trust else generator.sample(shown, count)

    requests = count_requests(name, documents, own, choose)
    assert found.count_min({}) <= requests <= found.max
    assert found.min_by_size.total() <= found.max and all(2 <= shown <= documents for shown in found.min_by_size)


def try_all(name: str, documents: int, own: Any) -> set[int]:
    """The numbers of requests over all answers, tried one after the other."""
    seen: set[int] = set()
    paths: list[list[int]] = [[]]
    while paths:
        path = paths.pop()
        ahead = iter(path)
        open_: list[int] = []

        def choose(shown: Shown, count: int, ahead: Any = ahead, open_: list[int] = open_) -> Sequence[str]:
            place = next(ahead, None)
            if place is None:
                open_.append(len(shown))
                raise Undecided
            return (shown[place],)

        try:
            seen.add(count_requests(name, documents, own, choose))
        except Undecided:
            paths += [[*path, place] for place in range(open_[0])]
    return seen


@pytest.mark.parametrize(
    ("name", "documents", "own"),
    [
        ("sliding", 4, {"passes": 2, "both_orders": False}),
        ("setwise", 5, {"children": 2, "top": 2}),
        ("setwise", 5, {"children": 2, "top": 4}),
        ("setwise", 6, {"children": 3, "top": 2}),
        ("setwise", 5, {"children": 3, "top": 5}),
        ("setwise", 4, {"children": 1, "top": 2}),
        ("insertion", 5, {"children": 2, "top": 3}),
        ("insertion", 5, {"children": 3, "top": 2}),
        ("insertion", 6, {"children": 1, "top": 2}),
        ("insertion", 5, {"children": 3, "top": 1}),
    ],
)
def test_for_few_documents_both_bounds_are_reached(name: str, documents: int, own: Mapping[str, object]) -> None:
    given = settings_of(name, **own)
    found, seen = bounds_of(name, documents, given), try_all(name, documents, given)
    assert (min(seen), max(seen)) == (found.count_min({}), found.max)


def test_small_groups_of_a_tournament_can_repeat() -> None:
    own = settings_of("tournament", group=2, rounds=3)
    found = bounds_of("tournament", 7, own)
    seen = {count_requests("tournament", 7, own, random.Random(seed).sample) for seed in range(300)} | {
        count_requests("tournament", 7, own, lambda shown, count: shown[:count])
    }
    assert max(seen) == found.max and found.count_min({}) <= min(seen) < found.max
    # Larger groups are hardly ever shuffled alike.
    assert bounds_of("tournament", 30, settings_of("tournament")).count_min({}) == 2 * (3 + 2 + 1)


def test_steps_share_only_questions_about_equally_many_documents_and_stored_answers_need_no_request() -> None:
    steps = parse_steps(["judge", "listwise:12", "pairwise:4", "sliding:6", "setwise:12"])
    own = RankingSettings.model_validate({"setwise": {"top": 1}, "listwise": {"window": 6, "stride": 3}})
    found = bound_requests("best", steps, own, "1", 20)
    # 12 pairs of `pairwise` may have the 10 of `sliding`; 12 documents in a heap: three nodes of three and one of two.
    assert (found.min_by_size, found.max) == ({2: 12, 4: 3, 3: 1}, 12 + 30 + 5)
    assert found.count_min({2: 20, 4: 1}) == 3
    assert found.scale(2).count_min({}) == 2 * 16
    assert bound_requests("order", steps, own, "1", 20).min_by_size == {6: 3}
    assert bound_requests("order", steps, own, "1", 1).max == 0
