"""What the model reasoned before its answers about the documents of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from touche_llm.cli.tables import get_width
from touche_llm.config import Config
from touche_llm.data.records import Judgment, StanceReading
from touche_llm.errors import DataError, UsageError, to_printable
from touche_llm.llm.answers import Answer
from touche_llm.llm.cache import Cache, CacheMode

# Characters of a thought that are printed, as many as on the page of `report`.
_MAX_CHARS = 2000
_INDENT = "  "


class Thought(NamedTuple):
    """Reasoning before one answer: the prompt of the answer, and the text."""

    prompt: str
    text: str


def read_thoughts(
    config: Config, topic: str, judged: Sequence[Judgment | StanceReading]
) -> Mapping[str, Sequence[Thought]]:
    """Return the thoughts behind the judgments and stances of a topic, by document id.

    Raises:
        UsageError: The model did not reason.
        DataError: The cache is missing, or lacks a thought.
    """
    if not any(each.thought_keys for each in judged):
        raise UsageError(
            f"--thoughts: the model did not reason about topic {topic} before it answered; leave the option out, or "
            "run with a budget (`--thinking`)"
        )
    file = config.cache.file
    if not file.is_file():
        raise DataError(
            f"{file}: no such file; --thoughts needs the cache of the run; if it moved, name it in the run's "
            "config.yaml (`cache.file`)"
        )
    thoughts: dict[str, list[Thought]] = {}
    with Cache(file, CacheMode.REPLAY) as cache:
        for each in judged:
            for key in each.thought_keys:
                answer = cache.get(key, Answer)
                if answer is None:
                    raise DataError(
                        f"{file}: no thought about document {each.document_id}; --thoughts needs the cache of the run; "
                        "name it in the run's config.yaml (`cache.file`)"
                    )
                thoughts.setdefault(each.document_id, []).append(Thought(each.prompt, answer.text))
    return thoughts


def show_thoughts(thoughts: Mapping[str, Sequence[Thought]], documents: Iterable[str]) -> None:
    """Print the thoughts about ranked documents; long ones are cut, and broken at the width of the terminal."""
    width = get_width()
    for rank, document in enumerate(documents, start=1):
        for prompt, text in thoughts.get(document, ()):
            print(f"\n{rank} {to_printable(document)}, {prompt}")
            line = to_printable(" ".join(text.split()))
            line = line[:_MAX_CHARS] + ("…" if len(line) > _MAX_CHARS else "")
            # Thoughts have words without end, and characters that are two columns wide.
            wrapped = [line] if width is None else Text(line).wrap(Console(), width - len(_INDENT), overflow="fold")
            for part in wrapped:
                print(f"{_INDENT}{part}".rstrip())
