"""Cutting documents that do not fit the context: to their best passages, or in the model's tokens at a sentence end.

Prompts are never cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from touche_llm.data.json_records import Count, JsonStruct
from touche_llm.data.records import Cut
from touche_llm.errors import PromptError
from touche_llm.llm.request import Message, Request
from touche_llm.text.passages import RankedPassages

# What stands where the rest of a document is left out; nothing in it could be chat control.
CUT_MARK = " …"
_SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", '." ', '!" ', '?" ')


class Truncation(JsonStruct, frozen=True, omit_defaults=True):
    """How much of a document fits: all of it where nothing else is said. `prompt_tokens` is 0 where not counted.

    Else so many of its best `passages`, or the first `kept_chars` characters: of the best passage if both are there.
    """

    prompt_tokens: Count
    kept_chars: Count | None = None
    passages: Count | None = None

    @property
    def whole(self) -> bool:
        """Whether all of the document fits."""
        return self.kept_chars is None and self.passages is None


def apply_truncation(document: str | RankedPassages, fit: Truncation) -> tuple[str, Cut | None]:
    """The text of a document that a request holds, and what that leaves out, or None where it is everything."""
    if isinstance(document, str):
        if fit.kept_chars is None:
            return document, None
        cut = Cut(kept_chars=fit.kept_chars, of_chars=len(document), prompt_tokens=fit.prompt_tokens)
        return document[: fit.kept_chars] + CUT_MARK, cut
    if fit.kept_chars is not None:
        excerpt = document.head(fit.kept_chars)
        text = excerpt.text + CUT_MARK
    else:
        excerpt = document.whole if fit.passages is None else document.best(fit.passages)
        text = excerpt.text
        if fit.whole and document.complete and not document.only_boilerplate:
            return text, None
    return text, Cut(
        kept_chars=excerpt.chars,
        of_chars=len(document.text),
        prompt_tokens=fit.prompt_tokens,
        parts=list(excerpt.parts),
        only_boilerplate=document.only_boilerplate,
    )


async def fit_document(
    count: Callable[[tuple[Message, ...]], Awaitable[int]],
    head: Callable[[str, int], Awaitable[str]],
    request: Callable[[str], Request],
    document: str | RankedPassages,
    room: int,
) -> Truncation:
    """How much of a document a request can hold.

    Of excerpts that do not fit as a whole, as many of the best passages as fit; where not even one does, the head of
    the best.

    Args:
        count: number of prompt tokens of a chat.
        head: the beginning of a text that has about so many tokens.
        request: makes the request from a text of the document.
        document: the whole text, or its excerpts.
        room: most prompt tokens.

    Raises:
        PromptError: the prompt alone leaves no room for the document.
    """
    text = document if isinstance(document, str) else document.whole.text
    tokens_of_whole = await count(request(text).messages)
    if tokens_of_whole <= room:
        return Truncation(prompt_tokens=tokens_of_whole)
    if isinstance(document, str):
        return await _measure_head(count, head, request, document, room)
    found = None
    # All passages are the whole, which does not fit. Whatever the tokeniser does, what is returned was counted.
    fitting, too_many = 0, document.count
    while too_many - fitting > 1:
        passages = (fitting + too_many) // 2
        tokens = await count(request(document.best(passages).text).messages)
        if tokens <= room:
            fitting, found = passages, Truncation(prompt_tokens=tokens, passages=passages)
        else:
            too_many = passages
    if found is not None:
        return found
    fit = await _measure_head(count, head, request, document.passage, room)
    return msgspec.structs.replace(fit, passages=1)


async def _measure_head(
    count: Callable[[tuple[Message, ...]], Awaitable[int]],
    head: Callable[[str, int], Awaitable[str]],
    request: Callable[[str], Request],
    document: str,
    room: int,
) -> Truncation:
    empty = request(CUT_MARK)
    bare = await count(empty.messages)
    tokens = room - bare
    # Counted again after each cut: tokens merge at the seam, and a tokeniser may normalise the text.
    while tokens > 0:
        kept = _at_sentence_end(await head(document, tokens))
        counted = await count(request(kept + CUT_MARK).messages)
        if kept and counted <= room:
            return Truncation(prompt_tokens=counted, kept_chars=len(kept))
        tokens = min(tokens - (counted - room), tokens * 9 // 10)
    origin = empty.origin
    raise PromptError(
        f"prompt {origin.prompt}, topic {origin.topic_id}, document {origin.document_id}: the prompt needs {bare} "
        f"tokens without the document, {room} are left beside the answer: give a longer context "
        "(--context, or serve the model with one) or shorten the prompt and its examples"
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
