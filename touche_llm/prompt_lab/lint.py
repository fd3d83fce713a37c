"""Static checks for prompts: labels, length, and the order in which requests can share their beginning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from touche_llm.data.records import Label, Topic
from touche_llm.engines.token_estimates import TOKEN_CHARS
from touche_llm.errors import DataError, PromptError
from touche_llm.llm.answer_schema import AnswerForm, get_labels
from touche_llm.prompt_lab.trial import (
    Messages,
    Subject,
    Texts,
    ask,
    change_documents,
    change_topic,
    count_common,
    open_dry_requester,
)
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import list_copyable_answers
from touche_llm.tasks.task import Task

# Maximum share and characters of fixed text after the topic or the documents: field names, a last
# line.
_MAX_SHARE_BEHIND = 0.25
_MAX_CHARS_BEHIND = 200
# Words that are not labels.
_BARE = Topic("0", "x y")
_PLAIN = replace(_BARE, description="x", narrative="x", objects=("x", "y"))
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


Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a prompt: an error makes the prompt unusable, a warning does not."""

    level: Level
    message: str


@dataclass(slots=True)
class CheckedPrompt:
    """Result of the checks of a prompt.

    Attributes:
        findings: Problems.
        tokens: Estimated tokens of the longest topic's prompt, without documents; None if no topic
            could be rendered.
        shared: Characters at the start of the prompt that all requests have.
    """

    findings: list[Finding] = field(default_factory=list)
    tokens: int | None = None
    shared: int = 0

    def of(self, level: Level) -> list[str]:
        """Return the messages of a level."""
        return [finding.message for finding in self.findings if finding.level == level]


async def check(
    task: Task, purpose: Purpose, prompt: Prompt, topics: Sequence[Topic] = ()
) -> CheckedPrompt:
    """Check a loaded prompt, with invented documents.

    Args:
        task: Task of the prompt.
        purpose: Purpose of the prompt.
        prompt: Prompt to check.
        topics: Topics to render it for; an invented one if none is given.
    """
    renderer = _Renderer(task, purpose, prompt)
    try:
        sharing = await _measure_sharing(renderer)
    except PromptError as error:
        return CheckedPrompt([Finding("error", str(error))])

    rendered = await _render_topics(renderer, topics or [_INVENTED_TOPIC])
    # Instructions are in the first message and the last one; those between are few-shot examples.
    instructions = f"{sharing.messages[0].content}\n{sharing.messages[-1].content}"
    plain_subject = renderer.make_subject(_PLAIN)
    findings = [
        *rendered.findings,
        *_check_answer(prompt, plain_subject, instructions),
        *_check_copyable_answers(prompt),
        *_check_variables(purpose, prompt),
        *_check_order(sharing),
    ]
    return CheckedPrompt(findings, rendered.max_tokens, sharing.by_all)


@dataclass(frozen=True, slots=True)
class _RenderedTopics:
    """Result of rendering a prompt for several topics.

    Attributes:
        findings: Errors of topics that it cannot be rendered for.
        max_tokens: Estimated tokens of the longest prompt; None if none could be rendered.
    """

    findings: list[Finding]
    max_tokens: int | None


