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
    """Check that no few-shot example is about a topic of a run, whose result could not be measured.

    Topics of different years share numbers, so titles decide. An answer that a model could copy
    gives a warning, see `list_copyable_answers`.

    Args:
        prompt: Prompt with the examples.
        topics: Topics of the run.
        file: File of the topics, if any, for the message.
        warn: Called with each warning.

    Raises:
        UsageError: An example is about one of the topics.
    """
    for problem in list_copyable_answers(prompt):
        warn(problem)

    topics_by_title = {normalise_title(topic.title): topic for topic in topics}
    for number, example in enumerate(prompt.examples, start=1):
        topic = topics_by_title.get(normalise_title(example.topic.title))
        if topic is None:
            continue

        location = f"{examples_path(prompt.path)}: example {number} of the template {prompt.path}"
        source = "" if file is None else f" of {file}"
        raise UsageError(
            f"{location}: its topic {example.topic.id}, {example.topic.title!r:.120}, is topic {topic.id}{source}, "
            "a topic of this run; use an example of another topic, or leave this topic out (`topic: ID`)"
        )
