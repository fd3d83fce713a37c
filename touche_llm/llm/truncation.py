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
    """Return the best passages of a document, or the beginning of the best one.

    Passages are made of a document without its boilerplate, so that all passages together can be
    less than the document.
    """
    # A document that looks like nothing but boilerplate is shown as a whole, but its cut says so.
    is_clean = document.complete and not document.only_boilerplate
    if truncation.is_complete and is_clean:
        return TruncatedDocument(document.whole.text, cut=None)

    excerpt = _select_passages(document, truncation)
    text = excerpt.text
    ends_within_passage = truncation.kept_chars is not None
    if ends_within_passage:
        text += CUT_MARK

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
class TruncationSearch:
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

    async def find(self, document: str | RankedPassages) -> Truncation:
        """Return the truncation that keeps most of a document.

        Of a text, its beginning is kept. Of ranked passages, as many of the best as fit are kept,
        or the beginning of the best one if not even that fits.

        Raises:
            PromptError: The prompt alone leaves no room for the document.
        """
        complete_tokens = await self.count(get_complete_text(document))
        if complete_tokens <= self.room:
            return Truncation(prompt_tokens=complete_tokens)
        if isinstance(document, str):
            return await self._find_beginning(document)

        best_passages = await self._find_passages(document)
        if best_passages is not None:
            return best_passages
        beginning = await self._find_beginning(document.passage)
        return msgspec.structs.replace(beginning, passages=1)

    async def _find_passages(self, document: RankedPassages) -> Truncation | None:
        """Return the truncation with the most passages that fit; None if not even one fits.

        The number of passages is found by bisection. All passages are known not to fit.
        """
        best: Truncation | None = None
        # At any time, the best `fitting` passages fit, and the best `too_many` do not.
        fitting = 0
        too_many = len(document.passages)
        while fitting + 1 < too_many:
            middle = (fitting + too_many) // 2
            prompt_tokens = await self.count(document.best(middle).text)
            if prompt_tokens <= self.room:
                fitting = middle
                best = Truncation(prompt_tokens=prompt_tokens, passages=middle)
            else:
                too_many = middle
        return best

    async def _find_beginning(self, document: str) -> Truncation:
        """Return the truncation with a beginning of a text that is about as long as fits.

        The tokens of a truncated text are counted again, since tokens merge at its end, and a
        tokenizer may normalise it. Until it fits, shorter beginnings are tried.

        Raises:
            PromptError: The prompt alone leaves no room for the document.
        """
        empty_tokens = await self.count(CUT_MARK)
        max_tokens = self.room - empty_tokens
        while max_tokens > 0:
            beginning = _end_at_sentence(await self.truncate(document, max_tokens))
            prompt_tokens = await self.count(beginning + CUT_MARK)
            # A prompt without any text of the document is of no use, even if it fits.
            if beginning and prompt_tokens <= self.room:
                return Truncation(prompt_tokens=prompt_tokens, kept_chars=len(beginning))
            max_tokens = _shorten(max_tokens, excess=prompt_tokens - self.room)

        raise PromptError(
            f"{self.location}: the prompt has {empty_tokens} tokens without the document, but only {self.room} fit "
            "beside the answer; give a longer context (`engine.context`, or serve the model with one), or shorten the "
            "prompt and its examples"
        )


def _shorten(max_tokens: int, excess: int) -> int:
    """Return the number of tokens to try after a beginning of `max_tokens` that did not fit.

    It is at least a tenth less, so that few attempts are needed.

    Args:
        max_tokens: Number of tokens of the beginning.
        excess: Number of tokens by which the prompt was too long.
    """
    without_excess = max_tokens - excess
    nine_tenths = max_tokens * 9 // 10
    return min(without_excess, nine_tenths)


def _end_at_sentence(text: str) -> str:
    """Return a text up to its last sentence end if that is in its last fifth, else up to its last word.

    A text of one word stays complete.
    """
    last_fifth = len(text) * 4 // 5
    end = _find_sentence_end(text, last_fifth)
    if end is None:
        end = text.rfind(" ")

    is_single_word = end <= 0
    return text if is_single_word else text[:end]


def _find_sentence_end(text: str, start: int) -> int | None:
    """Return the end of the last sentence that ends after `start`; None if no sentence does."""
    ends: list[int] = []
    for mark in _SENTENCE_ENDS:
        offset = text.rfind(mark, start)
        if offset >= 0:
            ends.append(offset + len(mark.rstrip()))
    return max(ends, default=None)
