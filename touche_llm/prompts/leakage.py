"""Few-shot examples that are about topics of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from touche_llm.data.records import Topic
from touche_llm.data.topics.reading import normalise_title
from touche_llm.errors import UsageError
from touche_llm.prompts.prompt import Prompt, examples_path
from touche_llm.prompts.purposes import list_copyable_answers


def check_examples(
    prompt: Prompt, topics: list[Topic], file: Path | None, warn: Callable[[str], None]
) -> None:
    """Raise UsageError if a few-shot example is about one of the topics: its result could not be measured.

    Topics of different years share numbers, so titles decide. An answer that a model could copy
    gives a warning, see `list_copyable_answers`.
    """
    for problem in list_copyable_answers(prompt):
        warn(problem)
    by_title = {normalise_title(topic.title): topic for topic in topics}
    for number, example in enumerate(prompt.examples, start=1):
        if same := by_title.get(normalise_title(example.topic.title)):
            raise UsageError(
                f"{examples_path(prompt.path)}: example {number} of the template {prompt.path}: its topic "
                f"{example.topic.id}, {example.topic.title!r:.120}, is topic {same.id}"
                f"{'' if file is None else f' of {file}'}, a topic of this run; use an example of another topic, or "
                "leave this topic out (`topic: ID`)"
            )
