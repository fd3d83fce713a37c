from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import yaml

from touche_llm.data.trec_runs import read_run
from touche_llm.evaluation import evaluate
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.stance_measures import count_confusion
from touche_llm.pipeline.run_files import CANDIDATES, CONFIG, RUN
from touche_llm.report.records import RunReport
from touche_llm.report.run_measures import MeasuredRun, measure_run
from touche_llm.report.run_report import gather_report


def found(report: RunReport) -> MeasuredRun:
    assert report.measured is not None
    return report.measured


# The first stage has unjudged documents.
@pytest.mark.filterwarnings("ignore::touche_llm.errors.ToucheWarning")
def test_values_are_those_of_the_evaluation(comparative: Path, qrels: Qrels, judged: RunReport) -> None:
    for file, side in (("run.txt", "run"), ("candidates.run.txt", "first")):
        expected = evaluate(read_run(comparative / file), qrels).set_index("measure")
        for each in found(judged).measures:
            value = getattr(each, side)
            if value is not None:
                row = expected.loc[each.name]
                assert (value.value, value.low, value.high) == (row["value"], row["low"], row["high"])


def test_the_headline_is_ndcg_at_5_of_each_aspect_and_the_stance(judged: RunReport) -> None:
    headline = found(judged).headline
    assert [each.name for each in headline] == ["relevance nDCG@5", "quality nDCG@5", "stance macro-F1"]
    for each in headline[:2]:
        assert each.first is not None and each.difference is not None and each.bounds is not None
        assert each.difference.value == pytest.approx(each.run.value - each.first.value)
        assert each.bounds[0] <= each.run.value <= each.bounds[1] and each.unjudged > 0
        assert each.by_topic is not None
        own, other = zip(*each.by_topic.values(), strict=True)
        assert sum(own) / len(own) == pytest.approx(each.run.value)
        assert sum(other) / len(other) == pytest.approx(each.first.value)
    assert headline[2].first is None and headline[2].difference is None


def test_unjudged_documents_and_topics_are_those_of_each_side(
    comparative: Path, qrels: Qrels, judged: RunReport
) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    for each in found(judged).headline[:2]:
        aspect = each.name.split()[0]
        for ranked, unjudged, bounds in (
            (run, each.unjudged, each.bounds),
            (first, each.first_unjudged, each.first_bounds),
        ):
            tops = [(topic, line.document_id) for topic, lines in ranked.rankings.items() for line in lines[:5]]
            assert unjudged == sum(document not in qrels.grades[aspect][topic] for topic, document in tops)
            assert bounds is not None and bounds[0] <= bounds[1]
        assert each.first is not None and each.first_bounds is not None and each.by_topic is not None
        assert each.first_bounds[0] <= each.first.value <= each.first_bounds[1]
        assert each.difference is not None and each.difference.low <= each.difference.value <= each.difference.high
        assert each.p is not None and 0 < each.p <= 1 and set(each.by_topic) == set(run.rankings)
    sides = [(each.unjudged, each.bounds) for each in found(judged).headline[:2]]
    assert sides != [(each.first_unjudged, each.first_bounds) for each in found(judged).headline[:2]]


def test_the_confusion_matrix_is_that_of_the_evaluation(comparative: Path, qrels: Qrels, judged: RunReport) -> None:
    expected = count_confusion(read_run(comparative / "run.txt"), qrels)
    assert found(judged).confusion == expected.to_numpy().tolist()
    assert [each.label for each in found(judged).labels] == list(judged.labels)


def test_stances_alone_can_be_measured_and_grades_alone_too(comparative: Path, qrels: Qrels) -> None:
    run, first = read_run(comparative / "run.txt"), read_run(comparative / "candidates.run.txt")
    alone = measure_run(run, first, replace(qrels, grades={}), "first stage")
    assert [each.name for each in alone.headline] == ["stance macro-F1"] and alone.confusion
    graded = measure_run(run, first, replace(qrels, stances={}), "first stage")
    assert [each.name for each in graded.headline] == ["relevance nDCG@5", "quality nDCG@5"]
    assert (graded.confusion, graded.labels) == ([], [])


def test_a_run_that_its_configuration_limits_is_measured_by_its_own_topics(
    comparative: Path, qrels: Qrels, judged: RunReport, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    copytree(comparative, few)
    kept = list(read_run(few / RUN).rankings)[:2]
    for name in (RUN, CANDIDATES):
        lines = (few / name).read_text().splitlines(keepends=True)
        (few / name).write_text("".join(line for line in lines if line.split()[0] in kept))
    settings = yaml.safe_load((few / CONFIG).read_text()) | {"topic": kept}
    (few / CONFIG).write_text(yaml.safe_dump(settings))
    part, whole = found(gather_report(few, qrels, 20)), found(judged)
    topics = len(qrels.grades["relevance"])
    assert topics > 2
    ndcg = next(each for each in part.measures if each.name == "relevance nDCG@5")
    assert ndcg.n == 2 and ndcg.first is not None
    assert f"relevance: 2 of {topics} judged topics" in part.coverage
    assert f"relevance: {topics} of {topics} judged topics" in whole.coverage
    assert not any("not in the run" in note for note in part.notes)
