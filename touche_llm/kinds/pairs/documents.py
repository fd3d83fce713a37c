"""Sentences, and pairs of them as documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Document
from touche_llm.errors import DataError

SEPARATOR = ","
NO_ROLE = "NONE"
CLAIM = "CLAIM"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A judged sentence that takes a side, with the rows of its argument and of itself in the corpus.

    Attributes:
        score: Its quality, from 0 to 1.
        claim: Probability that it is a claim minus the probability that it is a premise.
    """

    id: str
    argument: int
    place: int
    side: str
    score: float
    claim: float
    rank: int


class PairDocuments:
    """Pairs as documents: the id is `a,b`, the text is the two sentences, each on a line of its own."""

    def __init__(self, sentences: Parts) -> None:
        self._sentences = sentences

    def get(self, document_id: str) -> Document:
        """Return the pair with this id.

        Raise DataError if the id is not a pair or a sentence is unknown.
        """
        if problem := describe_pair_problem(document_id):
            raise DataError(f"document {document_id!r}: {problem}")
        texts = [
            " ".join(self._sentences.get(sentence).text.split())
            for sentence in document_id.split(SEPARATOR)
        ]
        return Document(document_id, "\n".join(texts))

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the given ids with a sentence that the corpus lacks, in the given order."""
        pairs = list(document_ids)
        missing = set(
            self._sentences.find_unknown(
                sentence for pair in pairs for sentence in pair.split(SEPARATOR)
            )
        )
        return [pair for pair in pairs if not missing.isdisjoint(pair.split(SEPARATOR))]


def describe_pair_problem(document_id: str) -> str:
    """Describe why an id is not that of a pair; return an empty text if it is."""
    parts = document_id.split(SEPARATOR)
    if len(parts) != 2 or not all(parts):
        return "not a pair: two sentence ids separated by a comma"
    return "a sentence paired with itself" if parts[0] == parts[1] else ""


def reverse_pair(document_id: str) -> str:
    """Return the id of the pair in reversed order."""
    return SEPARATOR.join(reversed(document_id.split(SEPARATOR)))
