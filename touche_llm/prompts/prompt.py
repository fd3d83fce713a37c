"""Prompts: loading, checking and rendering of templates.

Inserted text is sanitized, so it is never chat control.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from touche_llm.data.files import open_atomic
from touche_llm.data.records import Topic
from touche_llm.errors import PromptError, UsageError
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, can_be_letters
from touche_llm.llm.request import Message, Origin
from touche_llm.prompts.few_shot import EXAMPLES_SUFFIX, FewShotExample, parse_examples
from touche_llm.prompts.fields import FieldSelection, group_fields, pick_fields
from touche_llm.prompts.templates import HEADER, TemplateFiles, read_text, resolve_reference
from touche_llm.settings.section import Option, Scope, Section
from touche_llm.settings.yaml_text import load_yaml
from touche_llm.tasks.questions import Question
from touche_llm.tasks.task import Task
from touche_llm.text.sanitize import SanitizedText, sanitize


class PromptsConfig(Section):
    """Names of the task's prompts, or paths of `.jinja` files, and a folder of templates to prefer to the task's."""

    folder: Annotated[
        Path | None,
        Option(
            "--prompts",
            "Folder of templates, TASK/NAME.jinja, that replace the project's own",
            "Model",
            metavar="FOLDER",
        ),
        Scope.JUDGE,
    ] = None
    judge: Annotated[
        str,
        Option("--prompt", "Judge prompt: a name or a .jinja file", "Judging", metavar="NAME|FILE"),
        Scope.JUDGE,
    ] = "judge"
    objects: Annotated[
        str,
        Option(
            "--objects-prompt",
            "Prompt that finds the objects of a topic",
            "Judging",
            metavar="NAME|FILE",
        ),
        Scope.JUDGE,
    ] = "objects"
    sentence: Annotated[
        str,
        Option(
            "--sentence-prompt", "Prompt that judges a sentence", "Judging", metavar="NAME|FILE"
        ),
        Scope.JUDGE,
    ] = "sentence"
    stance: Annotated[str, Scope.JUDGE] = "stance"
    best: str = "best"
    order: str = "order"
    queries: Annotated[str, Scope.RETRIEVE] = "queries"


# Returns the answer model for a topic and a number of documents.
AnswerFor = Callable[[Topic, int], type[AnswerModel]]
_HASH_DIGITS = 12
# Its objects have spaces, as those of other topics can.
_ANY_TOPIC = Topic("0", "green tea or black coffee")
# In characters; longer texts are not kept in memory.
_SHORT = 10_000


class PromptHeader(Section):
    """The YAML front matter of a template.

    `answer` is the purpose; `position`, whether an answer says first whether the document takes a
    position.
    """

    version: int = Field(ge=1, lt=2**53)
    purpose: str
    answer: str
    form: AnswerForm = AnswerForm.OBJECT
    position: bool = False


AnswerByHeader = Callable[[PromptHeader, Topic, int], type[AnswerModel]]


@dataclass(frozen=True, slots=True)
class Purpose:
    """The purpose of a prompt.

    Attributes:
        name: Its name in `config.prompts`, of the project's own template, and as `answer` in a
            front matter.
        variables: Variables that a template may use; True if it must use them.
        question: The question about documents; None if the prompt is about the topic alone.
        shared: Variables with one value for all questions of a run; few-shot examples take them
            from the question.
    """

    name: str
    variables: Mapping[str, bool]
    answer_for: AnswerByHeader
    depends_on: Literal["nothing", "topic", "documents"] = "nothing"
    question: Question | None = None
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A template with its front matter and few-shot examples.

    Attributes:
        name: `task/name`.
        path: File of the template.
        header: Front matter.
        hash: Hash of the file's text and, if there are any, of the files that it references and of
            its examples.
        files: Compiled template.
        answer_for: Returns the answer model for a topic and a number of documents.
        examples: Few-shot examples.
        shared: Variables that the examples take from the question, such as the comparison
            criterion.
        field_prompts: Prompts for each field of the answer, which are sent in place of this one;
            empty if it is sent itself.
        selection: Fields that the prompt requests; None if it requests the whole answer.
    """

    name: str
    path: Path
    header: PromptHeader
    hash: str
    files: TemplateFiles
    answer_for: AnswerFor
    examples: tuple[FewShotExample, ...] = ()
    shared: tuple[str, ...] = ()
    field_prompts: tuple[Prompt, ...] = ()
    selection: FieldSelection | None = None
    # Messages of the examples by the values of the shared variables.
    _rendered_examples: dict[tuple[tuple[str, object], ...], tuple[Message, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def request_prompts(self) -> tuple[Prompt, ...]:
        """Prompts that are sent about each document: the prompt itself, or one for each field."""
        return self.field_prompts or (self,)

    @property
    def requests_per_document(self) -> int:
        """Number of requests about each document."""
        return len(self.request_prompts)

    @property
    def label(self) -> str:
        """Name, version, hash and the fields of a divided prompt in one word, as judgments have it."""
        label = f"{self.name}@{self.header.version}-{self.hash}"
        for prompt in self.request_prompts:
            if prompt.selection is not None:
                label += f":{prompt.selection.name}"
        return label

    def origin(self, topic_id: str, document_id: str | None) -> Origin:
        """Return the origin of a request made from this prompt."""
        return Origin(
            prompt=self.name,
            prompt_version=self.header.version,
            prompt_hash=self.hash,
            topic_id=topic_id,
            document_id=document_id,
        )

    def divide(self) -> Prompt:
        """Return the prompt with a prompt for each field of its answer.

        Raises:
            UsageError: The answer has one field only.
        """
        answer = self.answer_for(_ANY_TOPIC, 1)
        groups = group_fields(answer)
        if len(groups) < 2:
            only_field = groups[0][-1]
            raise UsageError(
                f"{self.path}: the answer has one field only, {only_field}; give `judge_per: document`"
            )

        selections = [FieldSelection(answer, pick_fields(answer, fields)) for fields in groups]
        return replace(self, field_prompts=tuple(map(self._select, selections)))

    def _select(self, selection: FieldSelection) -> Prompt:
        """Return the prompt for some fields of the answer."""
        form = self.header.form
        return replace(
            self,
            answer_for=lambda topic, documents: selection.answer,
            examples=tuple(selection.select_example(example, form) for example in self.examples),
            selection=selection,
            _rendered_examples={},
        )

    def render(self, **variables: object) -> tuple[Message, ...]:
        """Render the messages of a request.

        Args:
            variables: Variables of the template.

        Returns:
            The system message, a user and an assistant message per example, and the user message.

        Raises:
            PromptError: The template fails; names its file and line.
        """
        system = self._render("system", variables)
        user = self._render("user", variables)
        if self.selection is not None:
            system = self._select_instructions(system, self.selection)

        examples = self._render_examples(variables)
        return (Message("system", system), *examples, Message("user", user))

    def _select_instructions(self, system: str, selection: FieldSelection) -> str:
        """Return the instructions for the selected fields alone.

        Raises:
            PromptError: The instructions have no paragraph for a field.
        """
        try:
            return selection.select_instructions(system, self.header.form)
        except ValueError as error:
            raise PromptError(
                f"{self.path}: block system: {error}; with `judge_per: field` it needs a paragraph for each field, "
                "which begins with its name and a colon, and a last one that says how to answer"
            ) from error

    def check_examples(self) -> None:
        """Raise PromptError if the template fails on an example; not done if they share variables."""
        needs_question = not self.files.used.isdisjoint(self.shared)
        if not needs_question:
            self._render_examples({})

    def _render_examples(self, variables: Mapping[str, object]) -> tuple[Message, ...]:
        """Render the examples, with the values of the shared variables."""
        shared = {name: variables[name] for name in self.shared if name in variables}
        # The examples are the same for all documents, and a document that is truncated is rendered
        # many times.
        key = tuple(shared.items())
        if key not in self._rendered_examples:
            messages: list[Message] = []
            for number, example in enumerate(self.examples, start=1):
                messages.append(Message("user", self._render_example(number, example, shared)))
                messages.append(Message("assistant", example.answer))
            self._rendered_examples[key] = tuple(messages)
        return self._rendered_examples[key]

    def _render_example(
        self, number: int, example: FewShotExample, shared: Mapping[str, object]
    ) -> str:
        """Render the user message of an example.

        Raises:
            PromptError: The template fails; names the file and the number of the example.
        """
        variables = {**example.variables, **shared, "topic": example.topic}
        try:
            return self._render("user", variables)
        except PromptError as error:
            location = f"{examples_path(self.path)}: example {number}"
            raise PromptError(f"{location}: {error}") from error

    def _render(self, role: str, variables: Mapping[str, object]) -> str:
        """Render a block of the template.

        Raises:
            PromptError: The template fails; names its file and line.
        """
        try:
            return self.files.render(role, variables).strip("\n")
        # A template is a program of its author: any exception that it raises is an error in the
        # template.
        except Exception as error:
            place = self.files.place(error)
            raise PromptError(
                f"{self.path}: block {role}: {place}{type(error).__name__}: {error}"
            ) from error


def _sanitize_value(value: Any) -> str:
    """Return the text that a template expression inserts, sanitized."""
    if type(value) is SanitizedText:
        return value
    text = value if type(value) is str else str(value)
    return _sanitize_cached(text) if len(text) <= _SHORT else sanitize(text)


# A topic's texts are inserted for each of its documents.
_sanitize_cached = lru_cache(maxsize=1024)(sanitize)


def examples_path(template: Path) -> Path:
    """Return the path at which the few-shot examples of a template are stored, if it has any."""
    return template.with_name(template.stem + EXAMPLES_SUFFIX)


def template_path(task: Task, name: str, folder: Path | None = None) -> Path:
    """Return the path of a template, in `folder` or else among the task's own.

    A name may itself be a path.
    """
    if name.endswith(".jinja"):
        return Path(name)
    file = f"{name}.jinja"
    # A broken link counts as present, so that reading it raises an error.
    if folder is not None and os.path.lexists(folder / task.name / file):
        return folder / task.name / file
    return task.find_template(file)


def check_overlay(folder: Path, task: str, names: Collection[str]) -> None:
    """Raise UsageError unless a folder has at least one of the named templates, `TASK/NAME.jinja`."""
    wanted = sorted(f"{task}/{name}.jinja" for name in names)
    if not any(os.path.lexists(folder / file) for file in wanted):
        raise UsageError(f"{folder}: contains none of the templates {', '.join(wanted)}")
    for path in sorted((folder / task).glob(f"*{EXAMPLES_SUFFIX}")):
        if not path.with_name(f"{path.name.removesuffix(EXAMPLES_SUFFIX)}.jinja").exists():
            raise UsageError(
                f"{path}: no template of this name beside it; copy the project's own there"
            )


def read_template(
    task: Task, name: str, folder: Path | None = None, text: str | None = None
) -> tuple[Path, str, PromptHeader]:
    """Return the path, the text and the front matter of a template.

    Raise PromptError if it has none.

    A `text` takes the place of the template's own.
    """
    if not name.endswith(".jinja") and not name.isidentifier():
        raise PromptError(f"{name}: neither the name of a prompt nor the path of a .jinja file")
    path = template_path(task, name, folder)
    try:
        source = read_text(path) if text is None else text
    except OSError as error:
        known = [
            *_list_names(task.folder),
            *([] if folder is None else _list_names(folder / task.name)),
        ]
        raise PromptError(
            f"{path}: cannot read the prompt: {error.strerror}; known are {', '.join(sorted(set(known)))}"
        ) from error
    found = HEADER.match(source)
    if found is None:
        raise PromptError(f"{path}: must begin with front matter between two lines of `---`")
    return path, source, read_header(path, found.group(1))


def load_prompt(
    task: Task, purpose: Purpose, name: str, folder: Path | None = None, text: str | None = None
) -> Prompt:
    """Load the prompt `name` of a task from `folder` or its own.

    `name` may be a path that ends in `.jinja`.

    A `text` takes the place of the template's own: a draft of it, with the files that it
    references.
    """
    path, source, header = read_template(task, name, folder, text)
    if header.answer != purpose.name:
        raise PromptError(
            f"{path}: front matter: the answer is {header.answer!r}; for this purpose it must be {purpose.name!r}"
        )
    answers = _check_answer(path, header, purpose.answer_for)
    files = TemplateFiles(path, source, purpose.variables, _sanitize_value)
    for unused in sorted(
        name for name, must in purpose.variables.items() if must and name not in files.used
    ):
        raise PromptError(
            f"{path}: the variable {unused!r} is not used, so its text would never be sent; insert it"
        )
    texts, examples = dict(files.texts), tuple[FewShotExample, ...]()
    example_file = examples_path(path)
    if os.path.lexists(example_file):
        try:
            texts[example_file.name] = read_text(
                resolve_reference(path.parent, example_file.name, "examples")
            )
        except OSError as error:
            raise PromptError(
                f"{example_file}: cannot read the examples: {error.strerror}"
            ) from error
        names = files.used - {"topic", *purpose.shared}
        examples = parse_examples(
            example_file, texts[example_file.name], names, answers, header.form
        )
    digest = _hash(source, texts)
    prompt = Prompt(
        f"{task.name}/{path.stem}", path, header, digest, files, answers, examples, purpose.shared
    )
    # Errors are raised now rather than at the first question.
    prompt.check_examples()
    return prompt


def copy_prompt(prompt: Prompt, mine: Path, text: str | None = None) -> list[Path]:
    """Write a prompt, or another `text` of it, as a template of one's own; return its files.

    A file with another text in the way is a UsageError.
    """
    texts = {mine.parent / part: content for part, content in prompt.files.texts.items()}
    if prompt.examples:
        texts[examples_path(mine)] = read_text(examples_path(prompt.path))
    if there := [
        path for path, own in texts.items() if os.path.lexists(path) and read_text(path) != own
    ]:
        raise UsageError(f"{there[0]}: exists with another text; give a FILE in another folder")
    if os.path.lexists(mine):
        raise UsageError(f"{mine}: exists; give another FILE")
    # The template comes last, so that a copy that has it is complete.
    texts[mine] = prompt.files.text if text is None else text
    for path, content in texts.items():
        with open_atomic(path) as stream:
            stream.write(content.encode())
    return list(texts)


def _check_answer(path: Path, header: PromptHeader, answer_for: AnswerByHeader) -> AnswerFor:
    """Return the function that gives the answer model.

    Raise PromptError if it does not fit the front matter.
    """
    answers = partial(answer_for, header)
    model = answers(_ANY_TOPIC, 2)
    if header.position and (header.answer != "judge" or "position" not in model.model_fields):
        raise PromptError(
            f"{path}: front matter: `position: true` is for judge prompts of tasks with a label without a side"
        )
    if header.form is AnswerForm.TEXT:
        raise PromptError(
            f"{path}: front matter: `form: text` is for reasoning; give object, array or letters"
        )
    if header.form is AnswerForm.LETTERS and not can_be_letters(model):
        raise PromptError(
            f"{path}: front matter: `form: letters` is for labels with different first letters; those of "
            f"{', '.join(model.model_fields)} have not; use `form: array`"
        )
    return answers


def _hash(source: str, texts: Mapping[str, str]) -> str:
    """Hash the text of a lone template, else the text and the other files in the order of their names."""
    content = source.encode() if not texts else orjson.dumps([source, sorted(texts.items())])
    return hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]


def _list_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.jinja"))


def read_header(path: Path, text: str) -> PromptHeader:
    """Parse the front matter of the template `path`; raise PromptError if it is invalid."""
    # After the line `---`, so that errors count the lines of the file.
    return load_yaml(path, PromptHeader, text=f"\n{text}", error=PromptError)