async def _render_topics(renderer: _Renderer, topics: Iterable[Topic]) -> _RenderedTopics:
    """Render a prompt for several topics."""
    findings: list[Finding] = []
    token_counts: list[int] = []
    for topic in topics:
        try:
            token_counts.append(await renderer.count_tokens(topic))
        except (PromptError, DataError) as error:
            findings.append(Finding("error", f"topic {topic.id}: {error}"))
    return _RenderedTopics(findings, max(token_counts, default=None))


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Messages of a prompt, and how much of them other requests share.

    Attributes:
        messages: Messages.
        by_all: Characters at the start that requests about other topics share.
        by_topic: Characters at the start that requests about other documents for the topic share.
    """

    messages: Messages
    by_all: int
    by_topic: int

    @property
    def chars(self) -> int:
        """Number of characters of the messages."""
        return _count_chars(self.messages)


async def _measure_sharing(renderer: _Renderer) -> _Sharing:
    """Render a prompt with different texts, and compare the starts of the messages.

    A server's prefix cache keeps the start that requests share.

    Raises:
        PromptError: The prompt cannot be rendered with one of the texts.
    """
    plain = renderer.make_subject(_PLAIN)
    messages = await renderer.render(plain)
    await _check_bare_topic(renderer)

    other_topic = await renderer.render(change_topic(plain), location="with other texts: ")
    other_documents = await renderer.render(change_documents(plain), location="with other texts: ")
    shared_by_all = count_common(messages, other_topic)
    shared_by_topic = count_common(messages, other_documents)
    if not plain.ids:
        # Without documents there is only one request for the topic.
        shared_by_topic = shared_by_all
    return _Sharing(messages, shared_by_all, shared_by_topic)


async def _check_bare_topic(renderer: _Renderer) -> None:
    """Raise PromptError if a prompt cannot be rendered for a topic that has only a title."""
    bare = renderer.make_subject(_BARE)
    await renderer.render(bare, location="a topic with nothing but a title: ")


def _count_chars(messages: Messages) -> int:
    """Return the number of characters of a chat."""
    return sum(len(message.content) for message in messages)


def _check_copyable_answers(prompt: Prompt) -> list[Finding]:
    """Check that a prompt shows no complete answer."""
    return [Finding("warning", problem) for problem in list_copyable_answers(prompt)]


def _check_variables(purpose: Purpose, prompt: Prompt) -> Iterator[Finding]:
    """Check that a prompt uses all variables of its purpose."""
    for name in sorted(purpose.variables.keys() - prompt.files.used):
        yield Finding("warning", f"does not use the variable {name!r}, so its text is never sent")


def _check_order(sharing: _Sharing) -> list[Finding]:
    """Check that a prompt shows the topic and then the document, after what all requests share."""
    # A prompt that shows the topic differs from one topic to the next.
    shows_topic = sharing.by_all < sharing.chars
    shows_document = sharing.by_topic < sharing.chars
    if not shows_topic:
        problem = "does not show the topic: neither title, description nor narrative"
        return [Finding("error", problem)]
    if not shows_document:
        return [Finding("error", "does not show the document")]
    if _is_in_order(sharing):
        return []

    # The start that all requests share ends with the first text of a topic or document.
    unshared = sharing.chars - min(sharing.by_all, sharing.by_topic)
    problem = (
        f"{unshared:,} of {sharing.chars:,} characters of the prompt itself come after the start of the topic or the "
        "document, where a server's prefix cache does not hold them; put the instructions first, then the topic, "
        "and the document last"
    )
    return [Finding("warning", problem)]


def _is_in_order(sharing: _Sharing) -> bool:
    """Return whether instructions come first, then the topic, and the document last."""
    is_document_first = sharing.by_topic < sharing.by_all
    if is_document_first:
        return False

    # Field names and a last line may follow the topic.
    chars_behind = sharing.chars - sharing.by_all
    return chars_behind <= max(_MAX_CHARS_BEHIND, _MAX_SHARE_BEHIND * sharing.chars)


def _check_answer(prompt: Prompt, subject: Subject, instructions: str) -> Iterator[Finding]:
    """Check that instructions name the fields and labels of the answer, and no other scale."""
    answer = prompt.answer_for(subject.topic, document_count=len(subject.ids))
    labels = get_labels(answer)
    yield from _check_fields(answer.model_fields, prompt.header.form, instructions)
    yield from _check_scales(labels, instructions)

    # The labels of objects are words of the topic.
    if subject.purpose.depends_on != "topic":
        yield from _check_labels(labels, instructions)


def _check_labels(labels: Mapping[str, Sequence[Label]], instructions: str) -> Iterator[Finding]:
    """Check that instructions name the labels of each field, or their scale, as `0 to 3`."""
    named_ranges = _find_ranges(instructions)
    for field_name, field_labels in labels.items():
        scale = _find_scale(field_labels)
        if scale in named_ranges:
            # `0 to 3` names 1 and 2 as well.
            continue

        names = [str(label) for label in field_labels]
        missing = [name for name in names if not _has_word(instructions, name)]
        if missing:
            problem = (
                f"{field_name}: the answer can be {', '.join(names)}, but the text does not name "
                f"{', '.join(missing)}"
            )
            yield Finding("error", problem)


def _check_fields(names: Iterable[str], form: AnswerForm, instructions: str) -> Iterator[Finding]:
    """Check that instructions name the fields of the answer."""
    # Answers of the other forms have no names; their fields may be described in other words.
    level: Level = "error" if form is AnswerForm.OBJECT else "warning"
    for name in names:
        if not _has_word(instructions, name):
            yield Finding(level, f"the answer's field {name!r} is not named in the text")


def _check_scales(labels: Mapping[str, Sequence[Label]], instructions: str) -> Iterator[Finding]:
    """Check that instructions for grades have no range of numbers but the scales of the grades."""
    scales = _list_scales(labels)
    ranges = _find_ranges(instructions)
    other_ranges = [text for scale, text in ranges.items() if scale not in scales]
    if scales and other_ranges:
        known = ", ".join(f"{lowest} to {highest}" for lowest, highest in scales)
        yield Finding(
            "warning", f"the text has the range {other_ranges[0]!r}, but grades are {known}"
        )


def _list_scales(labels: Mapping[str, Sequence[Label]]) -> list[tuple[int, int]]:
    """Return the different scales of the fields with grades, sorted."""
    scales: set[tuple[int, int]] = set()
    for field_labels in labels.values():
        scale = _find_scale(field_labels)
        if scale is not None:
            scales.add(scale)
    return sorted(scales)


def _find_scale(labels: Sequence[Label]) -> tuple[int, int] | None:
    """Return the lowest and the highest of labels that are grades; None for other labels."""
    grades = [label for label in labels if isinstance(label, int)]
    if not grades:
        return None
    return min(grades), max(grades)


def _find_ranges(text: str) -> dict[tuple[int, int], str]:
    """Return the ranges of numbers in a text, as it writes them, by lowest and highest number.

    For "grades from 0 to 3", this is `{(0, 3): "0 to 3"}`.
    """
    ranges: dict[tuple[int, int], str] = {}
    for found in _RANGE.finditer(text):
        lowest = int(found[1])
        highest = int(found[2])
        ranges[lowest, highest] = found[0]
    return ranges


@dataclass(frozen=True, slots=True)
class _Renderer:
    """Renderer of a prompt, with invented documents."""

    task: Task
    purpose: Purpose
    prompt: Prompt

    def make_subject(self, topic: Topic) -> Subject:
        """Return a topic with as many invented documents as the prompt needs.

        If the prompt compares two objects that the topic does not name, they are invented too.
        """
        ids: tuple[str, ...] = ()
        if self.purpose.depends_on == "documents":
            ids = ("a", "b")
        elif self.purpose.question is not None:
            ids = ("a",)

        lacks_objects = self.task.objects_answer is not None and topic.objects is None
        if ids and lacks_objects:
            topic = replace(topic, objects=("x", "y"))
        return Subject(self.task, self.purpose, topic, ids, Texts("x"))

    async def render(self, subject: Subject, location: str = "") -> Messages:
        """Render the first request of the prompt about a subject.

        Args:
            subject: Topic and documents.
            location: Beginning of the message of an error.

        Raises:
            PromptError: The prompt cannot be rendered.
        """
        try:
            async with open_dry_requester() as requester:
                trials = await ask(self.prompt, subject, requester)
        except PromptError as error:
            raise PromptError(f"{location}{error}") from error
        first_trial = trials[0]
        return first_trial.messages

    async def count_tokens(self, topic: Topic) -> int:
        """Return the estimated tokens of the prompt for a topic.

        Raises:
            DataError: The topic has no labels to answer with, as a title without a word has none
                for its objects.
            PromptError: The prompt cannot be rendered.
        """
        subject = self.make_subject(topic)
        # Raises the error of a topic without labels. The subject may have invented objects instead.
        self.prompt.answer_for(topic, document_count=2)
        messages = await self.render(subject)
        return round(_count_chars(messages) / TOKEN_CHARS)


def _has_word(text: str, word: str) -> bool:
    """Return whether a text has a word, not as a part of another one."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None
