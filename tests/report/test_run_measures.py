from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from touche_llm.data.trec_runs import read_run
from touche_llm.evaluation import evaluate
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.stance_measures import count_confusion
from touche_llm.report.page import measure_run


def found(report: SimpleNamespace) -> Any:
    assert report.measured is not None
    return report.measured


def list_headline(measured: Any) -> list[SimpleNamespace]:
    return [each for each in measured.measures if each.headline]


def sides(measure: SimpleNamespace) -> tuple[SimpleNamespace, SimpleNamespace]:
    """The results of the run and of its first stage."""
    run, first = measure.runs
    assert run is not None and first is not None
    return run, first


# The first stage has unjudged documents.
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_values_are_those_of_the_evaluation(comparative: Path, qrels: Qrels, judged: SimpleNamespace) -> None:
    for side, file in enumerate(("run.txt", "candidates.run.txt")):
        expected = evaluate(read_run(comparative / file), qrels).set_index("measure")
        for measure in found(judged).measures:
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
    for measure in list_headline(found(judged))[:2]:
        aspect = measure.name.split()[0]
        for ranked, side in zip(rankings, sides(measure), strict=True):
            tops = [(topic, line.document_id) for topic, lines in ranked.items() for line in lines[:5]]
            assert side.unjudged == sum(document not in qrels.grades[aspect][topic] for topic, document in tops)
            assert side.bounds is not None
            # Sums of the same numbers in another order.
            assert side.bounds[0] - 1e-12 <= side.summary["value"] <= side.bounds[1] + 1e-12
        run, first = sides(measure)
        change = run.difference
        # Four topics are too few for an interval.
        assert change is not None and math.isnan(change["low"]) and math.isnan(change["high"])
        assert 0 < change["p"] <= 1 and set(run.by_topic) == set(rankings[0])
    assert any(run.bounds != first.bounds for run, first in map(sides, list_headline(found(judged))[:2]))


def test_the_confusion_matrix_is_that_of_the_evaluation(
    comparative: Path, qrels: Qrels, judged: SimpleNamespace
) -> None:
    expected = count_confusion(read_run(comparative / "run.txt"), qrels)
    assert found(judged).confusion == expected.tolist()
    assert [each["label"] for each in found(judged).by_label] == list(judged.task.stances)


def test_stances_alone_can_be_measured_and_grades_alone_too(comparative: Path, qrels: Qrels) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    alone = measure_run(run, first, replace(qrels, grades={}), "first stage")
    assert [each.name for each in list_headline(alone)] == ["stance macro-F1"] and alone.confusion
    graded = measure_run(run, first, replace(qrels, stances={}), "first stage")
    assert [each.name for each in list_headline(graded)] == ["relevance nDCG@5", "quality nDCG@5"]
    assert (graded.confusion, graded.by_label) == ([], [])
