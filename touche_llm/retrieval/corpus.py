"""Protocols of a corpus and of a first stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import TextTable
from touche_llm.data.records import Candidate, Count, Document, JsonStruct, Topic
from touche_llm.data.topics.reading import build_query
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.retrieval.selection import select_candidates
from touche_llm.retrieval.settings import QueryField
from touche_llm.tasks.task import Task


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
        sentences: Number of sentences of the documents; null unless they are retrieved.
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
        candidates: Units that the first stage retrieves: documents, or the sentences that they are
            made of.
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

        `depth` is the maximum number of documents per topic; sentences that documents are made of
        are limited by the settings of their retrieval.
        """

    def limit(self, ranking: list[Candidate], depth: int) -> list[Candidate]:
        """Return the best candidates of a ranking that was fused of several searches.

        Arguments as `search`.
        """
        return ranking[:depth]

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
        documents = self.documents if ranked else self.candidates
        document_ids = [candidate.document_id for ranking in rankings for candidate in ranking]
        unknown = documents.find_unknown(document_ids)
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
        """Yield the candidates of each topic; none if no document matches.

        Args:
            topics: Topics to search for.
            fields: Fields of a topic that make the query.
            depth: Maximum number of candidates per topic.
        """
        for topic in topics:
            query = build_query(topic, fields)
            yield select_candidates(topic, self.score(query), self.table.get_ids, depth)
