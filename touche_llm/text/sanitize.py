"""Text from outside, neutralised."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache


@cache
def _control_pattern() -> re.Pattern[str]:
    """Return the pattern of the place after a bracket that could begin a control token of a chat format.

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
    less, opening, closing, tilde = (re.escape(characters) for characters in forms.values())
    after_less = rf"(?<=[{less}])(?=\S|$)"
    after_opening = rf"(?<=[{opening}])(?=[^\s\d]|$)"
    after_closing = rf"(?<=[{closing}])(?=[{tilde}])"
    # Most places are after no bracket at all, and are left quickly.
    after_any = f"(?<=[{less}{opening}{closing}])"
    return re.compile(f"{after_any}(?:{after_less}|{after_opening}|{after_closing})")


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
        # A replacement with a group would call a function for each bracket.
        text = _control_pattern().sub(" ", text)
    return SanitizedText(text)
