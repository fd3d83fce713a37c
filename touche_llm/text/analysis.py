"""Words of texts for BM25."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import Stemmer

# Lucene's default English stop words (org.apache.lucene.analysis.en.EnglishAnalyzer), a list of 33.
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
    "this to was will with".split()
)
_WORD = re.compile(r"\w\w+")
ANALYSIS = (
    "lower case, words of two or more letters or digits, Lucene's 33 English stop words, "
    "Snowball English stemmer"
)


class Analyzer:
    """Analyzer of text into index terms; it caches stems, so use one for a whole corpus."""

    def __init__(self) -> None:
        self._stem = cache(make_stemmer())

    def analyze(self, text: str) -> list[str]:
        """Return the index terms of a text, in order, with repetitions."""
        return [term for term in map(self._stem, tokenize(text)) if term is not None]


def tokenize(text: str) -> list[str]:
    """Return the lower-case words of a text, before stop words are removed and words are stemmed."""
    return _WORD.findall(text.lower())


def make_stemmer() -> Callable[[str], str | None]:
    """Return a function from words of `tokenize` to their terms, None for a stop word.

    Callers cache the terms.
    """
    stem: Callable[[str], str] = Stemmer.Stemmer("english", 0).stemWord
    return lambda word: None if word in STOP_WORDS else stem(word)
