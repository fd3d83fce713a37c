"""Estimates of tokens by characters, for engines without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from touche_llm.llm.request import Message

# Characters per token, about, in English text.
TOKEN_CHARS = 4


class EstimatingTokenizer:
    """Tokenizer that estimates tokens by the number of characters."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the estimated number of prompt tokens of a chat."""
        return estimate_tokens(join_contents(messages))

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        return text[: max_tokens * TOKEN_CHARS]


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens of a text."""
    return round(len(text) / TOKEN_CHARS)


def join_contents(messages: Sequence[Message]) -> str:
    """Return the texts of a chat's messages as one text, without the chat template."""
    return "".join(message.content for message in messages)


def count_shared(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts, in characters."""
    # Bisection compares slices, which is far faster than comparing single characters.
    equal_length = 0
    max_length = min(len(text), len(other))
    while equal_length < max_length:
        # Rounded up, so that each step makes the range smaller.
        middle = (equal_length + max_length + 1) // 2
        if text[equal_length:middle] == other[equal_length:middle]:
            equal_length = middle
        else:
            max_length = middle - 1
    return equal_length
