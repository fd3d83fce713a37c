"""First stages that a run can choose from, their settings and interfaces, and selection of candidates by score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from touche_llm.corpus.store import TextTable
from touche_llm.data.records import Candidate, Count, Document, JsonStruct, Topic
from touche_llm.data.topics import build_query
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.settings.section import AnswerKey, Option, Section
from touche_llm.tasks.task import Task

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


class Documents(Protocol):
    """Source of documents."""

    def get(self, document_id: str) -> Document:
        """Return the document with this id; raise DataError if there is none."""

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the given ids that the source does not have."""


class CorpusRecord(JsonStruct, frozen=True, kw_only=True):
    """A corpus, as the metadata of a run records it; what is unknown is null.

    Attributes:
        source: File or dataset of the corpus, or address of the search engine that has it.
        engine: Search engine with its version; null for a corpus on disk.
        index: Index of the search engine; null for a corpus on disk.
        loaded_from: File whose documents were loaded into the search engine.
        sha256: SHA-256 of the file.
        documents: Number of documents.
        bad_lines: Number of lines of the file that are no documents and were skipped.
        sentences: Number of sentences of the documents; null unless pairs are made.
    """

    source: str
    engine: str | None = None
    index: str | None = None
    loaded_from: str | None = None
    sha256: str | None = None
    documents: Count | None = None
    bad_lines: Count | None = None
    sentences: Count | None = None


class Corpus(ABC):
    """Documents of a run, with the first stage that searches them.

    A context manager that closes it.

    Attributes:
        task: Task of the corpus.
        candidates: Units that the first stage retrieves: documents or, if pairs are made,
            sentences.
        documents: Units that a run of the task ranks.
        description: Record for the metadata.
        empty: Error message for a search that found nothing for any topic.
    """

    task: Task
    candidates: Documents
    documents: Documents
    description: CorpusRecord
    empty: str
    is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    @property
    def name(self) -> str:
        """Name of the corpus in messages."""
        return self.description.source

    @abstractmethod
    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Return the candidates of each topic, best first.

        `fields` make the query, `done` is called after each topic.

        `depth` is the maximum number of documents per topic; if pairs are made, the settings limit
        the sentences.
        """

    async def fetch(self, document_ids: Iterable[str]) -> None:  # noqa: B027, most corpora need not fetch
        """Fetch documents from a search engine together, so that later stages do not wait for each."""

    def require_open(self) -> None:
        """Raise UsageError if the corpus was closed."""
        if self.is_closed:
            raise UsageError(f"{self.name}: the corpus is closed; open it again with open_corpus")

    def close(self) -> None:
        """Close the corpus."""
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(
        self, rankings: Iterable[list[Candidate]], source: object, *, ranked: bool = False
    ) -> None:
        """Raise DataError if the corpus lacks a document of these rankings.

        Args:
            rankings: Candidates of each topic.
            source: Where the rankings come from, for the message.
            ranked: Whether they hold the documents of a run (pairs) rather than of a first stage
                (sentences).
        """
        ids = [candidate.document_id for ranking in rankings for candidate in ranking]
        unknown = (self.documents if ranked else self.candidates).find_unknown(ids)
        if unknown:
            raise DataError(
                f"{source}: {len(unknown)} of its documents are not in the corpus {self.name}: {shorten(unknown)}"
            )


class FirstStage(ABC):
    """First stage that scores the documents of a store, or their parts, for a query."""

    def __init__(self, table: TextTable) -> None:
        self.table = table

    @abstractmethod
    def score(self, query: str) -> NDArray[np.floating[Any]]:
        """Return the score of each row, in row order; 0 if no term matches."""

    def retrieve(
        self, topics: list[Topic], *, fields: tuple[str, ...], depth: int
    ) -> Iterator[list[Candidate]]:
        """Yield the candidates of each topic; none if no document matches."""
        for topic in topics:
            yield select_candidates(
                topic, self.score(build_query(topic, fields)), self.table.get_ids, depth
            )


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
