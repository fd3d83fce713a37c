"""The page of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pandas import DataFrame

from touche_llm.config.files import NO_WORD, UserWord
from touche_llm.data.measure import Measure
from touche_llm.data.records import Failure, Topic
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.measures import Evaluation, describe_judging, evaluate_run, list_headline
from touche_llm.evaluation.qrels import Qrels, describe_fitted, select_topics
from touche_llm.evaluation.significance import compare
from touche_llm.kinds.known import get_kind
from touche_llm.report.agreement import AgreementSection, describe_agreement
from touche_llm.report.measures import (
    MeasureRow,
    RunMeasure,
    TopicPlot,
    tabulate_measures,
)
from touche_llm.report.page import (
    Anchor,
    CostRow,
    LabelShares,
    Page,
    PlotMark,
    compute_label_shares,
    describe_run,
    list_confusion,
    make_anchors,
    tabulate_costs,
)
from touche_llm.runs.open_folder import DocumentRow, DocumentView, RunFolder, open_folder
from touche_llm.runs.record import StageName

# Maximum number of rows per topic, including those with text.
_MAX_ROWS = 100
# Failures are listed with their completions up to this number; all of them are counted.
_MAX_FAILURES = 50
_RUN = "run"


@dataclass(frozen=True, slots=True)
class StageMeasures:
    """Values of a run and of its first stage by one measure.

    Attributes:
        measure: Measure of the values.
        run: Value of the run.
        first_stage: Value of the first stage; None if it has no such measure.
    """

    measure: Measure
    run: RunMeasure
    first_stage: RunMeasure | None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Measures of a run and of its first stage, otherwise as in `MeasureTable`.

    Attributes:
        by_topic: Values by topic of the run, then of the first stage.
        confusion: Documents by true label (rows) and the run's label; empty without stance qrels.
    """

    headline: list[StageMeasures]
    rows: list[StageMeasures]
    by_topic: dict[Measure, list[dict[str, float]]]
    plots: list[TopicPlot]
    coverage: list[str]
    confusion: list[list[int]]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class TopicScore:
    """Value of a topic by one measure; the first stage has None if it lacks the topic."""

    measure: Measure
    run: float
    first_stage: float | None


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic of the page.

    Attributes:
        topic: Topic, with the objects that the model found.
        scores: Values of the topic by the headline measures.
        documents: First documents, shown with text.
        rows: Following documents, shown without text.
        omitted: Number of documents that are not shown.
    """

    topic: Topic
    scores: list[TopicScore]
    documents: list[DocumentView]
    rows: list[DocumentRow]
    omitted: int


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Number of failed requests of one kind in one file."""

    kind: str
    file: str
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(Page):
    """The page of a run.

    Attributes:
        name: Name of the run's folder.
        before: Name of the ranking before the judgments.
        facts: Facts about the run, by name.
        topics: Topics of the run.
        anchors: Anchors of the topics by id.
        marks: Marks of the run and of its first stage in plots.
        stances: Stances of the run and by assessors.
        measured: Measures; None without qrels.
        agreement: Agreement of the judge with the assessors; None without common documents.
        stages: Finished stages.
        costs: Costs, with a column for each stage.
        failure_counts: Numbers of failed requests.
        failures: First failures, shown with their completions.
        aspects: Aspects by which the model and the assessors can be compared.
        has_judge_ranks: Whether a document has a rank by judgment, before later steps.
    """

    template: ClassVar[str] = "run"

    name: str
    before: str
    facts: dict[str, str]
    topics: list[TopicView]
    anchors: dict[str, Anchor]
    marks: list[PlotMark]
    stances: list[LabelShares]
    measured: MeasuredRun | None
    agreement: AgreementSection | None
    stages: list[StageName]
    costs: list[CostRow]
    failure_counts: list[FailureCount]
    failures: list[Failure]
    aspects: list[str]
    has_judge_ranks: bool

    @property
    def failure_total(self) -> int:
        """Number of all failed requests."""
        return sum(count.requests for count in self.failure_counts)


def gather_report(
    folder: Path,
    qrels: Qrels | None,
    top: int,
    word: UserWord = NO_WORD,
) -> RunPage:
    """Return the page of a run.

    Args:
        folder: Folder of the run.
        qrels: Judgments by assessors; without them the run is not evaluated.
        top: Number of documents of each topic that are shown with text.
        word: What the user says about the folder.
    """
    with open_folder(folder, word) as opened:
        if qrels is not None:
            qrels = select_topics(qrels, [opened.run])
        return _make_page(opened, folder.resolve().name, qrels, top)


def _make_page(opened: RunFolder, name: str, qrels: Qrels | None, top: int) -> RunPage:
    """Return the page of an open run folder, with judgments of the run's topics."""
    run = opened.run
    task = opened.task
    before = get_kind(task).before_judging
    measured = None
    agreement = None
    if qrels is not None:
        measured = measure_run(run, opened.first, qrels, before)
        agreement = describe_agreement(opened.records.judgments, qrels, task)
    notes = [*_describe_evaluation(opened, measured, qrels), *_note_gaps(opened)]

    opened.check_documents(ranking[:top] for ranking in run.rankings.values())
    topics = [_view_topic(opened, topic_id, qrels, measured, top) for topic_id in run.rankings]
    shown_rows = [document.row for topic in topics for document in topic.documents]
    aspects = dict.fromkeys(aspect for row in shown_rows for aspect in row.people)

    failures = [failure for in_file in opened.failures.values() for failure in in_file]
    stages = opened.stages.finished
    return RunPage(
        task=task,
        notes=notes + opened.notes,
        name=name,
        before=before,
        facts=describe_run(opened.config, task, opened.stages, run),
        topics=topics,
        anchors=make_anchors([topic.topic for topic in topics]),
        marks=[
            PlotMark(name=_RUN, sign="●", style="run"),
            PlotMark(name=before, sign="○", style="first"),
        ],
        stances=compute_label_shares({_RUN: run}, qrels, task.stances),
        measured=measured,
        agreement=agreement,
        stages=list(stages),
        costs=tabulate_costs(list(stages.values())),
        failure_counts=_count_failures(opened.failures),
        failures=failures[:_MAX_FAILURES],
        aspects=list(aspects),
        has_judge_ranks=any(row.judge is not None for row in shown_rows),
    )


