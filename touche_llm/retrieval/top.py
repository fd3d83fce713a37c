"""What every first stage is: a score for each document, and the best of them the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import Units
from touche_llm.records import Candidate, Topic


class FirstStage(ABC):
    """Scores the documents of a store, or their parts, for a query."""

    def __init__(self, units: Units) -> None:
        self.units = units

    @abstractmethod
    def scores(self, query: str) -> NDArray[np.floating[Any]]:
        """The score of every unit, in row order; 0 where nothing matches."""

    def retrieve(self, topics: list[Topic], *, fields: tuple[str, ...], depth: int) -> Iterator[list[Candidate]]:
        """The best units of each topic, topic by topic; empty where none matches."""
        for topic in topics:
            yield top_candidates(topic, self.scores(query_text(topic, fields)), self.units.ids_of, depth)


def top_candidates(
    topic: Topic, scores: NDArray[np.floating[Any]], ids_of: Callable[[list[int]], list[str]], depth: int
) -> list[Candidate]:
    """The `depth` best documents of a topic by score, those of score 0 or less left out.

    Args:
        topic: the topic.
        scores: one score a document of the corpus, in row order.
        ids_of: document ids of rows.
        depth: how many; fewer come back when fewer score above 0.

    Returns:
        candidates by descending score, equal scores by ascending document id (compared as strings), also where the
        last place is tied. Ranks start at 1.
    """
    rows = np.flatnonzero(scores > 0)
    if len(rows) > depth:
        least = np.partition(scores[rows], len(rows) - depth)[len(rows) - depth]
        rows = rows[scores[rows] >= least]
    ids = ids_of(rows.tolist())
    ordered = sorted(zip(scores[rows].tolist(), ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [Candidate(topic.id, ident, rank, score) for rank, (score, ident) in enumerate(ordered[:depth], start=1)]


def query_text(topic: Topic, fields: tuple[str, ...]) -> str:
    """The query of a topic: the named fields one after the other."""
    parts = []
    for name in fields:
        value = getattr(topic, name)
        parts.append(" ".join(value or ()) if name == "objects" else value)
    return " ".join(parts)
