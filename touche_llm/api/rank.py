"""Last stage: ranks candidates by their judgments and by comparisons."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from touche_llm.api.judge import warn_of_labels
from touche_llm.api.progress import Progress
from touche_llm.data.files import check_output, open_atomic
from touche_llm.data.records import Candidate, Comparison, Failure, Judgment, RunLine, StanceReading
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.data.runs.writing import DECIMALS, NO_STANCE_COLUMN, check_tag, write_run
from touche_llm.errors import DataError
from touche_llm.judging.result import Judgments
from touche_llm.judging.stance_labels import ChosenStance, StanceSettings, choose_label
from touche_llm.ranking.topics import RankedTopics, RankingPlan, rank_topics
from touche_llm.retrieval.candidates import Candidates, make_frame
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Ranking(ParsedRun):
    """Ranking of the candidates of all topics; also a run that `evaluate` measures.

    Attributes:
        task: Task of the topics.
        lines: Lines of the run, topic by topic.
        labels: Stance of each document with its source, by topic and document.
        judgments: Judgments by topic and document.
        comparisons: Comparisons behind the ranking.
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
        count = 0
        for line in self.lines:
            if line.document_id not in self.judgments.get(line.topic_id, {}):
                count += 1
        return count

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
        if tag is None:
            write_run(Path(path), self.lines)
            return
        checked_tag = check_tag(tag)
        lines = [msgspec.structs.replace(line, tag=checked_tag) for line in self.lines]
        write_run(Path(path), lines)

    def write_results(self, path: Path) -> None:
        """Write a header and a tab-separated line for each line of the run, whole or not at all.

        Unknown values are empty; a document id with a quotation mark is quoted as CSV is, which
        pandas and R undo.
        """
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerow(list_result_columns(self.task))
        for row in self._list_results():
            row["score"] = f"{row['score']:.{DECIMALS}f}"
            writer.writerow(row.values())

        with open_atomic(path) as stream:
            stream.write(text.getvalue().encode())

    def to_frame(self) -> DataFrame:
        """Return a row per line, with the columns of `results.tsv`."""
        rows = [list(row.values()) for row in self._list_results()]
        return make_frame(rows, list_result_columns(self.task))

    def _list_results(self) -> Iterator[dict[str, ResultValue]]:
        """Yield the values of each line by column, in the order of `list_result_columns`.

        None for a grade or probability that is unknown.
        """
        for line in self.lines:
            label = self.labels[line.topic_id][line.document_id]
            judgment = self.judgments.get(line.topic_id, {}).get(line.document_id)
            grades = {} if judgment is None else judgment.grades
            probabilities = label.probabilities or {}

            row: dict[str, ResultValue] = {
                "topic": line.topic_id,
                "document": line.document_id,
                "rank": line.rank,
                "score": line.score,
            }
            if self.task.stances:
                row["stance"] = line.stance
                row["stance_source"] = label.source
            for name in self.task.question.grades:
                row[name] = grades.get(name)
            for stance in self.task.stances:
                row[f"p_{stance}"] = probabilities.get(stance)
            yield row


# Value of a line in `results.tsv`; None if it is unknown.
ResultValue = str | int | float | None


def list_result_columns(task: Task) -> tuple[str, ...]:
    """Return the columns of `results.tsv`; those of the stance only if the task has stances."""
    columns = ["topic", "document", "rank", "score"]
    if task.stances:
        columns.extend(["stance", "stance_source"])
    columns.extend(task.question.grades)
    columns.extend(f"p_{stance}" for stance in task.stances)
    return tuple(columns)


# Chosen stances, and judgments, by topic and document.
Labels = Mapping[str, Mapping[str, ChosenStance]]
JudgmentByDocument = Mapping[str, Mapping[str, Judgment]]


