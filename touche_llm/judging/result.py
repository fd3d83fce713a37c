"""Judgments of a run's candidates: the result of the second stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from touche_llm.data.records import Failure, Judgment, Objects, StanceReading
from touche_llm.judging.judgments import group_judgments
from touche_llm.retrieval.candidates import Candidates, make_frame
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Judgments:
    """Judgments of candidates, topic by topic.

    Attributes:
        candidates: What was judged; pairs, if the first stage retrieved sentences. Topics have
            their objects.
        stances: Answers to the stance prompt.
        objects: Objects that the model found for topics that name none.
        sentences: Judgments of the sentences that pairs were made of; None if none were to be made.
    """

    candidates: Candidates
    judgments: Sequence[Judgment]
    stances: Sequence[StanceReading] = ()
    objects: Sequence[Objects] = ()
    sentences: Sequence[Judgment] | None = None
    failures: Sequence[Failure] = ()

    def __repr__(self) -> str:
        topics = {judgment.topic_id for judgment in self.judgments}
        counts = f"{len(self.judgments):,} of {len(topics):,} topics"
        return f"<Judgments: {counts}, {len(self.failures):,} failures>"

    @property
    def requested(self) -> int:
        """Number of judgments made by the model: of candidates, and of sentences."""
        return len(self.list_requested())

    def list_requested(self) -> list[Judgment]:
        """Return the judgments made by the model, of sentences first, without inherited ones."""
        of_sentences = self.sentences or ()
        of_candidates = [judgment for judgment in self.judgments if judgment.source != "inherited"]
        return [*of_sentences, *of_candidates]

    def by_document(self) -> dict[str, dict[str, Judgment]]:
        """Return the judgments by topic id and document id."""
        return dict(group_judgments(self.judgments))

    def to_frame(self) -> DataFrame:
        """Return a row per judgment: topic, document, each grade, any stance, and the source.

        A stance is followed by the probability of each label. Grades and stance are those of the
        judge prompt; `source` says whether they come from probabilities.
        """
        task = self.candidates.task
        aspects = task.question.grades
        stance_columns: list[str] = []
        if task.stances:
            probability_columns = [f"p_{label}" for label in task.stances]
            stance_columns = ["stance", *probability_columns]

        rows: list[tuple[object, ...]] = []
        for judgment in self.judgments:
            row = (
                judgment.topic_id,
                judgment.document_id,
                *(judgment.grades.get(aspect) for aspect in aspects),
                *_list_stance_values(judgment, task),
                judgment.source,
            )
            rows.append(row)
        return make_frame(rows, ("topic", "document", *aspects, *stance_columns, "source"))


def _list_stance_values(judgment: Judgment, task: Task) -> list[object]:
    """Return the stance of a judgment, followed by the probability of each label of the task.

    Empty if the task has no stances; None for a probability that the model did not give.
    """
    if not task.stances:
        return []

    probability_by_label: Mapping[str, float] = {}
    reading = judgment.readings.get("stance")
    if reading is not None and reading.probabilities is not None:
        probability_by_label = reading.probabilities

    probabilities = [probability_by_label.get(label) for label in task.stances]
    return [judgment.stance, *probabilities]
