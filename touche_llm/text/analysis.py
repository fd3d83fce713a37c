"""Text to index terms: one analysis for every first stage, so that their rankings can be compared."""

from __future__ import annotations

import re

import Stemmer

# Lucene's default English stop words (org.apache.lucene.analysis.en.EnglishAnalyzer), a list of 33.
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
    "this to was will with".split()
)
_WORD = re.compile(r"\w\w+")
NAME = "lower case, words of two or more letters or digits, Lucene's 33 English stop words, Snowball English stemmer"


class Analyzer:
    """Turns text into index terms. WordStemmer of words are remembered, so one analyzer serves a whole corpus."""

    def __init__(self) -> None:
        self._terms = _Terms()

    def analyze(self, text: str) -> list[str]:
        """The index terms of a text, in order, with repetitions."""
        return [term for term in map(self._terms.__getitem__, tokenize(text)) if term is not None]


def tokenize(text: str) -> list[str]:
    """What a text is cut into before stop words are left out and stems are taken."""
    return _WORD.findall(text.lower())


class WordStemmer:
    """The term of a word, computed each time."""

    def __init__(self) -> None:
        # The stemmer's own cache is off: those who use this remember what they make of the term.
        self._stem = Stemmer.Stemmer("english", 0).stemWord

    def stem(self, word: str) -> str | None:
        """The term of one of the `words` of a text; None of a stop word."""
        return None if word in STOP_WORDS else self._stem(word)


class _Terms(dict[str, str | None]):
    """The term of each word that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._stems = WordStemmer()

    def __missing__(self, word: str) -> str | None:
        term = self[word] = self._stems.stem(word)
        return term
