"""Static checks for prompts: labels, length, and the order in which requests can share their beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from touche_llm.data.records import Topic
from touche_llm.engines.token_estimates import TOKEN_CHARS
from touche_llm.errors import DataError, PromptError
from touche_llm.llm.answer_schema import AnswerForm, get_labels
from touche_llm.prompt_lab.trial import (
    Messages,
    Subject,
    Texts,
    ask,
    count_common,
    make_other_subject,
    open_dry_builder,
)
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import list_copyable_answers
from touche_llm.tasks.task import Task

# Maximum share and characters of fixed text after the topic or the documents: field names, a last
# line.
_MAX_SHARE_BEHIND, _MAX_CHARS_BEHIND = 0.25, 200
# Words that are not labels.
_BARE = Topic("0", "x y")
_INVENTED_TOPIC = Topic(
    "1",
    "Is a bicycle better than a car for going to work?",
    "A user who lives five kilometres from the office wants to know what to travel with.",
    "Highly relevant texts compare the two in cost, time and health. Texts about races or about repairs are not.",
    ("bicycle", "car"),
)
# A scale in the text of a prompt, as `0 to 3`.
_RANGE = re.compile(
    r"(?<![\w.-])(\d{1,2})\s*(?:to|through|-|–|…|\.\.\.?)\s*(\d{1,2})(?![\w-]|\.\d)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a prompt: an error makes the prompt unusable, a warning does not."""

    level: Literal["error", "warning"]
    message: str


@dataclass(slots=True)
class CheckedPrompt:
    """Result of the checks of a prompt.

    `tokens` are those of the longest topic's prompt without documents; `shared` are the characters
    at the start of the prompt that all requests have.
    """

    findings: list[Finding] = field(default_factory=list)
    tokens: int | None = None
    shared: int = 0

    def of(self, level: Literal["error", "warning"]) -> list[str]:
        """Return the messages of a level."""
        return [finding.message for finding in self.findings if finding.level == level]


async def check(
    task: Task, purpose: Purpose, prompt: Prompt, topics: Sequence[Topic] = ()
) -> CheckedPrompt:
    """Check a loaded prompt with these topics, or an invented one, and invented documents."""
    result, renderer = CheckedPrompt(), _Renderer(task, purpose, prompt)
    plain = renderer.make_subject(
        replace(_BARE, description="x", narrative="x", objects=("x", "y"))
    )
    where = ""
    try:
        messages = await renderer.render(plain)
        where = "a topic with nothing but a title: "
        await renderer.render(renderer.make_subject(_BARE))
        where = "with other texts: "
        other_topic = replace(make_other_subject(plain, topic=True), documents=plain.documents)
        result.shared = count_common(messages, await renderer.render(other_topic))
        of_topic = count_common(
            messages, await renderer.render(make_other_subject(plain, topic=False))
        )
    except PromptError as error:
        return CheckedPrompt([Finding("error", f"{where}{error}")])
    for topic in topics or [_INVENTED_TOPIC]:
        try:
            # A topic can have no labels to answer with, as a title without a word has none for its
            # objects.
            prompt.answer_for(topic, 2)
            rendered = await renderer.render(renderer.make_subject(topic))
            result.tokens = max(round(_count(rendered) / TOKEN_CHARS), result.tokens or 0)
        except (PromptError, DataError) as error:
            result.findings.append(Finding("error", f"topic {topic.id}: {error}"))
    result.findings += _check_labels(
        prompt, plain, f"{messages[0].content}\n{messages[-1].content}"
    )
    result.findings += [Finding("warning", problem) for problem in list_copyable_answers(prompt)]
    result.findings += [
        Finding("warning", f"does not use the variable {name!r}, so its text is never sent")
        for name in sorted(purpose.variables.keys() - prompt.files.used)
    ]
    result.findings += _check_order(
        _count(messages), result.shared, of_topic if plain.ids else result.shared
    )
    return result


def _count(messages: Messages) -> int:
    return sum(len(message.content) for message in messages)


def _check_order(whole: int, topic: int, documents: int) -> Iterator[Finding]:
    """Check where topic and documents begin to show, by characters: in this order, after what all requests share."""
    if topic == whole:
        yield Finding("error", "does not show the topic: neither title, description nor narrative")
    elif documents == whole:
        yield Finding("error", "does not show the document")
    elif documents < topic or whole - topic > max(_MAX_CHARS_BEHIND, _MAX_SHARE_BEHIND * whole):
        problem = f"{whole - min(topic, documents):,} of {whole:,} characters of the prompt itself come after the "
        problem += "start of the topic or the document, where a server's prefix cache does not hold them; put the "
        yield Finding(
            "warning", f"{problem}instructions first, then the topic, and the document last"
        )


def _check_labels(prompt: Prompt, subject: Subject, text: str) -> Iterator[Finding]:
    """Check that a text names the possible labels, and no other scale."""
    model = prompt.answer_for(subject.topic, len(subject.ids))
    labels = get_labels(model)
    for name in model.model_fields:
        if not _has_word(text, name):
            # Answers of the other forms have no names; their fields may be described in other
            # words.
            is_error = prompt.header.form is AnswerForm.OBJECT
            problem = f"the answer's field {name!r} is not named in the text"
            yield Finding("error" if is_error else "warning", problem)
    scales = {
        (min(grades), max(grades)) for grades in labels.values() if isinstance(grades[0], int)
    }
    ranges = {(int(found[1]), int(found[2])): found[0] for found in _RANGE.finditer(text)}
    if scales and (other := [written for scale, written in ranges.items() if scale not in scales]):
        known = ", ".join(f"{lowest} to {highest}" for lowest, highest in sorted(scales))
        yield Finding("warning", f"the text has the range {other[0]!r}, but grades are {known}")
    # The labels of objects are words of the topic.
    for name, allowed in labels.items() if subject.purpose.depends_on != "topic" else ():
        if isinstance(allowed[0], int) and (min(allowed), max(allowed)) in ranges:
            continue
        if missing := [str(label) for label in allowed if not _has_word(text, str(label))]:
            problem = f"{name}: the answer can be {', '.join(map(str, allowed))}, but the text does not name"
            yield Finding("error", f"{problem} {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class _Renderer:
    task: Task
    purpose: Purpose
    prompt: Prompt

    def make_subject(self, topic: Topic) -> Subject:
        """Return a topic with as many documents as the prompt needs."""
        needed = (
            0
            if self.purpose.question is None
            else 2
            if self.purpose.depends_on == "documents"
            else 1
        )
        if needed and self.task.objects_answer is not None and topic.objects is None:
            topic = replace(topic, objects=("x", "y"))
        return Subject(self.task, self.purpose, topic, ("a", "b")[:needed], Texts("x"))

    async def render(self, subject: Subject) -> Messages:
        """Render the first request of the prompt about a subject."""
        async with open_dry_builder() as builder:
            trials = await ask(self.prompt, subject, builder)
        return trials[0].messages


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None
