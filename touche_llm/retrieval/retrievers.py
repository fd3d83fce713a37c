"""The first stages that a run can choose from, and the settings that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from touche_llm.corpus.store import TextTable
from touche_llm.data.settings import Option
from touche_llm.errors import Warn
from touche_llm.retrieval.base import Bm25Settings, FirstStage, QueryField, to_texts
from touche_llm.retrieval.bm25 import OkapiIndex, open_index


@dataclass(frozen=True, slots=True)
class Retriever:
    """A first stage by its name.

    Attributes:
        help: What it is, for the help of `--retriever`.
        method: Its implementation, for the metadata.
        open: Opens the index of a table of texts, and builds it first if a function for warnings is given; None if no
            such index is searched.
        section: Section of the configuration that only this first stage has; empty for none.
        has_documents: Whether it is a search engine that stores the documents itself.
    """

    help: str
    method: str
    open: Callable[[TextTable, Bm25Settings, Warn | None], FirstStage] | None = None
    section: str = ""
    has_documents: bool = False


RETRIEVERS: Mapping[str, Retriever] = {
    "bm25": Retriever("index on disk", "bm25s.BM25", open_index),
    "okapi": Retriever(
        "rank-bm25", "rank_bm25.BM25Okapi", lambda table, settings, _: OkapiIndex(table, k1=settings.k1, b=settings.b)
    ),
    "dense": Retriever("vectors", "touche_llm.retrieval.dense", section="dense"),
    "hybrid": Retriever(
        "bm25 and dense",
        "reciprocal rank fusion of bm25s.BM25 and touche_llm.retrieval.dense",
        open_index,
        section="dense",
    ),
    "chatnoir": Retriever("web search", "ChatNoir", section="chatnoir", has_documents=True),
    "elasticsearch": Retriever("a server", "Elasticsearch BM25", section="elasticsearch", has_documents=True),
}

if TYPE_CHECKING:
    RetrieverName = str
else:
    RetrieverName = Literal[tuple(RETRIEVERS)]


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
