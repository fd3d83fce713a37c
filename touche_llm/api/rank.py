"""Last stage: ranks candidates by their judgments and by comparisons."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from touche_llm.api.judge import Judgments, warn_of_labels
from touche_llm.api.progress import Progress
from touche_llm.data.files import check_output, open_atomic
from touche_llm.data.records import Candidate, Comparison, Failure, Judgment, RunLine, StanceReading
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.runs.writing import DECIMALS, NO_STANCE_COLUMN, check_tag, write_run
from touche_llm.errors import DataError
from touche_llm.judging.stance_labels import ChosenStance, StanceSettings, choose_label
from touche_llm.ranking.steps import RankingPlan, rank_topics
from touche_llm.retrieval.candidates import make_frame
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Ranking(ParsedRun):
    """Ranking of the candidates of all topics; also a run that `evaluate` measures.

    Attributes:
        lines: Lines of the run, topic by topic.
        labels: Stance of each document with its source, by topic and document.
        judgments: Judgments by topic and document.
        failures: Comparisons without a usable answer.
    """

    task: Task
    lines: Sequence[RunLine]
    labels: Mapping[str, Mapping[str, ChosenStance]]
    judgments: Mapping[str, Mapping[str, Judgment]]
    comparisons: Sequence[Comparison] = ()
    failures: Sequence[Failure] = ()

    def __repr__(self) -> str:
        return f"<Ranking: {len(self.lines):,} lines of {len(self.rankings):,} topics>"

    @property
    def imputed(self) -> int:
        """Number of lines without a judgment."""
        return sum(
            line.document_id not in self.judgments.get(line.topic_id, {}) for line in self.lines
        )

    def write(self, path: Path | str, *, tag: str | None = None, overwrite: bool = False) -> None:
        """Write the run as `qid stance doc rank score tag` lines, atomically.

        Args:
            path: File to write.
            tag: Last column, one word; None for the tag of the lines.
            overwrite: Whether an existing file may be replaced.

        Raises:
            UsageError: The file exists, or the tag is not one word.
        """
        check_output(Path(path), overwrite)
        lines: Iterable[RunLine] = self.lines
        if tag is not None:
            lines = (msgspec.structs.replace(line, tag=check_tag(tag)) for line in lines)
        write_run(Path(path), lines)

    def write_results(self, path: Path) -> None:
        """Write a header and a tab-separated line for each line of the run, whole or not at all.

        Unknown values are empty; a document id with a quotation mark is quoted as CSV is, which
        pandas and R undo.
        """
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerow(list_result_columns(self.task))
        for topic, document, rank, score, *others in self._list_rows():
            writer.writerow((topic, document, rank, f"{score:.{DECIMALS}f}", *others))
        with open_atomic(path) as stream:
            stream.write(text.getvalue().encode())

    def to_frame(self) -> DataFrame:
        """Return a row per line, with the columns of `results.tsv`."""
        return make_frame(self._list_rows(), list_result_columns(self.task))

    def _list_rows(self) -> Iterator[tuple[Any, ...]]:
        for line in self.lines:
            judgment = self.judgments.get(line.topic_id, {}).get(line.document_id)
            grades = judgment.grades if judgment is not None else {}
            label = self.labels[line.topic_id][line.document_id]
            shares = label.probabilities or {}
            yield (
                *(line.topic_id, line.document_id, line.rank, line.score),
                *((line.stance, label.source) if self.task.stances else ()),
                *(grades.get(name) for name in self.task.question.grades),
                *(shares.get(stance) for stance in self.task.stances),
            )


def list_result_columns(task: Task) -> tuple[str, ...]:
    """Return the columns of `results.tsv`; those of the stance only if the task has stances."""
    stance = ("stance", "stance_source") if task.stances else ()
    probabilities = (f"p_{stance}" for stance in task.stances)
    return ("topic", "document", "rank", "score", *stance, *task.question.grades, *probabilities)


async def rank(
    judgments: Judgments,
    plan: RankingPlan,
    progress: Progress,
    *,
    stance: StanceSettings | None = None,
) -> Ranking:
    """Rank the candidates of all topics.

    Without settings of the stance, each has its most probable label.
    """
    candidates, task = judgments.candidates, plan.task
    by_document = judgments.by_document()
    readings = {(reading.topic_id, reading.document_id): reading for reading in judgments.stances}
    labels: dict[str, dict[str, ChosenStance]] = {topic_id: {} for topic_id in candidates.rankings}
    for candidate in (
        candidate for ranking in candidates.rankings.values() for candidate in ranking
    ):
        topic_id, document_id = candidate.topic_id, candidate.document_id
        judgment, reading = (
            by_document.get(topic_id, {}).get(document_id),
            readings.get((topic_id, document_id)),
        )
        if (label := choose_label(judgment, reading, task, stance)) is not None:
            labels[topic_id][document_id] = label
    _warn_of_thresholds(judgments, stance, progress)
    stances = {
        topic: {document: label.label for document, label in found.items()}
        for topic, found in labels.items()
    }
    # If documents are compared, the progress counts the comparisons.
    counts = plan.clients[0].counts if plan.clients else None
    with progress.stage("ranking", len(candidates.topics), counts) as done:
        lines, comparisons, failures = await rank_topics(
            candidates.topics, candidates.rankings, by_document, stances, plan, done
        )
    for client in plan.clients:
        client.raise_on_misses()
    if plan.builder is not None:
        plan.builder.model.labels.raise_on_unread()
        warn_of_labels(plan.builder.model, plan.prompts, progress)
    if not lines:
        raise DataError(
            f"{candidates.source}: no candidate to rank for the chosen topics; judge them first"
        )
    rankings: dict[str, list[Candidate]] = {}
    for line in lines:
        rankings.setdefault(line.topic_id, []).append(
            Candidate(line.topic_id, line.document_id, line.rank, line.score)
        )
    ranking = Ranking(
        rankings,
        {
            (line.topic_id, line.document_id): line.stance
            for line in lines
            if line.stance != NO_STANCE_COLUMN
        },
        task,
        lines,
        labels,
        by_document,
        comparisons,
        failures,
        chosen_topics=[topic.id for topic in candidates.topics],
    )
    _warn_of_unjudged(ranking, judgments, progress)
    return ranking


def _warn_of_unjudged(ranking: Ranking, judgments: Judgments, progress: Progress) -> None:
    imputed, task = ranking.imputed, ranking.task
    limit = task.documents_per_topic.max
    # Candidates without a stance are left out if the task has no label for an unknown one.
    omitted = sum(min(len(found), limit) for found in judgments.candidates.list_rankings()) - len(
        ranking.lines
    )
    if imputed:
        progress.warn(
            f"{imputed} of {len(ranking.lines)} documents have no judgment: first-stage order"
            + (f", stance {task.unknown_stance}" if task.stances else "")
        )
    if omitted:
        progress.warn(
            f"{omitted} documents have no judgment and are left out, since {task.name} has no such stance"
        )


def _warn_of_thresholds(
    judgments: Judgments, settings: StanceSettings | None, progress: Progress
) -> None:
    """Warn if the thresholds of the stance do not fit the answers that they are applied to."""
    if settings is None or not settings.thresholds:
        return
    answers: Collection[Judgment | StanceReading] = (
        judgments.stances if settings.depth else judgments.judgments
    )
    prompts = {answer.prompt for answer in answers}
    if settings.calibrated_for and prompts - {settings.calibrated_for}:
        progress.warn(
            f"the thresholds of the stance were fitted on answers to {settings.calibrated_for}, and these are answers "
            f"to {', '.join(sorted(prompts))}: fit them anew"
        )
