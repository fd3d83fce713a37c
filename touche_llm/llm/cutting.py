"""Cutting documents that do not fit the context: in the model's tokens, at a sentence end. Prompts are never cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict

from touche_llm.errors import PromptError
from touche_llm.llm.request import Message, Request

# What stands where the rest of a document is left out; nothing in it could be chat control.
CUT_MARK = " …"
_SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", '." ', '!" ', '?" ')


class Fit(BaseModel):
    """How much of a document fits: all of it where `kept_chars` is None. `prompt_tokens` is 0 where not counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_tokens: int
    kept_chars: int | None = None


async def measure(
    count: Callable[[tuple[Message, ...]], Awaitable[int]],
    head: Callable[[str, int], Awaitable[str]],
    request: Callable[[str], Request],
    document: str,
    room: int,
) -> Fit:
    """How much of a document a request can hold.

    Args:
        count: number of prompt tokens of a chat.
        head: the beginning of a text that has about so many tokens.
        request: makes the request from a text of the document.
        document: the whole text.
        room: most prompt tokens.

    Raises:
        PromptError: the prompt alone leaves no room for the document.
    """
    whole = request(document)
    tokens_of_whole = await count(whole.messages)
    if tokens_of_whole <= room:
        return Fit(prompt_tokens=tokens_of_whole)
    bare = await count(request(CUT_MARK).messages)
    tokens = room - bare
    # Counted again after each cut: tokens merge at the seam, and a tokeniser may normalise the text.
    while tokens > 0:
        kept = _at_sentence_end(await head(document, tokens))
        counted = await count(request(kept + CUT_MARK).messages)
        if kept and counted <= room:
            return Fit(prompt_tokens=counted, kept_chars=len(kept))
        tokens = min(tokens - (counted - room), tokens * 9 // 10)
    origin = whole.origin
    raise PromptError(
        f"prompt {origin.prompt}, topic {origin.topic_id}, document {origin.document_id}: the prompt needs {bare} "
        f"tokens without the document, {room} are left beside the answer: serve the model with a longer context "
        "or shorten the prompt"
    )


def _at_sentence_end(text: str) -> str:
    """The text up to its last sentence end, if that is in its last fifth; else up to its last word."""
    least = len(text) * 4 // 5
    ends = ((text.rfind(mark), len(mark.rstrip())) for mark in _SENTENCE_ENDS)
    end = max((place + length for place, length in ends if place >= max(least, 1)), default=0)
    if end:
        return text[:end]
    space = text.rfind(" ")
    return text[:space] if space > 0 else text
