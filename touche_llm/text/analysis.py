"""Analysis of text into index terms; all first stages share it, so that their rankings are comparable."""

from __future__ import annotations

import re
from functools import cache

import Stemmer

# Lucene's default English stop words (org.apache.lucene.analysis.en.EnglishAnalyzer), a list of 33.
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
    "this to was will with".split()
)
_WORD = re.compile(r"\w\w+")
NAME = "lower case, words of two or more letters or digits, Lucene's 33 English stop words, Snowball English stemmer"


class Analyzer:
    """Analyzer of text into index terms; it caches stems, so use one for a whole corpus."""

    def __init__(self) -> None:
        self._stem = cache(WordStemmer().stem)

    def analyze(self, text: str) -> list[str]:
        """Return the index terms of a text, in order, with repetitions."""
        return [term for term in map(self._stem, tokenize(text)) if term is not None]


def tokenize(text: str) -> list[str]:
    """Return the lower-case words of a text, before stop words are removed and words are stemmed."""
    return _WORD.findall(text.lower())


class WordStemmer:
    """Stemmer without cache that removes stop words."""

    def __init__(self) -> None:
        # Without the stemmer's own cache, since callers cache what they derive from the term.
        self._stem = Stemmer.Stemmer("english", 0).stemWord

    def stem(self, word: str) -> str | None:
        """Return the term of a word from `tokenize`; None for a stop word."""
        return None if word in STOP_WORDS else self._stem(word)
