"""Static checks for prompts: labels, answer schemas, length, prefix sharing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from touche_llm.data.records import Topic
from touche_llm.errors import DataError, PromptError
from touche_llm.llm.answers import AnswerForm, get_labels
from touche_llm.llm.cache import Cache
from touche_llm.prompt_lab.trial import (
    Count,
    Messages,
    Shared,
    Subject,
    Texts,
    ask,
    count_common,
    make_other_subject,
    offline_builder,
    split_by_sharing,
)
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import list_copyable_answers
from touche_llm.ranking.steps import RankingSettings
from touche_llm.retrieval.base import Documents
from touche_llm.tasks.definition import Objective
from touche_llm.tasks.task import Task

Level = Literal["error", "warning"]
# Maximum share and characters of fixed text after the topic or the documents: field names, a last line.
_MAX_SHARE_BEHIND, _MAX_CHARS_BEHIND = 0.25, 200

_INVENTED_TOPIC = Topic(
    "1",
    "Is a bicycle better than a car for going to work?",
    "A user who lives five kilometres from the office wants to know what to travel with.",
    "Highly relevant texts compare the two in cost, time and health. Texts about races or about repairs are not.",
    ("bicycle", "car"),
)
_INVENTED_TEXT = (
    "Most people who took the first for a year say that it saved them money, though not in winter. The second costs "
    "more to keep, as a study of forty households found, but nobody was late because of rain."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a prompt: an error makes the prompt unusable, a warning does not."""

    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class Share:
    """Common beginning of two requests in characters and tokens, with the totals of the first."""

    chars: int
    of_chars: int
    tokens: int
    of_tokens: int


@dataclass(slots=True)
class CheckedPrompt:
    """Result of the checks of a prompt.

    Attributes:
        findings: Findings in the order of the checks.
        longest_topic: Topic with the longest prompt.
        tokens: Tokens of that prompt without its documents.
        between_topics: Common beginning of the requests of two topics.
        between_documents: Common beginning of requests of a topic about different documents; None if
            the prompt is about a topic only.
    """

    findings: list[Finding] = field(default_factory=list)
    longest_topic: str | None = None
    tokens: int | None = None
    between_topics: Share | None = None
    between_documents: Share | None = None

    def of(self, level: Level) -> list[str]:
        """Return the messages of a level."""
        return [finding.message for finding in self.findings if finding.level == level]


async def check(task: Task, purpose: Purpose, prompt: Prompt, topics: Sequence[Topic], count: Count) -> CheckedPrompt:
    """Check a prompt; loading it has already checked its front matter, variables and examples.

    Args:
        task: Task of the prompt.
        purpose: Purpose of the prompt.
        prompt: Prompt.
        topics: Topics to render it for; an invented one if empty. Documents are invented.
        count: Counts tokens.
    """
    linter = _Linter(task, purpose, prompt)
    result = linter.result
    plain = await linter.render_minimal()
    if plain is None:
        return result
    linter.check_labels(*plain)
    for problem in list_copyable_answers(prompt):
        linter.warn(problem)
    lengths = await linter.count_lengths(topics or [_INVENTED_TOPIC], count)
    try:
        await linter.check_order(*plain)
        await linter.check_variables(*plain)
        if lengths:
            longest, result.tokens = max(lengths, key=lambda length: length[1])
            result.longest_topic = longest.id
            await linter.measure(longest, count)
    except PromptError as error:
        linter.error(f"with other texts: {error}")
    return result


def detect_changed_text(prompt: Prompt, cache: Cache) -> list[Finding]:
    """Warn if a cache has answers to other texts of this name and version, and none to this text.

    If it has answers to this text too, the other texts may be templates of other people or folders.
    """
    answers: dict[str, int] = {}
    for kind, _, name, version, digest, entries in cache.count_entries():
        if kind == "answer" and (name, version) == (prompt.name, prompt.header.version):
            answers[str(digest)] = answers.get(str(digest), 0) + entries
    if prompt.hash in answers:
        return []
    found = []
    for digest, entries in answers.items():
        other = f"another text of {prompt.name} version {prompt.header.version} (hash {digest})"
        problem = f"{entries:,} answers in {cache.path} are to {other}, and none to this one (hash {prompt.hash})"
        found.append(Finding("warning", f"{problem}: raise the version"))
    return found


