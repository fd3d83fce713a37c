"""Sentences of a document store, which are searched, and the pairs made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from touche_llm.corpus.store import DocumentStore
from touche_llm.data.records import Candidate, Topic
from touche_llm.kinds.pairs.documents import PairDocuments
from touche_llm.kinds.search_space import SearchSpace
from touche_llm.retrieval.corpus import FirstStage
from touche_llm.retrieval.sentences import SentenceSettings, retrieve_sentences, select_distinct
from touche_llm.retrieval.settings import QueryField
from touche_llm.text.analysis import Analyzer


class PairSpace(SearchSpace):
    """The sentences of a store, which are searched, and the pairs made of them, which are ranked.

    Attributes:
        settings: Settings of sentence retrieval.
    """

    nothing_found = "no sentence can stand alone (sentences.least_words, most_chars)"

    def __init__(self, store: DocumentStore, settings: SentenceSettings) -> None:
        """Search the arguments of a store and their sentences, which are parts of arguments.

        Args:
            store: Store of the arguments.
            settings: Settings of sentence retrieval.
        """
        super().__init__(store)
        self.settings = settings
        # Arguments and sentences are indexed; sentences are candidates; pairs are judged and ranked.
        self.tables = [store, store.parts]
        self.candidates = store.parts
        self.documents = PairDocuments(store.parts)
        # Shared by all rankings, since it caches stems.
        self._analyzer = Analyzer()

    def search(
        self,
        topics: list[Topic],
        stages: Sequence[FirstStage],
        fields: tuple[QueryField, ...],
        depth: int,
    ) -> Iterator[list[Candidate]]:
        """Yield the sentences of each topic; the settings limit them, not the depth."""
        arguments, sentences = stages
        return retrieve_sentences(
            topics,
            arguments,
            sentences,
            self.store.parts,
            self.settings,
            fields,
        )

    def limit(self, ranking: list[Candidate], depth: int) -> list[Candidate]:
        """Return the best distinct sentences of a ranking.

        The ranking of one query has no near-duplicates, but two queries can find the same text.
        """
        return select_distinct(ranking, self.store.parts, self.settings, self._analyzer)
