"""Selection of the best documents of a first stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.data.records import Candidate, Topic


def select_candidates(
    topic: Topic,
    scores: NDArray[np.floating[Any]],
    get_ids: Callable[[list[int]], list[str]],
    depth: int,
) -> list[Candidate]:
    """Return the `depth` best documents of a topic with scores above 0.

    By descending score, ties by ascending document id, also at the cutoff. The scores are in row
    order, of shape (rows,); `get_ids` returns the document ids of rows.
    """
    rows = select_best_rows(scores, depth)
    # Sorted by score first: sorting nearly sorted pairs takes far less time.
    rows = rows[np.argsort(-scores[rows])]
    ids = get_ids(rows.tolist())
    ordered = sorted(zip((-scores[rows]).tolist(), ids, strict=True))
    return [
        Candidate(topic.id, ident, rank, -score)
        for rank, (score, ident) in enumerate(ordered[:depth], start=1)
    ]


def select_best_rows(scores: NDArray[np.floating[Any]], number: int) -> NDArray[np.int64]:
    """Return the rows of the `number` best scores above 0, including ties at the cutoff.

    Ascending.
    """
    rows = np.flatnonzero(scores > 0)
    if 0 < number < len(rows):
        found = scores[rows]
        rows = rows[found >= np.partition(found, len(found) - number)[len(found) - number]]
    return rows if number else rows[:0]
