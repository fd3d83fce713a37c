"""Settings that first stages share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from touche_llm.settings.section import Option, Section

QueryField = Literal["title", "description", "narrative", "objects"]


def to_texts(value: Any) -> Any:
    """Return a tuple of texts for a list or a single value.

    YAML reads the topic id `2` as a number.
    """
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(
        str(item) if isinstance(item, int) and not isinstance(item, bool) else item
        for item in values
    )


class Bm25Settings(Section):
    """Settings of a BM25 index.

    Scores are computed when it is built, so a change requires a new index.
    """

    # The variants of bm25s in which documents without a query term score 0. `robertson` ranks like
    # rank-bm25 (tests/comparison), except for terms in more than half of the documents.
    method: Annotated[
        Literal["robertson", "lucene", "atire"],
        Option(
            "--bm25-method",
            "Variant of BM25: robertson, lucene or atire",
            "Retrieval",
            metavar="NAME",
        ),
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
