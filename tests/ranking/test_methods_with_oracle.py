from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.oracle_engine import Grades, OracleEngine, Outcome, judge_with, mean_ndcg, rank_with, read_grades
from touche_llm.ranking import steps as chain

QRELS = Path("../shared/data/comparative/qrels-relevance.txt")
STRONG_BIAS = 1.5
TEN_PERCENT = 0.1

# Settings with which no document of the best five may be lost on the way.
METHODS: list[tuple[str, Mapping[str, Any]]] = [
    ("pairwise", {}),
    ("pairwise", {"both_orders": False}),
    ("sliding", {}),
    ("sliding", {"passes": 5, "both_orders": False}),
    ("setwise", {}),
    ("setwise", {"children": 1, "top": 5}),
    ("setwise", {"children": 19, "top": 7, "both_orders": True}),
    ("insertion", {}),
    ("insertion", {"children": 1, "top": 5}),
    ("insertion", {"children": 7, "top": 6, "both_orders": True}),
    ("listwise", {}),
    ("listwise", {"window": 9, "stride": 4}),
    ("listwise", {"window": 6, "stride": 1}),
    ("listwise", {"window": 10, "stride": 5, "shuffles": 3}),
    ("tournament", {}),
    ("tournament", {"group": 20, "rounds": 1}),
    ("tournament", {"group": 10, "rounds": 3, "seed": 7}),
]


Topics = Callable[[], tuple[dict[str, list[str]], dict[str, dict[str, float]]]]


def name(document: int) -> str:
    return f"d{document:02}"


def distinct_grades(size: int) -> dict[str, float]:
    """Three grades, as people give them, and a little more of its own for each document."""
    return {name(document): document % 3 + 0.02 * document / size for document in range(size)}


def best_first(grades: Mapping[str, float]) -> list[str]:
    return sorted(grades, key=lambda document: -grades[document])


def rank(engine: OracleEngine, rankings: Mapping[str, Sequence[str]], steps: str, **ranking: Any) -> Outcome:
    return asyncio.run(rank_with(engine, rankings, steps, ranking))


@pytest.mark.parametrize(("method", "chosen"), METHODS, ids=lambda value: str(value))
@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
def test_without_error_the_best_five_are_the_true_ones_in_order(
    method: str, chosen: Mapping[str, Any], chance: random.Random
) -> None:
    # All 870 questions about 30 documents would take long.
    sizes = (2, 5, 6, 11, 17) if method == "pairwise" else (2, 5, 6, 11, 17, 30)
    grades = {str(size): distinct_grades(size) for size in sizes}
    rankings = {topic: chance.sample(sorted(known), len(known)) for topic, known in grades.items()}
    found = rank(OracleEngine(grades), rankings, f"{method}:30", **{method: chosen})
    for topic, known in grades.items():
        assert found.rankings[topic][:5] == best_first(known)[:5]
        assert sorted(found.rankings[topic]) == sorted(known)
    assert not found.failures


@pytest.mark.parametrize("method", [name for name, method in chain.METHODS.items() if method.kind is not None])
def test_after_the_judge_every_method_finds_the_best_five_though_the_first_stage_has_them_last(method: str) -> None:
    grades = {"1": {name(n): n / 10 for n in range(30)}}
    rankings = {"1": sorted(grades["1"])}
    engine = OracleEngine(grades)
    judgments = asyncio.run(judge_with(engine, rankings))
    found = asyncio.run(rank_with(engine, rankings, f"judge,{method}:10", judgments=judgments))
    assert found.rankings["1"][:5] == best_first(grades["1"])[:5]


def synthetic() -> tuple[dict[str, list[str]], dict[str, dict[str, float]]]:
    """Twelve topics of ten documents, as many of each grade as people give, in an order that says nothing."""
    chance = random.Random(1)
    grades = {
        str(topic): {name(n): float(chance.choices((0, 1, 2), (42, 36, 22))[0]) for n in range(10)}
        for topic in range(12)
    }
    return {topic: chance.sample(sorted(known), len(known)) for topic, known in grades.items()}, grades


def real() -> tuple[dict[str, list[str]], dict[str, dict[str, float]]]:
    """The judged passages of the real topics, in an order that says nothing."""
    if not QRELS.exists():
        pytest.skip(f"{QRELS} is not here")
    grades = read_grades(QRELS)
    return {topic: random.Random(topic).sample(sorted(known), len(known)) for topic, known in grades.items()}, grades


@pytest.mark.parametrize("topics", [synthetic, real])
@pytest.mark.slow
def test_with_errors_and_a_strong_position_bias_both_orders_beat_one(topics: Topics) -> None:
    rankings, grades = topics()

    def mean(bias: float, both_orders: bool) -> float:
        found = rank(
            OracleEngine(grades, TEN_PERCENT, bias), rankings, "pairwise:8", pairwise={"both_orders": both_orders}
        )
        return mean_ndcg(found.rankings, grades)

    biased_once, biased_twice, fair_once = mean(STRONG_BIAS, False), mean(STRONG_BIAS, True), mean(0.0, False)
    assert biased_twice > biased_once
    # Both orders win back more than half of what the bias costs.
    assert biased_twice - biased_once > (fair_once - biased_once) / 2 > 0


@pytest.mark.parametrize(
    ("steps", "chosen", "requests"),
    [
        ("pairwise:10", {}, 10 * 9),
        ("pairwise:10", {"pairwise": {"both_orders": False}}, 10 * 9 // 2),
        # The first stage is right: nothing moves, and the second pass repeats the comparisons of the first.
        ("sliding:10", {"sliding": {"passes": 2, "both_orders": True}}, 2 * 9),
        # A heap of 13 with three children: four nodes have any; nothing moves while it is built.
        ("setwise:13", {"setwise": {"top": 1}}, 4),
        # Three documents take two questions in a heap of two children; one for each block of the other ten.
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