async def rank(
    judgments: Judgments,
    plan: RankingPlan,
    progress: Progress,
    *,
    stance: StanceSettings | None = None,
) -> Ranking:
    """Rank the candidates of all topics.

    Args:
        judgments: Judgments, with the candidates.
        plan: Steps of the ranking, with what they need.
        progress: Progress of the stage, and its warnings.
        stance: Settings of the stance; if None, each document has its most probable label.

    Raises:
        DataError: There is no candidate to rank.
        EngineError: A server failed, or no labels can be read.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    candidates = judgments.candidates
    judgment_by_document = judgments.by_document()
    labels = _choose_labels(judgments, judgment_by_document, plan.task, stance)
    if stance is not None:
        _warn_of_thresholds(judgments, stance, progress)

    ranked = await _rank_topics(candidates, judgment_by_document, labels, plan, progress)
    _check_answers(plan, progress)
    if not ranked.lines:
        raise DataError(
            f"{candidates.source}: no candidate to rank for the chosen topics; judge them first"
        )

    ranking = Ranking(
        rankings=_group_lines(ranked.lines),
        stances=_list_stances(ranked.lines),
        task=plan.task,
        lines=ranked.lines,
        labels=labels,
        judgments=judgment_by_document,
        comparisons=ranked.comparisons,
        failures=ranked.failures,
        chosen_topics=[topic.id for topic in candidates.topics],
    )
    _warn_of_unjudged(ranking, judgments, progress)
    return ranking


def _choose_labels(
    judgments: Judgments,
    judgment_by_document: JudgmentByDocument,
    task: Task,
    settings: StanceSettings | None,
) -> dict[str, dict[str, ChosenStance]]:
    """Choose the stance label of each candidate.

    Args:
        judgments: Judgments with their candidates, and answers to the stance prompt.
        judgment_by_document: The same judgments by topic and document.
        task: Task with the labels.
        settings: Thresholds of the labels; None for the most probable ones.

    Returns:
        Labels by topic and document; a document whose stance is unknown has none.
    """
    readings: dict[tuple[str, str], StanceReading] = {}
    for reading in judgments.stances:
        readings[reading.topic_id, reading.document_id] = reading

    labels: dict[str, dict[str, ChosenStance]] = {}
    for topic_id, candidates in judgments.candidates.rankings.items():
        judgments_of_topic = judgment_by_document.get(topic_id, {})
        labels[topic_id] = {}
        for candidate in candidates:
            label = choose_label(
                judgments_of_topic.get(candidate.document_id),
                readings.get((topic_id, candidate.document_id)),
                task,
                settings,
            )
            if label is not None:
                labels[topic_id][candidate.document_id] = label
    return labels


async def _rank_topics(
    candidates: Candidates,
    judgment_by_document: JudgmentByDocument,
    labels: Labels,
    plan: RankingPlan,
    progress: Progress,
) -> RankedTopics:
    """Rank the candidates that have a stance label, topic by topic, and show the progress."""
    stances: dict[str, dict[str, str]] = {}
    for topic_id, labels_of_topic in labels.items():
        stances[topic_id] = {
            document_id: chosen.label for document_id, chosen in labels_of_topic.items()
        }

    # If a client compares documents, the progress shows its requests, too.
    counts = plan.clients[0].counts if plan.clients else None
    with progress.stage("ranking", len(candidates.topics), counts) as done:
        return await rank_topics(
            candidates.topics,
            candidates.rankings,
            judgment_by_document,
            stances,
            plan,
            done,
        )


def _check_answers(plan: RankingPlan, progress: Progress) -> None:
    """Check the answers to all comparisons, and warn if their labels say nothing.

    Raises:
        EngineError: The labels of no answer to a prompt can be read.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    for client in plan.clients:
        client.raise_on_misses()

    if plan.requester is not None:
        model = plan.requester.client
        model.labels.raise_on_unread()
        warn_of_labels(model, plan.prompts, progress)


def _group_lines(lines: Iterable[RunLine]) -> dict[str, list[Candidate]]:
    """Return the documents of lines by topic, best first."""
    rankings: dict[str, list[Candidate]] = {}
    for line in lines:
        candidate = Candidate(line.topic_id, line.document_id, line.rank, line.score)
        rankings.setdefault(line.topic_id, []).append(candidate)
    return rankings


def _list_stances(lines: Iterable[RunLine]) -> dict[tuple[str, str], str]:
    """Return the stances of lines by topic and document."""
    return {
        (line.topic_id, line.document_id): line.stance
        for line in lines
        if line.stance != NO_STANCE_COLUMN
    }


def _warn_of_unjudged(ranking: Ranking, judgments: Judgments, progress: Progress) -> None:
    """Warn of documents without a judgment: of ranked ones, and of those that are left out.

    They are left out if the task has no label for an unknown stance.
    """
    task = ranking.task
    imputed = ranking.imputed
    if imputed > 0:
        effect = f", stance {task.unknown_stance}" if task.stances else ""
        progress.warn(
            f"{imputed} of {len(ranking.lines)} documents have no judgment: first-stage order{effect}"
        )

    # With a judgment for each, a topic has a line for all candidates, up to the task's maximum.
    expected_lines = 0
    for candidates in judgments.candidates.list_rankings():
        expected_lines += min(len(candidates), task.documents_per_topic.max)
    omitted = expected_lines - len(ranking.lines)
    if omitted != 0:
        progress.warn(
            f"{omitted} documents have no judgment and are left out, since {task.name} has no such stance"
        )


def _warn_of_thresholds(judgments: Judgments, settings: StanceSettings, progress: Progress) -> None:
    """Warn if the thresholds of the stance were fitted on the answers to another prompt."""
    fitted_prompt = settings.calibrated_for
    if not settings.thresholds or not fitted_prompt:
        return

    # The stance is that of the judge prompt, unless a stance prompt is used: for `depth` documents.
    answers: Sequence[Judgment | StanceReading] = judgments.judgments
    if settings.depth > 0:
        answers = judgments.stances
    prompts = sorted({answer.prompt for answer in answers})
    other_prompts = [prompt for prompt in prompts if prompt != fitted_prompt]
    if other_prompts:
        progress.warn(
            f"the thresholds of the stance were fitted on answers to {fitted_prompt}, and these are answers "
            f"to {', '.join(prompts)}: fit them anew"
        )
