"""Settings of the first stage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from touche_llm.data.settings import Option, Section
from touche_llm.retrieval.bm25 import Bm25Settings

QueryField = Literal["title", "description", "narrative", "objects"]


def to_texts(value: Any) -> Any:
    """Return a tuple of texts for a list or a single value; YAML reads the topic id `2` as a number."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in values)


class RetrieverConfig(Bm25Settings):
    """Settings of the first stage; `method`, `k1` and `b` belong to the index."""

    name: Annotated[
        Literal["bm25", "okapi", "dense", "hybrid", "chatnoir", "elasticsearch"],
        Option(
            "--retriever",
            "bm25 (index on disk), okapi (rank-bm25), dense (vectors), hybrid (bm25 and dense), elasticsearch "
            "or chatnoir",
            "Retrieval",
            metavar="NAME",
        ),
    ] = "bm25"
    query: Annotated[
        tuple[QueryField, ...],
        BeforeValidator(to_texts),
        Field(min_length=1),
        Option(
            "--query",
            "Topic field of the query: title, description, narrative or objects; repeatable",
            "Retrieval",
            metavar="FIELD",
        ),
    ] = ("title",)

    @property
    def is_dense(self) -> bool:
        """Whether vectors of the documents are searched."""
        return self.name in ("dense", "hybrid")

    @property
    def bm25(self) -> Bm25Settings:
        """Settings of the index alone."""
        return Bm25Settings(method=self.method, k1=self.k1, b=self.b)


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
