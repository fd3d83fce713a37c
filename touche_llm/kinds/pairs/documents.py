"""Pairs of sentences as documents."""

from __future__ import annotations

from collections.abc import Iterable

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Document
from touche_llm.errors import DataError

_SEPARATOR = ","


class PairDocuments:
    """Pairs as documents, with the id `a,b` and each sentence on a line of its own.

    Attributes:
        sentences: Sentences of the corpus.
    """

    def __init__(self, sentences: Parts) -> None:
        self.sentences = sentences

    def get(self, document_id: str) -> Document:
        """Return the pair with this id.

        Raises:
            DataError: The id is not that of a pair, or a sentence is unknown.
        """
        problem = find_pair_problem(document_id)
        if problem is not None:
            raise DataError(f"document {document_id!r}: {problem}")

        lines: list[str] = []
        for sentence_id in split_pair(document_id):
            sentence = self.sentences.get(sentence_id)
            lines.append(" ".join(sentence.text.split()))
        return Document(document_id, "\n".join(lines))

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids of pairs with a sentence that the corpus lacks, in the given order."""
        pairs = [*document_ids]

        sentence_ids: list[str] = []
        for pair in pairs:
            sentence_ids.extend(split_pair(pair))
        unknown = set(self.sentences.find_unknown(sentence_ids))

        return [pair for pair in pairs if not unknown.isdisjoint(split_pair(pair))]


def join_pair(first: str, second: str) -> str:
    """Return the id of the pair of two sentences, in this order."""
    return f"{first}{_SEPARATOR}{second}"


def split_pair(document_id: str) -> list[str]:
    """Return the ids of a pair's sentences, in the order of the pair."""
    return document_id.split(_SEPARATOR)


def reverse_pair(document_id: str) -> str:
    """Return the id of the pair in reversed order."""
    return _SEPARATOR.join(reversed(split_pair(document_id)))


def find_pair_problem(document_id: str) -> str | None:
    """Return why an id is not that of a pair; None if it is."""
    sentence_ids = split_pair(document_id)
    if len(sentence_ids) != 2 or not all(sentence_ids):
        return "not a pair: two sentence ids separated by a comma"

    first, second = sentence_ids
    if first == second:
        return "a sentence paired with itself"
    return None
