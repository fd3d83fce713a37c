"""Truncation of documents, so that a prompt fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from touche_llm.data.records import Count, Cut, JsonStruct
from touche_llm.errors import PromptError
from touche_llm.text.passages import RankedPassages

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


def apply_truncation(
    document: str | RankedPassages, truncation: Truncation
) -> tuple[str, Cut | None]:
    """Return the text of a document for a request, and the record of its truncation, or None if it is complete."""
    if isinstance(document, str):
        if truncation.kept_chars is None:
            return document, None
        cut = Cut(
            kept_chars=truncation.kept_chars,
            of_chars=len(document),
            prompt_tokens=truncation.prompt_tokens,
        )
        return document[: truncation.kept_chars] + CUT_MARK, cut
    if truncation.kept_chars is not None:
        excerpt = document.head(truncation.kept_chars)
        text = excerpt.text + CUT_MARK
    else:
        excerpt = (
            document.whole if truncation.passages is None else document.best(truncation.passages)
        )
        text = excerpt.text
        if truncation.is_complete and document.complete and not document.only_boilerplate:
            return text, None
    return text, Cut(
        kept_chars=excerpt.chars,
        of_chars=len(document.text),
        prompt_tokens=truncation.prompt_tokens,
        parts=list(excerpt.parts),
        only_boilerplate=document.only_boilerplate,
    )


@dataclass(frozen=True, slots=True)
class Fitting:
    """Search for the truncation with which a prompt has at most `room` tokens.

    `count` counts the tokens of the prompt with a text in place of the document, `truncate` returns
    the beginning of a text with about so many tokens.
    """

    count: Callable[[str], Awaitable[int]]
    truncate: Callable[[str, int], Awaitable[str]]
    room: int
    location: str

    async def fit(self, document: str | RankedPassages) -> Truncation:
        """Return the truncation: of ranked passages as many of the best as fit.

        If not even one fits, its beginning.
        """
        complete_tokens = await self.count(
            document if isinstance(document, str) else document.whole.text
        )
        if complete_tokens <= self.room:
            return Truncation(prompt_tokens=complete_tokens)
        if isinstance(document, str):
            return await self._fit_beginning(document)
        best = None
        # Binary search: all passages together do not fit. Only a number whose tokens were counted
        # is returned, since tokenizers need not be monotonic.
        fitting, too_many = 0, len(document.passages)
        while too_many - fitting > 1:
            passages = (fitting + too_many) // 2
            tokens = await self.count(document.best(passages).text)
            if tokens <= self.room:
                fitting, best = passages, Truncation(prompt_tokens=tokens, passages=passages)
            else:
                too_many = passages
        return best or msgspec.structs.replace(
            await self._fit_beginning(document.passage), passages=1
        )

    async def _fit_beginning(self, document: str) -> Truncation:
        prompt_tokens = await self.count(CUT_MARK)
        tokens = self.room - prompt_tokens
        # Count after each truncation: tokens merge at its end, and a tokenizer may normalise the
        # text.
        while tokens > 0:
            kept = _end_at_sentence(await self.truncate(document, tokens))
            counted = await self.count(kept + CUT_MARK)
            if kept and counted <= self.room:
                return Truncation(prompt_tokens=counted, kept_chars=len(kept))
            tokens = min(tokens - (counted - self.room), tokens * 9 // 10)
        raise PromptError(
            f"{self.location}: the prompt has {prompt_tokens} tokens without the document, but only {self.room} fit "
            "beside the answer; give a longer context (`engine.context`, or serve the model with one), or shorten the "
            "prompt and its examples"
        )


def _end_at_sentence(text: str) -> str:
    """Return the text up to its last sentence end, if that is in its last fifth, otherwise up to its last word."""
    min_end = len(text) * 4 // 5
    ends = ((text.rfind(mark), len(mark.rstrip())) for mark in _SENTENCE_ENDS)
    end = max(
        (place + length for place, length in ends if place >= min_end), default=text.rfind(" ")
    )
    return text[:end] if end > 0 else text
