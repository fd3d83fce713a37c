"""Settings of the first stage, and first stages by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from touche_llm.settings.section import AnswerKey, Option, Section

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


class Retriever(NamedTuple):
    """A first stage: for the help and for the metadata; its section of the configuration, if any.

    `has_documents` is true of a search engine that stores the documents itself.
    """

    help: str
    method: str
    section: str = ""
    has_documents: bool = False


RetrieverName = Literal["bm25", "okapi", "dense", "hybrid", "chatnoir", "elasticsearch"]
_DENSE = "touche_llm.retrieval.dense"
RETRIEVERS: Mapping[str, Retriever] = {
    "bm25": Retriever("index on disk", "bm25s.BM25"),
    "okapi": Retriever("rank-bm25", "rank_bm25.BM25Okapi"),
    "dense": Retriever("vectors", _DENSE, "dense"),
    "hybrid": Retriever(
        "bm25 and dense", f"reciprocal rank fusion of bm25s.BM25 and {_DENSE}", "dense"
    ),
    "chatnoir": Retriever("web search", "ChatNoir", "chatnoir", has_documents=True),
    "elasticsearch": Retriever(
        "a server", "Elasticsearch BM25", "elasticsearch", has_documents=True
    ),
}


class RetrieverConfig(Bm25Settings):
    """Settings of the first stage; `method`, `k1` and `b` belong to the index."""

    name: Annotated[
        RetrieverName,
        Option(
            "--retriever",
            ", ".join(f"{name} ({retriever.help})" for name, retriever in RETRIEVERS.items()),
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
        # An embedding model gets the query.
        AnswerKey.ENTERS,
    ] = ("title",)

    @property
    def kind(self) -> Retriever:
        """The chosen first stage."""
        return RETRIEVERS[self.name]

    @property
    def is_dense(self) -> bool:
        """Whether vectors of the documents are searched."""
        return self.kind.section == "dense"

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
