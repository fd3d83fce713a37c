"""Coverage: the share of the judged topics that a run is measured on."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import shorten
from touche_llm.evaluation.qrels import STANCE, Qrels


@dataclass(frozen=True, slots=True)
class Coverage:
    """The judged topics behind the measures of one aspect.

    Attributes:
        topics: Number of judged topics that the run is measured on.
        missing: Number of these that the run lacks.
        judged: Number of topics that the qrels file judges.
        graded: Whether a missing topic counts 0; stances are measured over documents that the run has.
    """

    topics: int
    missing: int
    judged: int
    graded: bool = True

    @property
    def is_partial(self) -> bool:
        """Whether judged topics were left out."""
        return self.topics < self.judged

    def __str__(self) -> str:
        text = f"{self.topics} of {self.judged} judged topics"
        if self.missing:
            text += f"; {self.missing} not in the run" + (", which count 0" if self.graded else "")
        return text


def measure_coverage(run: ParsedRun, qrels: Qrels, aspect: str) -> Coverage:
    """Count the judged topics of one aspect that a run is measured on."""
    graded = aspect != STANCE
    topics = qrels.grades[aspect] if graded else qrels.stances
    missing = sum(topic not in run.rankings for topic in topics)
    return Coverage(len(topics), missing, len(qrels.judged_topics[aspect]), graded)


def describe_limits(names: Iterable[str]) -> list[str]:
    """Return a note on runs that their own configurations limited to some topics, if there are any."""
    listed = ", ".join(names)
    return (
        [f"{listed}: limited to some topics by limit_topics or topic in config.yaml; no other topic counts"]
        if listed
        else []
    )


def describe_fitted(name: str, run: ParsedRun, fitted_on: Collection[str], qrels: Qrels) -> list[str]:
    """Return a note on a run whose stances have thresholds that were fitted on topics it is measured by, if it has.

    Args:
        name: What to call the run.
        run: Its lines.
        fitted_on: Ids of the topics that its thresholds were fitted on.
        qrels: The judgments that it is measured by.
    """
    both = [topic for topic in qrels.stances if topic in fitted_on and topic in run.rankings]
    if not both:
        return []
    return [
        f"{name}: stance: the thresholds were fitted on {len(both)} of these topics, so its values say nothing about "
        f"other topics; `touche-llm calibrate` prints held-out values: {shorten(both)}"
    ]
