"""An estimate over topics, kept as the contribution of each topic, so that any choice of topics can be estimated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
