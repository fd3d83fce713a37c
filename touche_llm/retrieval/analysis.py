"""Text to index terms: one analysis for every first stage, so that their rankings can be compared."""

from __future__ import annotations

import re

import Stemmer

# Lucene's default English stop words (org.apache.lucene.analysis.en.EnglishAnalyzer), a list of 33.
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
    "this to was will with".split()
)
_WORD = re.compile(r"(?u)\b\w\w+\b")
NAME = "lower case, words of two or more letters or digits, Lucene's 33 English stop words, Snowball English stemmer"


class Analyser:
    """Turns text into index terms. Stems of words are remembered, so one analyser serves a whole corpus."""

    def __init__(self) -> None:
        # The stemmer's own cache is off: ours maps straight to the term.
        self._stem = Stemmer.Stemmer("english", 0).stemWord
        self._terms: dict[str, str | None] = {}

    def terms(self, text: str) -> list[str]:
        """The index terms of a text, in order, with repetitions."""
        terms = []
        for word in _WORD.findall(text.lower()):
            try:
                term = self._terms[word]
            except KeyError:
                term = self._terms[word] = None if word in STOP_WORDS else self._stem(word)
            if term is not None:
                terms.append(term)
        return terms
