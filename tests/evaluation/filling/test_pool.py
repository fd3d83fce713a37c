"""Pools as arrays: nDCG against ir-measures, and what is hidden with a team."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import nDCG

from touche_llm.errors import UsageError
from touche_llm.evaluation.filling.estimates import estimate_without_judge, measure_filled
from touche_llm.evaluation.filling.pool import SystemPool, make_pool

DOCUMENTS = [f"d{number}" for number in range(8)]
JUDGED = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 3), min_size=1)
GRADES = st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), JUDGED, min_size=1)
RANKING = st.lists(st.sampled_from(DOCUMENTS), unique=True, min_size=1)
SYSTEM = st.fixed_dictionaries({"q1": RANKING, "q2": RANKING, "q3": RANKING})


def make(systems: dict[str, dict[str, list[str]]], grades: dict[str, dict[str, int]]) -> SystemPool:
    return make_pool(
        {name: {name: ranking} for name, ranking in systems.items()},
        grades,
        grades,
        depth=3,
        highest_grade=3,
        label_count=4,
    )


@given(grades=GRADES, ranking=SYSTEM)
def test_ndcg_is_that_of_ir_measures(
    grades: dict[str, dict[str, int]], ranking: dict[str, list[str]]
) -> None:
    pool = make({"a": ranking}, grades)
    gains = np.where(pool.is_judged, pool.grades, 0).astype(np.float64)
    values = pool.measure_ndcg(gains, pool.list_systems(0))[0]
    run = {
        topic: {document: -float(rank) for rank, document in enumerate(ranking[topic])}
        for topic in grades
    }
    expected = {
        metric.query_id: metric.value
        for metric in ir_measures.iter_calc([nDCG(dcg="log2") @ 3], grades, run)
    }
    assert values == pytest.approx([expected[topic] for topic in pool.topics])


@given(grades=GRADES, first=SYSTEM, second=SYSTEM)
def test_what_one_team_alone_found_is_hidden_with_it(
    grades: dict[str, dict[str, int]],
    first: dict[str, list[str]],
    second: dict[str, list[str]],
) -> None:
    pool = make({"a": first, "b": second}, grades)
    hidden = pool.hide_team(0)
    for number, (topic, document) in enumerate(pool.documents):
        is_alone = document in first[topic][:3] and document not in second[topic][:3]
        is_judged = document in grades[topic]
        assert hidden.is_judged[number] == (is_judged and not is_alone)

    dropped = pool.drop_team(0)
    assert dropped.teams == ("b",)
    assert (dropped.grades == hidden.grades).all()


@given(grades=GRADES, ranking=SYSTEM)
def test_a_pool_without_unjudged_documents_has_its_own_value(
    grades: dict[str, dict[str, int]], ranking: dict[str, list[str]]
) -> None:
    complete = {topic: dict.fromkeys(DOCUMENTS, 0) | judged for topic, judged in grades.items()}
    pool = make({"a": ranking}, complete)
    filled = measure_filled(pool, 0, estimate_without_judge)
    assert filled == pytest.approx(pool.measure_ndcg(pool.grades.astype(float), np.array([0])))
    assert pool.measure_shares(0) == pytest.approx(0.0)


def test_a_team_without_systems_is_refused() -> None:
    with pytest.raises(UsageError):
        make_pool({"a": {}}, {"q": {"d": 1}}, {}, depth=3, highest_grade=3, label_count=4)
