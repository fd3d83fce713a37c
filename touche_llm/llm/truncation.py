"""Truncation of documents, so that a prompt fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from touche_llm.data.records import Count, Cut, JsonStruct
from touche_llm.errors import PromptError
from touche_llm.text.passages import Excerpt, RankedPassages

# Marks the place where the rest of a document is omitted; it cannot be mistaken for a chat-control
# token.
CUT_MARK = " …"
_SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", '." ', '!" ', '?" ')


class Truncation(JsonStruct, frozen=True, omit_defaults=True):
    """Part of a document that fits, as it is cached.

    Attributes:
        prompt_tokens: Tokens of the prompt with this part; 0 if not counted.
        kept_chars: Number of characters kept, of the document or, if `passages` is 1, of its best
            passage.
    """

    prompt_tokens: Count
    kept_chars: Count | None = None
    passages: Count | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the complete document fits."""
        return self.kept_chars is None and self.passages is None


class TruncatedDocument(NamedTuple):
    """What a request shows of a document.

    Attributes:
        text: Text in the prompt.
        cut: Truncation; None if the document is complete.
    """

    text: str
    cut: Cut | None


def get_complete_text(document: str | RankedPassages) -> str:
    """Return what a request shows of a document that is not truncated."""
    return document if isinstance(document, str) else document.whole.text


def apply_truncation(document: str | RankedPassages, truncation: Truncation) -> TruncatedDocument:
    """Return what a request shows of a document."""
    if isinstance(document, str):
        return _truncate_text(document, truncation)
    return _truncate_passages(document, truncation)


def _truncate_text(document: str, truncation: Truncation) -> TruncatedDocument:
    """Return the beginning of a text, with a mark where the rest is omitted."""
    if truncation.kept_chars is None:
        return TruncatedDocument(document, cut=None)

    beginning = document[: truncation.kept_chars]
    cut = Cut(
        kept_chars=truncation.kept_chars,
        of_chars=len(document),
        prompt_tokens=truncation.prompt_tokens,
    )
    return TruncatedDocument(beginning + CUT_MARK, cut)


def _truncate_passages(document: RankedPassages, truncation: Truncation) -> TruncatedDocument:
    """Return the best passages of a document, or the beginning of the best one."""
    is_whole_page = document.complete and not document.only_boilerplate
    if truncation.is_complete and is_whole_page:
        return TruncatedDocument(document.whole.text, cut=None)

    excerpt = _select_passages(document, truncation)
    is_beginning = truncation.kept_chars is not None
    text = excerpt.text + CUT_MARK if is_beginning else excerpt.text
    cut = Cut(
        kept_chars=excerpt.chars,
        of_chars=len(document.text),
        prompt_tokens=truncation.prompt_tokens,
        parts=list(excerpt.parts),
        only_boilerplate=document.only_boilerplate,
    )
    return TruncatedDocument(text, cut)


def _select_passages(document: RankedPassages, truncation: Truncation) -> Excerpt:
    """Return the part of a document that fits."""
    if truncation.kept_chars is not None:
        return document.head(truncation.kept_chars)
    if truncation.passages is not None:
        return document.best(truncation.passages)
    return document.whole


@dataclass(frozen=True, slots=True)
class Fitting:
    """Search for the truncation with which a prompt fits.

    Attributes:
        count: Counts the tokens of the prompt with a text in place of the document.
        truncate: Returns the beginning of a text with about so many tokens.
        room: Max number of tokens of the prompt.
        location: Prompt, topic and document, for errors.
    """

    count: Callable[[str], Awaitable[int]]
    truncate: Callable[[str, int], Awaitable[str]]
    room: int
    location: str

    async def fit(self, document: str | RankedPassages) -> Truncation:
        """Return the truncation that keeps most of a document.

        Of ranked passages as many of the best as fit are kept, or the beginning of the best one if
        not even that fits; of a text, its beginning.

        Raises:
            PromptError: The prompt alone leaves no room for the document.
        """
        complete_tokens = await self.count(get_complete_text(document))
        if complete_tokens <= self.room:
            return Truncation(prompt_tokens=complete_tokens)
        if isinstance(document, str):
            return await self._fit_beginning(document)

        best = await self._fit_passages(document)
        if best is not None:
            return best
        beginning = await self._fit_beginning(document.passage)
        return msgspec.structs.replace(beginning, passages=1)

    async def _fit_passages(self, document: RankedPassages) -> Truncation | None:
        """Return the truncation with the most passages that fit; None if not even one fits.

        All passages together do not fit. Only a number whose tokens were counted is returned, since
        tokenizers need not be monotonic.
        """
        best: Truncation | None = None
        fitting = 0
        too_many = len(document.passages)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            tokens = await self.count(document.best(middle).text)
            if tokens <= self.room:
                fitting = middle
                best = Truncation(prompt_tokens=tokens, passages=middle)
            else:
                too_many = middle
        return best

    async def _fit_beginning(self, document: str) -> Truncation:
        """Return the truncation with the longest beginning that fits.

        Raises:
            PromptError: The prompt alone leaves no room for the document.
        """
        prompt_tokens = await self.count(CUT_MARK)
        tokens = self.room - prompt_tokens
        # Count after each truncation: tokens merge at its end, and a tokenizer may normalise the
        # text.
        while tokens > 0:
            kept = _end_at_sentence(await self.truncate(document, tokens))
            counted = await self.count(kept + CUT_MARK)
            if kept and counted <= self.room:
                return Truncation(prompt_tokens=counted, kept_chars=len(kept))
            excess = counted - self.room
            tokens = min(tokens - excess, tokens * 9 // 10)
        raise PromptError(
            f"{self.location}: the prompt has {prompt_tokens} tokens without the document, but only {self.room} fit "
            "beside the answer; give a longer context (`engine.context`, or serve the model with one), or shorten the "
            "prompt and its examples"
        )


def _end_at_sentence(text: str) -> str:
    """Return a text up to its last sentence end if that is in its last fifth, else up to its last word.

    A text of one word stays complete.
    """
    min_start = len(text) * 4 // 5
    ends: list[int] = []
    for mark in _SENTENCE_ENDS:
        start = text.rfind(mark)
        if start >= min_start:
            ends.append(start + len(mark.rstrip()))

    end = max(ends) if ends else text.rfind(" ")
    return text[:end] if end > 0 else text