# A scale in the text of a prompt, as `0 to 3`.
_RANGE = re.compile(r"(?<![\w.-])(\d{1,2})\s*(?:to|through|-|–|…|\.\.\.?)\s*(\d{1,2})(?![\w-]|\.\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Linter:
    """Checks of one prompt, which add their findings to `result`."""

    task: Task
    purpose: Purpose
    prompt: Prompt
    result: CheckedPrompt = field(default_factory=CheckedPrompt)

    def error(self, message: str) -> None:
        """Add an error."""
        self.result.findings.append(Finding("error", message))

    def warn(self, message: str) -> None:
        """Add a warning."""
        self.result.findings.append(Finding("warning", message))

    async def render(
        self, topic: Topic, ids: Sequence[str], documents: Documents, objective: Objective = "both"
    ) -> tuple[Subject, Messages]:
        """Render the first request of a prompt about a topic; return it with its subject."""
        needed = 0 if self.purpose.question is None else 2 if self.purpose.depends_on == "documents" else 1
        if self.purpose.question is not None and self.task.objects_answer is not None and topic.objects is None:
            topic = replace(topic, objects=("x", "y"))
        subject = Subject(self.task, self.purpose, topic, tuple(ids[:needed]), documents)
        tokens = RankingSettings().document_tokens
        trials = await ask(self.prompt, subject, offline_builder(), objective=objective, document_tokens=tokens)
        return subject, trials[0].messages

    async def render_minimal(self) -> tuple[Subject, Messages] | None:
        """Render the prompt with minimal topic and documents; return None if that fails."""
        bare = Topic("0", "x y")  # words that are not labels
        whole = replace(bare, description="x", narrative="x", objects=("x", "y"))
        plain, where = None, ""
        objectives: tuple[Objective, ...] = get_args(Objective) if self.purpose.depends_on == "documents" else ("both",)
        try:
            for objective in objectives:
                where = f"ranking for {objective}: " if len(objectives) > 1 else ""
                plain = await self.render(whole, "ab", Texts("x"), objective)
            where = "a topic with nothing but a title: "
            await self.render(bare, "ab", Texts("x"))
        except PromptError as error:
            self.error(f"{where}{error}")
            return None
        return plain

    def check_labels(self, subject: Subject, messages: Messages) -> None:
        """Check that the text names the possible labels, and no other scale."""
        text = f"{messages[0].content}\n{messages[-1].content}"
        model = self.prompt.answer_for(subject.topic, len(subject.ids))
        for name in model.model_fields:
            if _has_word(text, name):
                continue
            problem = f"the answer's field {name!r} is not named in the text"
            # Answers of the other forms have no names; their fields may be described in other words.
            (self.error if self.prompt.header.form is AnswerForm.OBJECT else self.warn)(problem)
        scales = {(min(grades), max(grades)) for grades in get_labels(model).values() if isinstance(grades[0], int)}
        ranges = [(found[0], (int(found[1]), int(found[2]))) for found in _RANGE.finditer(text)]
        other = [written for written, scale in ranges if scale not in scales]
        if scales and other:
            known = ", ".join(f"{lowest} to {highest}" for lowest, highest in sorted(scales))
            self.warn(f"the text has the range {other[0]!r}, but grades are {known}")
        for name, grades in get_labels(model).items() if len(scales) > 1 else ():
            beside = re.search(rf"\b{re.escape(name)}\W+{_RANGE.pattern}", text)
            if beside and isinstance(grades[0], int) and (int(beside[1]), int(beside[2])) != (min(grades), max(grades)):
                self.warn(f"the text has {beside[0]!r}, but grades of {name} are {min(grades)} to {max(grades)}")
        # The labels of objects are words of the topic.
        for name, labels in get_labels(model).items() if self.purpose.depends_on != "topic" else ():
            if all(isinstance(label, int) for label in labels) and (min(labels), max(labels)) in [
                scale for _, scale in ranges
            ]:
                continue
            missing = [str(label) for label in labels if not _has_word(text, str(label))]
            if missing:
                problem = f"{name}: the answer can be {', '.join(map(str, labels))}, but the text does not name"
                self.error(f"{problem} {', '.join(missing)}")

    async def check_variables(self, subject: Subject, messages: Messages) -> None:
        """Check that the prompt uses its variables and shows the objects that labels refer to."""
        model = self.prompt.answer_for(subject.topic, len(subject.ids))
        labels = {label for allowed in get_labels(model).values() for label in allowed}
        for name in sorted(self.purpose.variables):
            place = {"first": 0, "second": 1}.get(name)
            if place is not None and name.upper() in labels:
                objects = list(subject.topic.objects or ())
                objects[place] = "another"
                changed = replace(subject.topic, objects=(objects[0], objects[1]))
                if (await self.render(changed, subject.ids, subject.documents))[1] == messages:
                    problem = f"does not show the object `{name}`, which the label {name.upper()} refers to"
                    self.error(f"{problem}; insert {{{{ {name} }}}}")
            elif name not in self.prompt.files.used:
                self.warn(f"does not use the variable {name!r}, so its text is never sent")

    async def check_order(self, subject: Subject, messages: Messages) -> None:
        """Check the order: text shared by all requests first, then the topic, then the documents."""
        whole = sum(len(message.content) for message in messages)

        async def differs(changed: Subject) -> int:
            _, other = await self.render(changed.topic, subject.ids, changed.documents)
            return count_common(messages, other)

        both = make_other_subject(subject, topic=True)
        topic = await differs(replace(both, documents=subject.documents))
        if topic == whole:
            self.error("does not show the topic: neither title, description nor narrative")
            return
        documents = whole if self.purpose.question is None else await differs(make_other_subject(subject, topic=False))
        if self.purpose.question is not None and documents == whole:
            self.error("does not show the document")
            return
        most = max(_MAX_CHARS_BEHIND, _MAX_SHARE_BEHIND * whole)
        behind = "not shared between requests, so that a server's prefix cache does not hold it"
        if whole - documents > most:
            self.warn(
                f"{whole - documents:,} of the {whole:,} characters that are the same for all documents come after "
                f"the start of the document: {behind}; put the document last"
            )
        elif documents < topic:
            self.warn(f"the topic comes after the document: {behind}; put the document last")
        if min(documents, whole) - topic > most:
            self.warn(
                f"{documents - topic:,} of the {whole:,} characters that are the same for all topics come after "
                f"the start of the topic: {behind}; put the instructions first"
            )

    async def count_lengths(self, topics: Sequence[Topic], count: Count) -> list[tuple[Topic, int]]:
        """Count the tokens of the prompt for each topic, without documents."""
        found = []
        for topic in topics:
            try:
                # A topic can have no labels to answer with, as a title without a word has none for its objects.
                self.prompt.answer_for(topic, 2 if self.purpose.depends_on == "documents" else 1)
                _, messages = await self.render(topic, "ab", Texts("x"))
            except (PromptError, DataError) as error:
                self.error(f"topic {topic.id}: {error}")
                continue
            found.append((topic, count(messages)))
        return found

    async def measure(self, topic: Topic, count: Count) -> None:
        """Measure what requests share across topics, and across documents of a topic."""
        subject, messages = await self.render(topic, "ab", Texts(_INVENTED_TEXT))
        others = [make_other_subject(subject, topic=is_other) for is_other in (False, True)]
        same_topic, other_topic = [(await self.render(other.topic, other.ids, other.documents))[1] for other in others]
        parts = split_by_sharing(messages, same_topic, other_topic, count)

        def share(*kinds: Shared) -> Share:
            shared = [part for part in parts if part.shared in kinds]
            chars, tokens = sum(len(part.text) for part in shared), sum(part.tokens for part in shared)
            return Share(chars, sum(len(part.text) for part in parts), tokens, sum(part.tokens for part in parts))

        self.result.between_topics = share("all")
        if self.purpose.question is not None:
            self.result.between_documents = share("all", "topic")


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None
