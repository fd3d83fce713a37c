"""The best documents by score, the same way for every first stage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from touche_llm.records import Candidate, Topic


def top_candidates(
    topic: Topic, scores: NDArray[np.floating], ids_of: Callable[[list[int]], list[str]], depth: int
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
