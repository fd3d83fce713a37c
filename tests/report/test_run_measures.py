from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from touche_llm.api.evaluate import evaluate
from touche_llm.data.measure import MACRO_F1, make_headline_ndcg
from touche_llm.data.runs.reading import read_run
from touche_llm.evaluation.agreement import count_confusion
from touche_llm.evaluation.qrels import Qrels
from touche_llm.report.run_page import measure_run


# The first stage has unjudged documents.
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_values_are_those_of_the_evaluation(
    comparative: Path, qrels: Qrels, judged: SimpleNamespace
) -> None:
    columns = ["value", "low", "high"]
    for run, file in (("run", "run.txt"), (judged.before, "candidates.run.txt")):
        expected = evaluate(read_run(comparative / file), qrels).set_index("measure")
        found = {
            measure: row for (name, measure), row in judged.measured.rows.items() if name == run
        }
        for measure, row in found.items():
            values = [getattr(row, column) for column in columns]
            np.testing.assert_array_equal(values, expected.loc[str(measure)][columns].astype(float))


def test_headline_measures_have_differences_and_topics_and_stances_a_matrix(
    comparative: Path, qrels: Qrels, judged: SimpleNamespace
) -> None:
    ranked = read_run(comparative / "run.txt")
    for measure in judged.measured.headline[:2]:
        change = judged.measured.changes["run", measure]
        # Four topics are too few for an interval.
        assert math.isnan(change.low) and math.isnan(change.high)
        assert 0 < change.p <= 1 and set(judged.measured.by_topic[measure][0]) == set(
            ranked.rankings
        )
    assert judged.measured.confusion == count_confusion(ranked, qrels).tolist()


def test_stances_alone_can_be_measured_and_grades_alone_too(
    comparative: Path, qrels: Qrels
) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    alone = measure_run(run, first, replace(qrels, grades={}), "first stage")
    assert alone.headline == [MACRO_F1] and alone.confusion
    graded = measure_run(run, first, replace(qrels, stances={}), "first stage")
    assert graded.headline == [make_headline_ndcg(aspect) for aspect in ("relevance", "quality")]
    assert graded.confusion == []
