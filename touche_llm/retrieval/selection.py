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

    By descending score, ties by ascending document id, also at the cutoff.

    Args:
        topic: Topic of the candidates.
        scores: Score of each row of a table, of shape (rows,).
        get_ids: Returns the document ids of rows.
        depth: Maximum number of documents.
    """
    rows = select_best_rows(scores, depth)
    # Sorted by score first: sorting nearly sorted pairs takes far less time.
    rows = rows[np.argsort(-scores[rows])]
    negative_scores = (-scores[rows]).tolist()
    document_ids = get_ids(rows.tolist())
    ordered = sorted(zip(negative_scores, document_ids, strict=True))
    return [
        Candidate(topic.id, document_id, rank, -negative_score)
        for rank, (negative_score, document_id) in enumerate(ordered[:depth], start=1)
    ]


def select_best_rows(scores: NDArray[np.floating[Any]], number: int) -> NDArray[np.int64]:
    """Return the rows of the `number` best scores above 0, ascending.

    Rows with the same score as the last of these are included.
    """
    rows = np.flatnonzero(scores > 0)
    if number == 0:
        return rows[:0]
    if number >= len(rows):
        return rows

    found_scores = scores[rows]
    cutoff_place = len(rows) - number
    cutoff = np.partition(found_scores, cutoff_place)[cutoff_place]
    best_rows: NDArray[np.int64] = rows[found_scores >= cutoff]
    return best_rows
