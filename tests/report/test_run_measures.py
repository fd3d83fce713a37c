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
from touche_llm.evaluation.stance_measures import count_confusion
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


def test_unjudged_documents_and_topics_are_those_of_each_side(
    comparative: Path, qrels: Qrels, judged: SimpleNamespace
) -> None:
    rankings = [read_run(comparative / file).rankings for file in ("run.txt", "candidates.run.txt")]
    headline = [measure for measure in judged.measured.measures if measure.headline][:2]
    for measure in headline:
        aspect = measure.name.split()[0]
        for ranked, side in zip(rankings, measure.runs, strict=True):
            tops = [(topic, line.document_id) for topic, lines in ranked.items() for line in lines[:5]]
            assert side.unjudged == sum(document not in qrels.grades[aspect][topic] for topic, document in tops)
            assert side.bounds is not None
            # Sums of the same numbers in another order.
            assert side.bounds[0] - 1e-12 <= side.summary["value"] <= side.bounds[1] + 1e-12
        change = measure.runs[0].difference
        # Four topics are too few for an interval.
        assert change is not None and math.isnan(change["low"]) and math.isnan(change["high"])
        assert 0 < change["p"] <= 1 and set(measure.runs[0].by_topic) == set(rankings[0])
    assert any(run.bounds != first.bounds for run, first in (measure.runs for measure in headline))
    expected = count_confusion(read_run(comparative / "run.txt"), qrels)
    assert judged.measured.confusion == expected.tolist()
    assert [each["label"] for each in judged.measured.by_label] == list(judged.task.stances)


def test_stances_alone_can_be_measured_and_grades_alone_too(comparative: Path, qrels: Qrels) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    alone = measure_run(run, first, replace(qrels, grades={}), "first stage")
    assert [each.name for each in alone.measures if each.headline] == ["stance macro-F1"] and alone.confusion
    graded = measure_run(run, first, replace(qrels, stances={}), "first stage")
    assert [each.name for each in graded.measures if each.headline] == ["relevance nDCG@5", "quality nDCG@5"]
    assert (graded.confusion, graded.by_label) == ([], [])
