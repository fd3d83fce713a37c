"""Text from outside that cannot act as chat control."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache


@cache
def _control() -> re.Pattern[str]:
    """The pattern of a bracket that could begin a control token of some chat format.

    In ASCII or in a form that a normalising tokeniser folds into ASCII: `<|im_end|>`, `</s>`, `<start_of_turn>`,
    `<<SYS>>`, `<｜User｜>`, `[INST]`, `[/INST]`, `[gMASK]`, `[|user|]`, `[control_8]`, `]~b]`. Also one at the end of a
    text, since the template goes on.
    """
    forms = {"<": "", "[": "", "]": "", "~": ""}
    for start in range(0, sys.maxunicode + 1, 256):
        block = "".join(map(chr, range(start, start + 256)))
        # Looking at each character of the other blocks would take seconds.
        if not unicodedata.is_normalized("NFKC", block):
            for character in block:
                for folded in forms.keys() & unicodedata.normalize("NFKC", character):
                    forms[folded] += character
    less, opening, closing, tilde = (f"[{re.escape(characters)}]" for characters in forms.values())
    return re.compile(rf"{less}(?=\S|$)|{opening}(?=[^\s\d]|$)|{closing}(?={tilde})")


class SanitizedText(str):
    """A text that `sanitize` gave. What is made of it (a part, another case) is a plain text again."""

    __slots__ = ()


def sanitize(text: str) -> SanitizedText:
    """The text with nothing in it that a tokeniser could take for chat control; applying it again changes nothing.

    Control and format characters go (line feeds and tabs stay), since some tokenisers drop them and join what they
    parted. A space parts each bracket that could begin a control token from what follows.
    """
    if type(text) is SanitizedText:
        return text
    # What is printable as a whole has none of them; looking at each character takes thirty times as long.
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    # So does the pattern where a text has no bracket, and most have none.
    if "<" in text or "[" in text or "]" in text or not text.isascii():
        text = _control().sub(r"\g<0> ", text)
    return SanitizedText(text)
