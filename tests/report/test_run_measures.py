from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from touche_llm.data.trec_runs import read_run
from touche_llm.evaluation import evaluate
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.stances import count_confusion
from touche_llm.report.page import measure_run


# The first stage has unjudged documents.
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_values_are_those_of_the_evaluation(comparative: Path, qrels: Qrels, judged: SimpleNamespace) -> None:
    for side, file in enumerate(("run.txt", "candidates.run.txt")):
        expected = evaluate(read_run(comparative / file), qrels).set_index("measure")
        for measure in judged.measured.measures:
            result = measure.runs[side]
            if result is not None:
                row = expected.loc[measure.name]
                columns = ["value", "low", "high"]
                np.testing.assert_array_equal(
                    [result.summary[column] for column in columns], row[columns].astype(float)
                )


def test_headline_measures_have_differences_and_topics_and_stances_a_matrix(
    comparative: Path, qrels: Qrels, judged: SimpleNamespace
) -> None:
    ranked = read_run(comparative / "run.txt")
    headline = [measure for measure in judged.measured.measures if measure.headline][:2]
    for measure in headline:
        change = measure.runs[0].difference
        # Four topics are too few for an interval.
        assert change is not None and math.isnan(change["low"]) and math.isnan(change["high"])
        assert 0 < change["p"] <= 1 and set(measure.runs[0].by_topic) == set(ranked.rankings)
    assert judged.measured.confusion == count_confusion(ranked, qrels).tolist()


def test_stances_alone_can_be_measured_and_grades_alone_too(comparative: Path, qrels: Qrels) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    alone = measure_run(run, first, replace(qrels, grades={}), "first stage")
    assert [each.name for each in alone.measures if each.headline] == ["stance macro-F1"] and alone.confusion
    graded = measure_run(run, first, replace(qrels, stances={}), "first stage")
    assert [each.name for each in graded.measures if each.headline] == ["relevance nDCG@5", "quality nDCG@5"]
    assert graded.confusion == []
