"""Parts of a prompt shared by all requests, by the requests of a topic, or by none, found by rendering.

A server's prefix cache serves the common beginning of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from touche_llm.data.records import Document, Topic
from touche_llm.judging.pointwise import Documents, RequestBuilder
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.model import ModelClient
from touche_llm.llm.recorder import TOKEN_CHARS, count_shared, make_dry_engine
from touche_llm.llm.request import Message, Sampling
from touche_llm.prompt_lab.trial import Subject

Messages = tuple[Message, ...]
Shared = Literal["all", "topic", "nobody"]
# Prompt tokens of a chat.
Count = Callable[[Messages], int]
# Index of a message and number of characters in it.
Place = tuple[int, int]

# First characters of a substitute text; one that the original text does not contain is used.
_MARKS = "※⁂§¶"
_ENDLESS = 2**30


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A piece of a message, and the requests that share the prompt up to its end: all, its topic's, or none."""

    message: int
    role: str
    shared: Shared
    text: str
    tokens: int


class _Changed:
    """Documents with the same ids and other texts."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def get(self, document_id: str) -> Document:
        document = self._documents.get(document_id)
        side = {"PRO": "CON", "CON": "PRO"}.get(document.side, document.side)
        return replace(document, text=_other(document.text), title=_other(document.title), side=side)

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        return self._documents.find_unknown(document_ids)


def estimate(messages: Messages) -> int:
    """Estimate the tokens of a chat without its chat template."""
    return round(sum(len(message.content) for message in messages) / TOKEN_CHARS)


def offline_builder() -> RequestBuilder:
    """Make a request builder that sends, truncates and stores nothing."""
    facts = EngineInfo(model="", revision="", context=_ENDLESS, overhead=0, engine="")
    cache = Cache(Path("none"), CacheMode.OFF)
    return RequestBuilder(ModelClient(engine_info=facts, engine=make_dry_engine(), cache=cache), Sampling(), {}, 1)


def make_other_subject(subject: Subject, *, topic: bool) -> Subject:
    """Return the subject with other document texts, and another `topic` if wanted; first characters differ."""
    changed = replace(subject, documents=_Changed(subject.documents))
    return replace(changed, topic=_other_topic(subject.topic)) if topic else changed


def shared_prefix(one: Messages, other: Messages) -> Place:
    """Return where two chats begin to differ: index of the message and characters in common."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine.role != theirs.role:
            return place, 0
        if mine.content != theirs.content:
            return place, count_shared(mine.content, theirs.content)
    return min(len(one), len(other)), 0


def count_chars(messages: Messages, place: Place) -> int:
    """Count the characters of a chat up to a place."""
    return sum(len(message.content) for message in messages[: place[0]]) + place[1]


def count_tokens_to(messages: Messages, place: Place, count: Count) -> int:
    """Estimate the tokens of a chat up to a place."""
    whole, chars = place
    # Some chat templates reject an empty message or a chat without a user message.
    rest = (replace(message, content=message.content[:chars] or "x") for message in messages[whole : whole + 1])
    return count((*messages[:whole], *rest, *(replace(message, content="x") for message in messages[whole + 1 :])))


def split_by_sharing(messages: Messages, same_topic: Messages, other_topic: Messages, count: Count) -> list[PromptPart]:
    """Split a chat into parts by the requests that share them.

    Args:
        messages: Messages of a request.
        same_topic: Messages about other documents for the same topic.
        other_topic: Messages about other documents for another topic.
        count: Counts tokens; a part has the tokens that it adds to the preceding parts.
    """
    of_topic = shared_prefix(messages, same_topic)
    of_all = min(of_topic, shared_prefix(messages, other_topic))
    parts: list[PromptPart] = []
    before = 0
    for place, message in enumerate(messages):
        length = len(message.content)
        start = 0
        shares: tuple[tuple[Shared, int], ...] = (
            ("all", _within(of_all, place, length)),
            ("topic", _within(of_topic, place, length)),
            ("nobody", length),
        )
        for shared, end in shares:
            if end > start:
                so_far = count_tokens_to(messages, (place, end), count)
                parts.append(PromptPart(place, message.role, shared, message.content[start:end], so_far - before))
                start, before = end, so_far
    return parts


def _within(end: Place, place: int, length: int) -> int:
    """Return how many characters of a message lie before an end."""
    return end[1] if end[0] == place else length * (end[0] > place)


def _other_topic(topic: Topic) -> Topic:
    objects = topic.objects and (_other(topic.objects[0]), f"{_other(topic.objects[1])} too")
    return Topic(
        _other(topic.id), _other(topic.title), _other(topic.description), _other(topic.narrative), objects or None
    )


def _other(text: str) -> str:
    """Return a text with another beginning; empty for an empty text."""
    mark = next(mark for mark in _MARKS if mark not in text or mark == _MARKS[-1])
    return f"{mark} another" if text else ""
