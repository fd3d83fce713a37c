"""The page of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pandas import DataFrame

from touche_llm.config.files import NO_USER_OPTIONS, UserOptions
from touche_llm.data.measure import Measure
from touche_llm.data.records import Failure, Topic
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.measures import Evaluation, describe_judging, evaluate_run, list_headline
from touche_llm.evaluation.qrels import Qrels, describe_fitted, select_topics
from touche_llm.evaluation.significance import Estimate, compare
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


@dataclass(frozen=True, slots=True)
class FailureList:
    """Failed requests of a run.

    Attributes:
        counts: Numbers of all of them.
        first: First ones, shown with their completions.
    """

    counts: list[FailureCount]
    first: list[Failure]

    @property
    def total(self) -> int:
        """Number of all failed requests."""
        return sum(count.requests for count in self.counts)


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
        failures: Failed requests.
        aspects: Aspects by which the model and the assessors can be compared.
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
    failures: FailureList
    aspects: list[str]

    @property
    def has_judge_ranks(self) -> bool:
        """Whether a document with text has a rank by judgment, before later steps."""
        documents = [document for topic in self.topics for document in topic.documents]
        return any(document.row.judge is not None for document in documents)


def gather_report(
    folder: Path,
    qrels: Qrels | None,
    top: int,
    user_options: UserOptions = NO_USER_OPTIONS,
) -> RunPage:
    """Return the page of a run.

    Args:
        folder: Folder of the run.
        qrels: Judgments by assessors; without them the run is not evaluated.
        top: Number of documents of each topic that are shown with text.
        user_options: What the user says about the folder.
    """
    with open_folder(folder, user_options) as opened:
        if qrels is not None:
            qrels = select_topics(qrels, [opened.run])
        return _make_page(opened, folder.resolve().name, qrels, top)


def _make_page(opened: RunFolder, name: str, qrels: Qrels | None, top: int) -> RunPage:
    """Return the page of an open run folder.

    Args:
        opened: Folder of the run.
        name: Name of the folder.
        qrels: Judgments of the run's topics; None for none.
        top: Number of documents of each topic that are shown with text.
    """
    run = opened.run
    task = opened.task
    first_stage_name = get_kind(task).before_judging
    evaluation = _evaluate(opened, qrels, first_stage_name)

    # Raises an error if the corpus lacks a document that is shown with text.
    opened.check_documents(ranking[:top] for ranking in run.rankings.values())
    topics: list[TopicView] = []
    for topic_id in run.rankings:
        scores = evaluation.list_scores(topic_id)
        topics.append(_view_topic(opened, topic_id, qrels, scores, top))

    stages = opened.stages.finished
    return RunPage(
        task=task,
        notes=[*evaluation.notes, *_note_gaps(opened), *opened.notes],
        name=name,
        before=first_stage_name,
        facts=describe_run(opened.config, task, opened.stages, run),
        topics=topics,
        anchors=make_anchors([topic.topic for topic in topics]),
        marks=_make_marks(first_stage_name),
        stances=compute_label_shares({_RUN: run}, qrels, task.stances),
        measured=evaluation.measured,
        agreement=evaluation.agreement,
        stages=list(stages),
        costs=tabulate_costs(list(stages.values())),
        failures=_collect_failures(opened.failures),
        aspects=_list_assessed_aspects(topics),
    )


def _make_marks(first_stage_name: str) -> list[PlotMark]:
    """Return the marks in plots of a run and of its first stage."""
    return [
        PlotMark(name=_RUN, sign="●", style="run"),
        PlotMark(name=first_stage_name, sign="○", style="first"),
    ]


def _list_assessed_aspects(topics: Iterable[TopicView]) -> list[str]:
    """Return the aspects in which assessors judged a document that is shown with text."""
    aspects: dict[str, None] = {}
    for topic in topics:
        for document in topic.documents:
            aspects.update(dict.fromkeys(document.row.people))
    return list(aspects)


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Evaluation of a run and of its judge.

    Attributes:
        measured: Measures; None without qrels.
        agreement: Agreement of the judge with the assessors; None without common documents.
        notes: What readers should know about them.
    """

    measured: MeasuredRun | None
    agreement: AgreementSection | None
    notes: list[str]

    def list_scores(self, topic_id: str) -> list[TopicScore]:
        """Return the values of a topic by the headline measures; none without qrels."""
        return [] if self.measured is None else _list_scores(topic_id, self.measured)


def _evaluate(opened: RunFolder, qrels: Qrels | None, first_stage_name: str) -> _Evaluation:
    """Evaluate a run and its judge, if there are qrels.

    Args:
        opened: Folder of the run.
        qrels: Judgments of the run's topics; None for none.
        first_stage_name: Name of the ranking before the judgments.
    """
    if qrels is None:
        note = "No qrels were given, so the run is not evaluated."
        return _Evaluation(measured=None, agreement=None, notes=[note])

    measured = measure_run(opened.run, opened.first, qrels, first_stage_name)
    fitted = describe_fitted("The run", opened.run, opened.config.fitted_on, qrels)
    return _Evaluation(
        measured=measured,
        agreement=describe_agreement(opened.records.judgments, qrels, opened.task),
        notes=[*measured.notes, *fitted],
    )


