"""Maximum number of comparisons: never exceeded, whatever is answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranking.fake_comparer import FakeComparer, Shown, names
from touche_llm.ranking.steps import RankingSettings


def settings_of(name: str, **given: object) -> Any:
    return type(getattr(RankingSettings(), name)).model_validate(given)


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
    "sliding": st.fixed_dictionaries({"passes": st.integers(1, 8), "both_orders": st.booleans()}),
    **dict.fromkeys(
        ("setwise", "insertion"),
        st.fixed_dictionaries({"children": st.integers(1, 5), "top": st.integers(1, 12), "both_orders": st.booleans()}),
    ),
}


@settings(deadline=None, max_examples=150)
@given(data=st.data(), documents=st.integers(2, 16), seed=st.integers(0, 2**32), trust=st.sampled_from([0.0, 0.5, 0.9]))
@pytest.mark.parametrize("name", OWN)
def test_no_answers_take_more_comparisons(
    name: str, data: st.DataObject, documents: int, seed: int, trust: float
) -> None:
    own = settings_of(name, **data.draw(OWN[name]))
    generator = random.Random(seed)

    def choose(shown: Shown, count: int) -> Sequence[str]:
        # Some models mostly agree with the order shown.
        return shown[:count] if generator.random() < trust else generator.sample(shown, count)

    assert count_requests(name, documents, own, choose) <= own.bound_comparisons(documents)
