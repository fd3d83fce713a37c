"""Notes: what readers should know about the measured values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import shorten
from touche_llm.evaluation.qrels import STANCE, Coverage, Qrels

if TYPE_CHECKING:
    from pandas import DataFrame


Array = NDArray[np.float64]
# Minimum topics of an interval of a mean, and of a measure of pooled documents; docs/reference/measures.md has the
# simulated coverage behind them.
MIN_TOPICS, MIN_TOPICS_POOLED = 5, 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """The value of a measure, as a function of sums over topics.

    Attributes:
        topics: Topics that contribute.
        counts: Contribution of each topic, of shape (topics, counts).
        formula: Computes the value from sums over topics, (…, counts) to (…).
        documents: Number of pooled documents behind the value; None if the value is the mean of the values by topic.
    """

    topics: tuple[str, ...]
    counts: Array
    formula: Callable[[Array], Array]
    documents: int | None = None

    @property
    def is_mean(self) -> bool:
        """Whether the value is the mean of the values by topic, rather than a measure of pooled documents."""
        return self.documents is None

    @property
    def n(self) -> int:
        """Number of documents, or of topics if the value is a mean over topics."""
        return len(self.topics) if self.documents is None else self.documents

    @property
    def value(self) -> float:
        """Value over all topics; NaN without topics."""
        return self.compute_value(self.topics)

    def by_topic(self) -> Array:
        """Return the value of each topic alone, of shape (topics,)."""
        return self.formula(self.counts)

    def select(self, topics: Collection[str]) -> Array:
        """Return the counts of these topics, in their order, (topics, counts); all must contribute to the estimate."""
        places = {topic: place for place, topic in enumerate(self.topics)}
        return self.counts[[places[topic] for topic in topics]]

    def compute_value(self, topics: Collection[str]) -> float:
        """Return the value over these topics, as for `select`; NaN without topics."""
        return float(self.formula(self.select(topics).sum(axis=0))) if topics else float("nan")


def list_common_topics(one: Estimate, other: Estimate) -> list[str]:
    """Return the topics that contribute to both estimates, in the order of the first."""
    others = set(other.topics)
    return [topic for topic in one.topics if topic in others]


def estimate_mean(values: Mapping[str, float]) -> Estimate:
    """Estimate the mean of values by topic."""
    counts = np.array([(value, 1.0) for value in values.values()], dtype=np.float64).reshape(len(values), 2)
    return Estimate(tuple(values), counts, ratio)


def ratio(counts: Array) -> Array:
    """Divide the first count by the second, (…, 2) to (…)."""
    return np.asarray(counts[..., 0] / counts[..., 1])


@dataclass(frozen=True, slots=True)
class Note:
    """A note on the values of one aspect, such as relevance."""

    aspect: str
    text: str


def _describe_topics(run: ParsedRun, qrels: Qrels, aspect: str) -> list[Note]:
    """Name the judged topics that the run lacks, and the topics that do not count."""
    covered = Coverage.of(run, qrels, aspect)
    chosen = covered.left_out if run.chosen_topics is None else run.chosen_topics
    missing = [Note(aspect, f"topics judged, but {covered.describe_missing()}")] if covered.missing else []
    topics = {
        "judged, but not chosen for the run, so they do not count": [
            topic for topic in covered.left_out if topic not in chosen
        ],
        "judged, but left out of this evaluation": [topic for topic in covered.left_out if topic in chosen],
        "in the run, but not judged, so they do not count": [
            topic for topic in run.rankings if topic not in qrels.judged_topics[aspect]
        ],
    }
    return missing + [Note(aspect, f"topics {problem}: {shorten(names)}") for problem, names in topics.items() if names]


def describe_grades(
    run: ParsedRun, qrels: Qrels, aspect: str, condensed: Sequence[str], cutoff: int, bounds: DataFrame
) -> list[Note]:
    """Describe topics that count in an unexpected way, and what unjudged documents could change.

    The organisers' script includes the topics `condensed`; the bounds are those of `significance.compute_bounds`.
    """
    grades = qrels.grades[aspect]
    highest = {topic: max(judged.values()) for topic, judged in grades.items()}
    topics = {
        "without a grade above 0, so they count 0": [topic for topic, most in highest.items() if most <= 0.0],
        f"without a grade of 1 or more, so they count 0 for P@{cutoff} and recall": [
            topic for topic, most in highest.items() if 0.0 < most < 1.0
        ],
        f"with fewer than {cutoff} documents in the run; the remaining places count as unjudged": [
            topic for topic in grades if 0 < len(run.rankings.get(topic, ())) < cutoff
        ],
        f"left out of touche_nDCG@{cutoff}, which needs a judged document among the first {cutoff} and a grade "
        "of 1 or more": [topic for topic in grades if topic not in condensed],
    }
    notes = _describe_topics(run, qrels, aspect)
    notes += [Note(aspect, f"topics {problem}: {shorten(names)}") for problem, names in topics.items() if names]
    shared = grades.keys() & run.rankings.keys()
    documents = ((topic, candidate.document_id) for topic in shared for candidate in run.rankings[topic])
    if shared and not any(document in grades[topic] for topic, document in documents):
        notes.append(Note(aspect, "no document of the run is judged, though some of its first stage are"))
    if unjudged := int(bounds["unjudged"].sum()):
        topics_with = int((bounds["unjudged"] > 0).sum())
        notes.append(
            Note(
                f"{aspect} nDCG@{cutoff}",
                f"unjudged documents among the first {cutoff}, which count 0: {unjudged} in {topics_with} "
                f"topic{'s' if topics_with > 1 else ''}; judged, they could make it "
                f"{bounds['lowest'].mean():.4f} to {bounds['highest'].mean():.4f}",
            )
        )
    return notes


def describe_stances(run: ParsedRun, qrels: Qrels) -> list[Note]:
    """Describe the topics that do not count, and the judged documents of the run that have no label in it."""
    notes = _describe_topics(run, qrels, STANCE)
    if not run.stances:
        return [*notes, Note(STANCE, "the run has no stances, only Q0 in its second column")]
    without = [
        f"topic {topic} document {candidate.document_id}"
        for topic, truth in qrels.stances.items()
        for candidate in run.rankings.get(topic, [])
        if candidate.document_id in truth and (topic, candidate.document_id) not in run.stances
    ]
    text = "judged documents without a label in the run, so they do not count"
    return [*notes, Note(STANCE, f"{text}: {shorten(without, 3)}")] if without else notes


def format_notes(notes: Mapping[str, Sequence[Note]]) -> list[str]:
    """Format the notes of several runs, given by name, as lines.

    A note on several aspects of the same runs, or on all runs, is written once.
    """
    runs: dict[Note, list[str]] = {}
    for name, of_run in notes.items():
        for note in of_run:
            runs.setdefault(note, []).append(name)
    aspects: dict[tuple[str, str], list[str]] = {}
    for note, names in runs.items():
        where = "" if len(names) == len(notes) else f"{', '.join(names)}: "
        aspects.setdefault((where, note.text), []).append(note.aspect)
    return [f"{where}{', '.join(names)}: {text}" for (where, text), names in aspects.items()]


def describe_missing_intervals(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note if a row with the columns `value` and `low` has a value without an interval, else nothing."""
    if not any(isnan(row["low"]) and not isnan(row["value"]) for row in rows):
        return []
    return [
        f"no 95 % interval where topics are few: a mean needs {MIN_TOPICS}, a measure of pooled documents "
        f"{MIN_TOPICS_POOLED}"
    ]


def describe_fitted(name: str, run: ParsedRun, fitted_on: Collection[str], qrels: Qrels) -> list[str]:
    """Return a note on a run that is measured on topics that its stance thresholds were fitted on, else nothing."""
    both = [topic for topic in qrels.stances if topic in fitted_on and topic in run.rankings]
    if not both:
        return []
    return [
        f"{name}: stance: the thresholds were fitted on {len(both)} of these topics, so its values say nothing about "
        f"other topics; `touche-llm calibrate` prints held-out values: {shorten(both)}"
    ]
