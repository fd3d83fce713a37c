"""What a first stage searches of a document store, and what a run ranks of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from touche_llm.corpus.store import DocumentStore, TextTable
from touche_llm.data.records import Candidate, Topic
from touche_llm.retrieval.corpus import Documents, FirstStage
from touche_llm.retrieval.settings import QueryField


class SearchSpace:
    """The documents of a store, which are searched and ranked.

    Attributes:
        store: Open store of the corpus.
        tables: Tables that a first stage scores.
        candidates: What the first stage retrieves.
        documents: What a run ranks.
        nothing_found: Reasons for which a search can find nothing, beside those of the first stage.
    """

    nothing_found: str | None = None

    def __init__(self, store: DocumentStore) -> None:
        self.store = store
        self.tables: Sequence[TextTable] = [store]
        self.candidates: Documents = store
        self.documents: Documents = store

    def search(
        self,
        topics: list[Topic],
        stages: Sequence[FirstStage],
        fields: tuple[QueryField, ...],
        depth: int,
    ) -> Iterator[list[Candidate]]:
        """Yield the candidates of each topic, best first.

        Args:
            topics: Topics to search for.
            stages: An open first stage for each of the tables.
            fields: Fields of a topic that make the query.
            depth: Maximum number of candidates per topic.
        """
        # There is one table, that of the documents.
        (stage,) = stages
        return stage.retrieve(topics, fields=fields, depth=depth)

    def limit(self, ranking: list[Candidate], depth: int) -> list[Candidate]:
        """Return the best candidates of a ranking that was fused of several searches."""
        return ranking[:depth]
