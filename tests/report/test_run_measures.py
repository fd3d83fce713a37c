from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from tests.sample_runs import choose_topics
from touche_llm.data.trec_runs import read_run
from touche_llm.evaluation import evaluate
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.stance_measures import count_confusion
from touche_llm.pipeline.config_file import CONFIG
from touche_llm.pipeline.run_directory import CANDIDATES, RUN
from touche_llm.report.page import MeasureComparison, MeasureResult, measure_run
from touche_llm.report.run_report import gather_report


def found(report: SimpleNamespace) -> Any:
    assert report.measured is not None
    return report.measured


def list_headline(measured: Any) -> list[MeasureComparison]:
    return [each for each in measured.measures if each.headline]


def sides(measure: MeasureComparison) -> tuple[MeasureResult, MeasureResult]:
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


def test_the_headline_is_ndcg_at_5_of_each_aspect_and_the_stance(judged: SimpleNamespace) -> None:
    headline = list_headline(found(judged))
    assert [each.name for each in headline] == ["relevance nDCG@5", "quality nDCG@5", "stance macro-F1"]
    for measure in headline[:2]:
        run, first = sides(measure)
        value, first_value = run.summary["value"], first.summary["value"]
        assert run.difference is not None and run.bounds is not None
        assert run.difference["difference"] == pytest.approx(value - first_value)
        assert run.bounds[0] <= value <= run.bounds[1] and run.unjudged > 0
        for side, mean in ((run, value), (first, first_value)):
            assert sum(side.by_topic.values()) / len(side.by_topic) == pytest.approx(mean)
    run_stance, first_stance = headline[2].runs
    assert run_stance is not None and run_stance.difference is None and first_stance is None


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


def test_a_run_that_its_configuration_limits_is_measured_by_its_own_topics(
    comparative: Path, qrels: Qrels, judged: SimpleNamespace, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    copytree(comparative, few)
    kept = list(read_run(few / RUN).rankings)[:2]
    for name in (RUN, CANDIDATES):
        lines = (few / name).read_text().splitlines(keepends=True)
        (few / name).write_text("".join(line for line in lines if line.split()[0] in kept))
    settings = yaml.safe_load((few / CONFIG).read_text()) | {"topic": kept}
    (few / CONFIG).write_text(yaml.safe_dump(settings))
    choose_topics(few, kept)
    part, whole = found(gather_report(few, qrels, 20)), found(judged)
    topics = len(qrels.grades["relevance"])
    assert topics > 2
    ndcg = next(each for each in part.measures if each.name == "relevance nDCG@5")
    assert all(side.summary["n"] == 2 for side in sides(ndcg))
    assert f"relevance: 2 of {topics} judged topics" in part.coverage
    assert f"relevance: {topics} of {topics} judged topics" in whole.coverage
    assert not any("not in the run" in note for note in part.notes)
    lost = next(topic for topic in qrels.grades["relevance"] if topic not in kept)
    choose_topics(few, [*kept, lost])
    after = found(gather_report(few, qrels, 20))
    for before, now in zip(sides(ndcg), sides(next(each for each in after.measures if each.headline)), strict=True):
        assert now.summary["n"] == 3 and now.summary["value"] == pytest.approx(before.summary["value"] * 2 / 3)
    assert any(note.endswith(f"so they count 0: {lost}") for note in after.notes)
    assert (
        sides(next(each for each in found(gather_report(few, qrels, 20, run_topics=True)).measures if each.headline))[
            0
        ].summary["n"]
        == 2
    )
