"""Settings and interface of first stages, and selection of candidates by score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from touche_llm.corpus.store import TextTable
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.settings import Option, Section
from touche_llm.data.topics import build_query

QueryField = Literal["title", "description", "narrative", "objects"]


def to_texts(value: Any) -> Any:
    """Return a tuple of texts for a list or a single value; YAML reads the topic id `2` as a number."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in values)


class Bm25Settings(Section):
    """Settings of a BM25 index; scores are computed when it is built, so a change requires a new index."""

    # The variants of bm25s in which documents without a query term score 0. `robertson` ranks like rank-bm25
    # (tests/comparison), except for terms in more than half of the documents.
    method: Annotated[
        Literal["robertson", "lucene", "atire"],
        Option("--bm25-method", "Variant of BM25: robertson, lucene or atire", "Retrieval", metavar="NAME"),
    ] = "robertson"
    k1: Annotated[float, Option("--k1", "Term frequency saturation of BM25", "Retrieval")] = Field(
        default=1.5, ge=0.0, le=100.0
    )
    b: Annotated[float, Option("--b", "Length normalisation of BM25", "Retrieval")] = Field(
        default=0.75, ge=0.0, le=1.0
    )


class ExpansionSettings(Section):
    """Settings of query expansion.

    Attributes:
        use: Whether to expand queries; off until an evaluation shows that it helps.
        weight: Weight of each additional query in the fusion; the topic's own query has 1.
        k: Constant of reciprocal rank fusion.
    """

    use: Annotated[
        bool,
        Option(
            "--query-expansion/--no-query-expansion",
            "Search with three additional queries of the model too",
            "Retrieval",
        ),
    ] = False
    weight: float = Field(0.5, gt=0.0, allow_inf_nan=False)
    k: float = Field(60.0, ge=0.0, allow_inf_nan=False)


_GROUP = 32


class FirstStage(ABC):
    """First stage that scores the documents of a store, or their parts, for a query."""

    def __init__(self, table: TextTable) -> None:
        self.table = table

    @abstractmethod
    def score(self, query: str) -> NDArray[np.floating[Any]]:
        """Return the score of each row, in row order; 0 if no term matches."""

    def retrieve(self, topics: list[Topic], *, fields: tuple[str, ...], depth: int) -> Iterator[list[Candidate]]:
        """Yield the candidates of each topic; none if no document matches."""
        for topic in topics:
            yield select_candidates(topic, self.score(build_query(topic, fields)), self.table.get_ids, depth)


def select_candidates(
    topic: Topic, scores: NDArray[np.floating[Any]], get_ids: Callable[[list[int]], list[str]], depth: int
) -> list[Candidate]:
    """Return the `depth` best documents of a topic with scores above 0.

    Args:
        topic: Topic of the scores.
        scores: Scores in row order, of shape (rows,).
        get_ids: Returns the document ids of rows.
        depth: Max number of candidates.

    Returns:
        Candidates by descending score, ties by ascending document id, also at the cutoff.
    """
    rows = select_best_rows(scores, depth)
    # Sorted by score first: sorting nearly sorted pairs takes far less time.
    rows = rows[np.argsort(-scores[rows])]
    ids = get_ids(rows.tolist())
    ordered = sorted(zip((-scores[rows]).tolist(), ids, strict=True))
    return [Candidate(topic.id, ident, rank, -score) for rank, (score, ident) in enumerate(ordered[:depth], start=1)]


def select_best_rows(scores: NDArray[np.floating[Any]], number: int) -> NDArray[np.int64]:
    """Return the rows of the `number` best scores above 0, including ties at the cutoff; ascending."""
    if number == 0:
        return np.empty(0, dtype=np.int64)
    # The n-th best of the maxima of disjoint groups is a lower bound of the n-th best score, which excludes nearly all
    # groups. For 1,000 of 868,655, one partition of all positive scores takes 4 to 8 times as long.
    groups = len(scores) // _GROUP
    best = scores[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    least = _find_nth_best(best, number) if groups >= number else 0.0
    if least > 0:
        inside = np.arange(_GROUP)[:, np.newaxis] * groups + np.flatnonzero(best >= least)
        rows = np.concatenate([inside.ravel(), np.arange(_GROUP * groups, len(scores))])
        rows = rows[scores[rows] >= least]
    else:
        rows = np.flatnonzero(scores > 0)
    if len(rows) > number:
        rows = rows[scores[rows] >= _find_nth_best(scores[rows], number)]
    return rows


def _find_nth_best(scores: NDArray[np.floating[Any]], number: int) -> float:
    return float(np.partition(scores, len(scores) - number)[len(scores) - number])
