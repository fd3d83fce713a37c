from __future__ import annotations

import asyncio
from itertools import permutations
from math import log2
from pathlib import Path

import pytest

from tests.expect import raises_at
from tests.oracle_engine import OracleEngine, judge_with, ndcg, rank_with, read_grades
from touche_llm.data.records import Comparison
from touche_llm.errors import DataError

# Many documents of two grades, so that a share can be counted.
GRADES = {"1": {f"d{n}": float(n % 2) for n in range(60)}}
DOCUMENTS = {"1": list(GRADES["1"])}


def wrong_judgments(rate: float, seed: int = 0) -> set[str]:
    judgments = asyncio.run(judge_with(OracleEngine(GRADES, rate, seed=seed), DOCUMENTS))["1"]
    return {name for name, grade in GRADES["1"].items() if judgments[name].grades["relevance"] != grade}


def compared(engine: OracleEngine, documents: list[str], steps: str = "pairwise:30") -> list[Comparison]:
    return asyncio.run(rank_with(engine, {"1": documents}, steps)).ranked.comparisons


def shares(engine: OracleEngine, documents: list[str]) -> dict[tuple[str, ...], float]:
    """Probability of the document shown first, for each compared pair."""
    found = {}
    for each in compared(engine, documents):
        assert each.best is not None and each.best.probabilities is not None
        found[tuple(each.documents)] = each.best.probabilities["A"]
    return found


def test_without_error_grades_are_answered_as_they_are() -> None:
    assert not wrong_judgments(0.0)
    grades = {"1": {"a": 0.0, "b": 0.3, "c": 1.75, "d": 3.0}}
    judgments = asyncio.run(judge_with(OracleEngine(grades), {"1": ["a", "b", "c", "d"]}))["1"]
    assert {name: each.grades["relevance"] for name, each in judgments.items()} == grades["1"]


def test_of_questions_about_one_document_the_error_rate_is_answered_wrongly() -> None:
    wrong = [len(wrong_judgments(0.3, seed)) for seed in range(10)]
    # 600 questions: three standard deviations are 34.
    assert sum(wrong) == pytest.approx(180, abs=34)
    assert len(wrong_judgments(1.0)) == len(DOCUMENTS["1"])


def test_a_higher_error_rate_keeps_the_errors_of_a_lower_one() -> None:
    assert wrong_judgments(0.1) < wrong_judgments(0.3) < wrong_judgments(0.6)


def test_errors_are_those_of_the_seed() -> None:
    assert wrong_judgments(0.3, seed=1) == wrong_judgments(0.3, seed=1)
    assert wrong_judgments(0.3, seed=1) != wrong_judgments(0.3, seed=2)


def test_the_same_documents_in_another_order_are_misread_anew() -> None:
    engine = OracleEngine(GRADES, 0.5)
    first = shares(engine, DOCUMENTS["1"][:12])
    assert any(share != pytest.approx(1 - first[pair[::-1]]) for pair, share in first.items())


def test_the_probability_tells_how_much_better_a_document_is() -> None:
    found = shares(OracleEngine({"1": {"a": 2.0, "b": 1.0, "c": 1.0, "d": 0.0}}), ["a", "b", "c", "d"])
    assert found["b", "c"] == 0.5
    assert found["a", "d"] > found["a", "b"] > 0.5 > found["b", "a"] > found["d", "a"]
    # A grade more makes a document e^2 times as probable.
    assert found["a", "b"] / found["b", "a"] == pytest.approx(2.718281828**2)


def test_a_position_bias_favours_what_is_shown_first_and_cancels_out_over_both_orders() -> None:
    grades = {"1": {"a": 2.0, "b": 1.0, "c": 0.0}}
    found = shares(OracleEngine(grades, position_bias=1.5), ["a", "b", "c"])
    assert found["b", "a"] > 0.5
    assert found["c", "a"] < 0.5
    for better, worse in [("a", "b"), ("b", "c"), ("a", "c")]:
        assert found[better, worse] + (1 - found[worse, better]) > 1


def test_a_position_bias_falls_evenly_from_the_first_place_to_the_last() -> None:
    grades = {"1": dict.fromkeys("abcd", 0.0) | {"e": 1.0}}
    for place in range(5):
        shown = list("abcd")
        shown.insert(place, "e")
        (comparison,) = compared(OracleEngine(grades, position_bias=2.0), shown, "listwise:5")
        assert comparison.order is not None
        # 1 more than its place is worth; those two places further up or more have as much or more.
        assert comparison.order.index("e") == max(place - 2, 0) + (place >= 2)


def test_equal_documents_stay_as_they_are_shown() -> None:
    grades = {"1": dict.fromkeys("abc", 1.0)}
    for shown in permutations("abc"):
        (comparison,) = compared(OracleEngine(grades, 0.5), list(shown), "listwise:3")
        assert comparison.order == list(shown)


def test_ndcg_is_that_of_trec_eval() -> None:
    grades = {"a": 2.0, "b": 1.0, "c": 0.0, "d": 2.0, "e": 1.0, "f": 1.0}
    best = 2 / log2(2) + 2 / log2(3) + 1 / log2(4) + 1 / log2(5) + 1 / log2(6)
    assert ndcg(["b", "c", "d"], grades) == pytest.approx((1 / log2(2) + 2 / log2(4)) / best)
    assert ndcg(["a", "d", "b", "e", "f", "c"], grades) == pytest.approx(1)
    assert ndcg(["c"], {"c": 0.0}) == 0.0


def test_a_line_that_is_no_judgment_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("1 0 a 2\n1 0 b NO\n")
    with raises_at(DataError, f"{path}:2"):
        read_grades(path)
    with raises_at(DataError, tmp_path / "none.txt"):
        read_grades(tmp_path / "none.txt")
