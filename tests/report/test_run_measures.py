from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from touche_llm.api.evaluate import evaluate
from touche_llm.data.measure import MACRO_F1, make_headline_ndcg
from touche_llm.data.runs.reading import read_run
from touche_llm.evaluation.agreement import count_confusion
from touche_llm.evaluation.qrels import Qrels
from touche_llm.report.run_page import RunPage, measure_run


# The first stage has unjudged documents.
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_values_are_those_of_the_evaluation(
    comparative: Path, qrels: Qrels, judged: RunPage
) -> None:
    assert judged.measured is not None
    rows = judged.measured.rows
    of_run = {row.measure: row.run for row in rows}
    of_first_stage = {row.measure: row.first_stage for row in rows if row.first_stage is not None}
    for values, file in ((of_run, "run.txt"), (of_first_stage, "candidates.run.txt")):
        assert values
        expected = evaluate(read_run(comparative / file), qrels).set_index("measure")
        for measure, found in values.items():
            shown = [found.value, found.interval.low, found.interval.high]
            columns = expected.loc[str(measure)][["value", "low", "high"]]
            np.testing.assert_array_equal(shown, columns.astype(float))


def test_headline_measures_have_differences_and_topics_and_stances_a_matrix(
    comparative: Path, qrels: Qrels, judged: RunPage
) -> None:
    ranked = read_run(comparative / "run.txt")
    assert judged.measured is not None
    for row in judged.measured.headline[:2]:
        change = row.run.change
        assert change is not None
        # Four topics are too few for an interval.
        assert math.isnan(change.interval.low) and math.isnan(change.interval.high)
        topics = judged.measured.by_topic[row.measure][0]
        assert 0 < change.p <= 1 and set(topics) == set(ranked.rankings)
    assert judged.measured.confusion == count_confusion(ranked, qrels).tolist()


def test_stances_alone_can_be_measured_and_grades_alone_too(
    comparative: Path, qrels: Qrels
) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    alone = measure_run(run, first, replace(qrels, grades={}), "first stage")
    assert [row.measure for row in alone.headline] == [MACRO_F1] and alone.confusion
    graded = measure_run(run, first, replace(qrels, stances={}), "first stage")
    measures = [row.measure for row in graded.headline]
    assert measures == [make_headline_ndcg(aspect) for aspect in ("relevance", "quality")]
    assert graded.confusion == []
