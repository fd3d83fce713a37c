"""Tokens of labels in answers that no model has written."""

from __future__ import annotations

import math
from collections.abc import Mapping

from touche_llm.llm.answer import Token


def make_label_token(text: str, span: tuple[int, int], shares: Mapping[str, float]) -> Token:
    """Return a value in the text of an answer as one token, with all labels as alternatives.

    Args:
        text: Text of the answer.
        span: First byte of the value in the text, and the byte after its last one.
        shares: Probability of each label as it is written, above 0; the value is one of them.
    """
    start, end = span
    content = text.encode("utf-8", errors="replace")
    value = content[start:end].decode("utf-8", errors="replace")

    # With the character after the value, no label is the beginning of another.
    following = content[end : end + 1].decode("utf-8", errors="replace")
    return Token(
        at=start,
        token=value + following,
        logprob=math.log(shares[value]),
        top=[(label + following, math.log(share)) for label, share in shares.items()],
    )