def _describe_evaluation(
    opened: RunFolder, measured: MeasuredRun | None, qrels: Qrels | None
) -> list[str]:
    """Return the notes on the measures of a run, or that it has none."""
    if measured is None or qrels is None:
        return ["No qrels were given, so the run is not evaluated."]
    fitted = describe_fitted("The run", opened.run, opened.config.fitted_on, qrels)
    return [*measured.notes, *fitted]


def _note_gaps(opened: RunFolder) -> Iterator[str]:
    """Yield notes on missing topics, imputed stances, and labels that say little."""
    missing = [topic_id for topic_id in opened.topics if topic_id not in opened.run.rankings]
    if missing:
        yield f"Topics without a line in the run: {', '.join(missing)}."

    rank = opened.stages.rank
    if rank is not None and rank.imputed_stances:
        imputed = f"{rank.imputed_stances:,}"
        yield f"Imputed stances, for lack of a usable answer: {imputed}. They are counted below."

    for record in opened.stages.finished.values():
        for name, counts in record.labels.items():
            for problem in (*counts.list_problems(), *counts.describe_overruled()):
                yield f"Prompt {name}: {problem}."


def _view_topic(
    opened: RunFolder,
    topic_id: str,
    qrels: Qrels | None,
    measured: MeasuredRun | None,
    top: int,
) -> TopicView:
    """Return a topic with its documents; the first `top` of them have a text."""
    rows = opened.rows(topic_id, qrels)
    shown_rows = rows[:_MAX_ROWS]
    first_without_text = max(top, _MAX_ROWS)
    return TopicView(
        topic=opened.topics[topic_id],
        scores=[] if measured is None else _list_scores(topic_id, measured),
        documents=[opened.document(topic_id, row) for row in rows[:top]],
        rows=shown_rows[top:],
        omitted=len(rows[first_without_text:]),
    )


def _list_scores(topic_id: str, measured: MeasuredRun) -> list[TopicScore]:
    """Return the values of a topic by the measures that run and first stage have."""
    scores: list[TopicScore] = []
    for measure, (run_values, first_values) in measured.by_topic.items():
        if topic_id in run_values:
            score = TopicScore(
                measure=measure,
                run=run_values[topic_id],
                first_stage=first_values.get(topic_id),
            )
            scores.append(score)
    return scores


def _count_failures(failures: Mapping[str, Sequence[Failure]]) -> list[FailureCount]:
    """Count the failures of each kind in each file."""
    counts: list[FailureCount] = []
    for file, in_file in failures.items():
        for kind, requests in Counter(failure.kind for failure in in_file).items():
            counts.append(FailureCount(kind=kind, file=file, requests=requests))
    return counts


def measure_run(
    run: ParsedRun, first_stage: ParsedRun, qrels: Qrels, first_stage_name: str
) -> MeasuredRun:
    """Evaluate a run and its first stage, with recall at the depth of the first stage.

    The first stage has no stances, so only the graded aspects have differences.
    """
    depth = max(len(ranking) for ranking in first_stage.rankings.values())
    graded = replace(qrels, stances={})
    evaluation = evaluate_run(_RUN, run, qrels, depth)
    first_evaluation = evaluate_run(first_stage_name, first_stage, graded, depth)

    differences = _compare_stages(evaluation, first_evaluation)
    table = tabulate_measures([evaluation, first_evaluation], differences)
    judging = describe_judging(evaluation, first_evaluation)
    return MeasuredRun(
        headline=_name_stages(table.headline),
        rows=_name_stages(table.rows),
        by_topic=table.by_topic,
        plots=table.plots,
        coverage=table.coverage,
        confusion=list_confusion(run, qrels),
        notes=[*evaluation.notes, *judging, *table.notes],
    )


def _compare_stages(run: Evaluation, first_stage: Evaluation) -> DataFrame:
    """Compare a run with its first stage by nDCG@5, as `significance.compare` does."""
    measures = list_headline(first_stage.qrels)
    if not measures:
        return DataFrame()

    run_estimates = {measure: run.estimates[measure] for measure in measures}
    first_estimates = {measure: first_stage.estimates[measure] for measure in measures}
    estimates = {run.name: run_estimates, first_stage.name: first_estimates}
    return compare(first_stage.name, estimates)


def _name_stages(rows: Sequence[MeasureRow]) -> list[StageMeasures]:
    """Return the rows of a table with a run and its first stage.

    The run has all measures.
    """
    named: list[StageMeasures] = []
    for row in rows:
        run, first_stage = row.runs
        if run is not None:
            named.append(StageMeasures(measure=row.measure, run=run, first_stage=first_stage))
    return named
