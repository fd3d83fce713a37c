"""Text from outside: removal of chat-control tokens, and index terms.

Content of web pages is in `passages`.

All first stages share the index terms, so that their rankings are comparable.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache

import Stemmer


@cache
def _control_pattern() -> re.Pattern[str]:
    """Return the pattern of a bracket that could begin a control token of some chat format.

    It matches ASCII brackets and characters that NFKC folds into them, as in `<|im_end|>`, `</s>`,
    `<start_of_turn>`, `<<SYS>>`, `<｜User｜>`, `[INST]`, `[/INST]`, `[gMASK]`, `[|user|]`,
    `[control_8]`, `]~b]`; also at the end of a text, since the template continues after it.
    """
    forms = {"<": "", "[": "", "]": "", "~": ""}
    for start in range(0, sys.maxunicode + 1, 256):
        block = "".join(map(chr, range(start, start + 256)))
        # Checking each character of the other blocks would take seconds.
        if not unicodedata.is_normalized("NFKC", block):
            for character in block:
                for folded in forms.keys() & unicodedata.normalize("NFKC", character):
                    forms[folded] += character
    less, opening, closing, tilde = (f"[{re.escape(characters)}]" for characters in forms.values())
    return re.compile(rf"{less}(?=\S|$)|{opening}(?=[^\s\d]|$)|{closing}(?={tilde})")


class SanitizedText(str):
    """Text returned by `sanitize`; derived strings (slices, other case) are plain `str`."""

    __slots__ = ()


def sanitize(text: str) -> SanitizedText:
    """Return a text without anything that a tokenizer could read as chat control; idempotent.

    Control and format characters are removed (line feeds and tabs stay), since some tokenizers drop
    them and thereby join the characters around them. A space is inserted after each bracket that
    could begin a control token.
    """
    if type(text) is SanitizedText:
        return text
    # A printable text has none of them; checking each character takes thirty times as long.
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        text = "".join(
            c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs")
        )
    # Most texts have no bracket, and matching the pattern also takes thirty times as long.
    if "<" in text or "[" in text or "]" in text or not text.isascii():
        text = _control_pattern().sub(r"\g<0> ", text)
    return SanitizedText(text)


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
