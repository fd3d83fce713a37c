"""Tokens of labels in answers that no model has written."""

from __future__ import annotations

import math
from collections.abc import Mapping

from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import slice_bytes


def make_label_token(text: str, span: tuple[int, int], shares: Mapping[str, float]) -> Token:
    """Return a value in the text of an answer as one token, with all labels as alternatives.

    The character after the value is part of the token, and of each alternative: with it, no label
    is the beginning of another one.

    Args:
        text: Text of the answer.
        span: First byte of the value in the text, and the byte after its last one.
        shares: Probability of each label as it is written, above 0; the value is one of them.
    """
    start, end = span
    value = slice_bytes(text, start, end)
    next_character = slice_bytes(text, end, end + 1)

    alternatives: list[tuple[str, float]] = []
    for label, share in shares.items():
        alternatives.append((label + next_character, math.log(share)))
    return Token(
        at=start,
        token=value + next_character,
        logprob=math.log(shares[value]),
        top=alternatives,
    )