def _note_gaps(opened: RunFolder) -> Iterator[str]:
    """Yield notes on missing topics, imputed stances, and labels that say little."""
    missing = [topic_id for topic_id in opened.topics if topic_id not in opened.run.rankings]
    if missing:
        yield f"Topics without a line in the run: {', '.join(missing)}."

    rank_record = opened.stages.rank
    if rank_record is not None and rank_record.imputed_stances:
        imputed = f"{rank_record.imputed_stances:,}"
        yield f"Imputed stances, for lack of a usable answer: {imputed}. They are counted below."

    for record in opened.stages.finished.values():
        for prompt, counts in record.labels.items():
            for problem in (*counts.list_problems(), *counts.describe_overruled()):
                yield f"Prompt {prompt}: {problem}."


def _view_topic(
    opened: RunFolder,
    topic_id: str,
    qrels: Qrels | None,
    scores: list[TopicScore],
    top: int,
) -> TopicView:
    """Return what the page shows of a topic.

    Args:
        opened: Folder of the run.
        topic_id: Id of the topic.
        qrels: Judgments by assessors; None for none.
        scores: Values of the topic.
        top: Number of documents that are shown with text.
    """
    rows = opened.rows(topic_id, qrels)
    # The first documents are shown with text, the next ones as rows of a table, the rest only
    # counted.
    rows_with_text = rows[:top]
    shown = max(top, _MAX_ROWS)
    return TopicView(
        topic=opened.topics[topic_id],
        scores=scores,
        documents=[opened.document(topic_id, row) for row in rows_with_text],
        rows=rows[top:shown],
        omitted=len(rows[shown:]),
    )


def _list_scores(topic_id: str, measured: MeasuredRun) -> list[TopicScore]:
    """Return the values of a topic by the headline measures that the run has for it."""
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


def _collect_failures(failures_by_file: Mapping[str, Sequence[Failure]]) -> FailureList:
    """Count all failures by kind and file, and list the first ones."""
    counts: list[FailureCount] = []
    all_failures: list[Failure] = []
    for file, failures in failures_by_file.items():
        all_failures += failures
        requests_by_kind = Counter(failure.kind for failure in failures)
        for kind, requests in requests_by_kind.items():
            counts.append(FailureCount(kind=kind, file=file, requests=requests))
    return FailureList(counts=counts, first=all_failures[:_MAX_FAILURES])


def measure_run(
    run: ParsedRun, first_stage: ParsedRun, qrels: Qrels, first_stage_name: str
) -> MeasuredRun:
    """Evaluate a run and its first stage, with recall at the depth of the first stage.

    The first stage ranks documents and gives them no stances, so it is evaluated without stance
    qrels, and only the graded aspects have differences.

    Args:
        run: Run to evaluate.
        first_stage: Ranking that the run reranks.
        qrels: Judgments by assessors.
        first_stage_name: Name of the first stage on the page.
    """
    depth = max(len(ranking) for ranking in first_stage.rankings.values())
    evaluation = evaluate_run(_RUN, run, qrels, depth)
    qrels_without_stances = replace(qrels, stances={})
    first_evaluation = evaluate_run(first_stage_name, first_stage, qrels_without_stances, depth)

    differences = _compare_stages(evaluation, first_evaluation)
    table = tabulate_measures([evaluation, first_evaluation], differences)
    judging_notes = describe_judging(evaluation, first_evaluation)
    return MeasuredRun(
        headline=_split_columns(table.headline),
        rows=_split_columns(table.rows),
        by_topic=table.by_topic,
        plots=table.plots,
        coverage=table.coverage,
        confusion=list_confusion(run, qrels),
        notes=[*evaluation.notes, *judging_notes, *table.notes],
    )


def _compare_stages(run: Evaluation, first_stage: Evaluation) -> DataFrame:
    """Compare a run with its first stage by nDCG@5; the rows are those of `significance.compare`."""
    measures = list_headline(first_stage.qrels)
    if not measures:
        return DataFrame()

    estimates_by_name: dict[str, dict[Measure, Estimate]] = {}
    for evaluation in (run, first_stage):
        estimates = {measure: evaluation.estimates[measure] for measure in measures}
        estimates_by_name[evaluation.name] = estimates
    return compare(first_stage.name, estimates_by_name)


def _split_columns(rows: Sequence[MeasureRow]) -> list[StageMeasures]:
    """Return the values of a run and of its first stage by measure.

    Args:
        rows: Rows of a table with two columns, the run and its first stage. Rows without a value of
            the run are left out.
    """
    measures: list[StageMeasures] = []
    for row in rows:
        run, first_stage = row.runs
        if run is not None:
            measures.append(StageMeasures(measure=row.measure, run=run, first_stage=first_stage))
    return measures
