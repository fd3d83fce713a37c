"""What every first stage is: a score for each document, and the best of them the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import TextTable
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics import build_query

_GROUP = 32


class FirstStage(ABC):
    """Scores the documents of a store, or their parts, for a query."""

    def __init__(self, units: TextTable) -> None:
        self.units = units

    @abstractmethod
    def scores(self, query: str) -> NDArray[np.floating[Any]]:
        """The score of every unit, in row order; 0 where nothing matches."""

    def retrieve(self, topics: list[Topic], *, fields: tuple[str, ...], depth: int) -> Iterator[list[Candidate]]:
        """The best units of each topic, topic by topic; empty where none matches."""
        for topic in topics:
            yield select_candidates(topic, self.scores(build_query(topic, fields)), self.units.get_ids, depth)


def select_candidates(
    topic: Topic, scores: NDArray[np.floating[Any]], get_ids: Callable[[list[int]], list[str]], depth: int
) -> list[Candidate]:
    """The `depth` best documents of a topic by score, those of score 0 or less left out.

    Args:
        topic: the topic.
        scores: one score a document of the corpus, in row order.
        get_ids: document ids of rows.
        depth: how many; fewer come back when fewer score above 0.

    Returns:
        candidates by descending score, equal scores by ascending document id (compared as strings), also where the
        last place is tied. Ranks start at 1.
    """
    rows = select_best_rows(scores, depth)
    # What is nearly in order is sorted in no time.
    rows = rows[np.argsort(-scores[rows])]
    ids = get_ids(rows.tolist())
    ordered = sorted(zip((-scores[rows]).tolist(), ids, strict=True))
    return [Candidate(topic.id, ident, rank, -score) for rank, (score, ident) in enumerate(ordered[:depth], start=1)]


def select_best_rows(scores: NDArray[np.floating[Any]], number: int) -> NDArray[np.int64]:
    """The rows of the best `number` scores above 0, and of those tied with the last of them; ascending."""
    if number == 0:
        return np.empty(0, dtype=np.int64)
    # Each of the n best of disjoint groups is the score of a row, so that the n-th best of these is no better than the
    # n-th best score of all: nearly all groups are out by one comparison.
    groups = len(scores) // _GROUP
    best = scores[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    least = _nth_best(best, number) if groups >= number else 0.0
    if least > 0:
        inside = np.arange(_GROUP)[:, np.newaxis] * groups + np.flatnonzero(best >= least)
        rows = np.concatenate([inside.ravel(), np.arange(_GROUP * groups, len(scores))])
        rows = rows[scores[rows] >= least]
    else:
        rows = np.flatnonzero(scores > 0)
    if len(rows) > number:
        rows = rows[scores[rows] >= _nth_best(scores[rows], number)]
    return rows


def _nth_best(scores: NDArray[np.floating[Any]], number: int) -> float:
    return float(np.partition(scores, len(scores) - number)[len(scores) - number])
