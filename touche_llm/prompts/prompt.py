"""Prompts: loading, checking and rendering of templates.

Inserted text is sanitized, so it is never chat control.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import orjson
from pydantic import Field

from touche_llm.data.files import open_atomic
from touche_llm.data.records import Topic
from touche_llm.errors import PromptError, UsageError
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, can_be_letters
from touche_llm.llm.request import Message, Origin
from touche_llm.prompts.few_shot import EXAMPLES_SUFFIX, AnswerFor, FewShotExample, parse_examples
from touche_llm.prompts.fields import FieldSelection, group_fields, pick_fields
from touche_llm.prompts.template_text import HEADER, read_text, resolve_reference
from touche_llm.settings.section import Option, Scope, Section
from touche_llm.settings.yaml_text import load_yaml
from touche_llm.tasks.questions import Question
from touche_llm.tasks.task import Task
from touche_llm.text.sanitize import SanitizedText, sanitize

if TYPE_CHECKING:  # slow to load, and every command reads the settings
    from touche_llm.prompts.templates import TemplateFiles


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


_HASH_DIGITS = 12
# Its objects have spaces, as those of other topics can.
_ANY_TOPIC = Topic("0", "green tea or black coffee")
# In characters; longer texts are not kept in memory.
_SHORT = 10_000


class PromptHeader(Section):
    """Front matter of a template, in YAML.

    Attributes:
        version: Version of the prompt.
        purpose: Purpose in words, for people.
        answer: Name of the purpose, which determines the answer.
        form: Form of the answer.
        position: Whether an answer says first whether the document takes a position.
    """

    version: int = Field(ge=1, lt=2**53)
    purpose: str
    answer: str
    form: AnswerForm = AnswerForm.OBJECT
    position: bool = False


class AnswerByHeader(Protocol):
    """Chooser of the answer model of the prompts for a purpose."""

    def __call__(
        self, header: PromptHeader, topic: Topic, *, document_count: int
    ) -> type[AnswerModel]:
        """Return the model of an answer to a prompt with this front matter; see `AnswerFor`."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """Purpose of a prompt.

    Attributes:
        name: Its name in `config.prompts`, of the project's own template, and as `answer` in a
            front matter.
        variables: Variables that a template may use; True if it must use them.
        answer_for: Returns the model of an answer to a prompt with a front matter, about a topic
            and a number of documents.
        depends_on: What the labels of the answer depend on.
        question: Question about documents; None if the prompt is about the topic alone.
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
class PromptSource:
    """A template as it is stored: its file, text and front matter."""

    path: Path
    text: str
    header: PromptHeader


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
        answer_for: Returns the model of an answer about a topic and a number of documents.
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
        answer = self.answer_for(_ANY_TOPIC, document_count=1)
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
            answer_for=lambda topic, document_count: selection.answer,
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
        if key in self._rendered_examples:
            return self._rendered_examples[key]

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
            place = self.files.find_place(error)
            raise PromptError(
                f"{self.path}: block {role}: {place}{type(error).__name__}: {error}"
            ) from error


def _sanitize_value(value: object) -> str:
    """Return the text that a template expression inserts, sanitized."""
    if type(value) is SanitizedText:
        return value

    text = value if type(value) is str else str(value)
    if len(text) > _SHORT:
        return sanitize(text)
    return _sanitize_short(text)


# A topic's texts are inserted for each of its documents.
_sanitize_short = lru_cache(maxsize=1024)(sanitize)


def examples_path(template: Path) -> Path:
    """Return the path at which the few-shot examples of a template are stored, if it has any."""
    return template.with_name(template.stem + EXAMPLES_SUFFIX)


def template_path(task: Task, name: str, folder: Path | None = None) -> Path:
    """Return the path of a template.

    Args:
        task: Task of the template.
        name: Name of the template, or its path, which ends in `.jinja`.
        folder: Folder whose templates, `TASK/NAME.jinja`, are preferred to those of the task.
    """
    if name.endswith(".jinja"):
        return Path(name)

    file = f"{name}.jinja"
    if folder is not None:
        preferred = folder / task.name / file
        # A broken link counts as present, so that reading it raises an error.
        if os.path.lexists(preferred):
            return preferred
    return task.find_template(file)


def check_overlay(folder: Path, task: str, names: Collection[str]) -> None:
    """Check a folder of templates that replace those of a task.

    Args:
        folder: Folder with templates, `TASK/NAME.jinja`.
        task: Name of the task.
        names: Names of the templates that the task can use.

    Raises:
        UsageError: The folder has none of the named templates, or few-shot examples without a
            template.
    """
    files = sorted(f"{task}/{name}.jinja" for name in names)
    has_template = any(os.path.lexists(folder / file) for file in files)
    if not has_template:
        raise UsageError(f"{folder}: contains none of the templates {', '.join(files)}")

    for examples in sorted((folder / task).glob(f"*{EXAMPLES_SUFFIX}")):
        name = examples.name.removesuffix(EXAMPLES_SUFFIX)
        template = examples.with_name(f"{name}.jinja")
        if not template.exists():
            raise UsageError(
                f"{examples}: no template of this name beside it; copy the project's own there"
            )


def read_template(
    task: Task, name: str, folder: Path | None = None, text: str | None = None
) -> PromptSource:
    """Read a template and its front matter.

    Args:
        task: Task of the template.
        name: Name of the template, or its path, which ends in `.jinja`.
        folder: Folder whose templates are preferred to those of the task.
        text: Text that takes the place of the template's own.

    Raises:
        PromptError: The name is invalid, the file cannot be read, or it has no valid front matter.
    """
    if not name.endswith(".jinja") and not name.isidentifier():
        raise PromptError(f"{name}: neither the name of a prompt nor the path of a .jinja file")

    path = template_path(task, name, folder)
    if text is None:
        text = _read_template_text(path, task, folder)

    front_matter = HEADER.match(text)
    if front_matter is None:
        raise PromptError(f"{path}: must begin with front matter between two lines of `---`")
    return PromptSource(path, text, read_header(path, front_matter.group(1)))


def _read_template_text(path: Path, task: Task, folder: Path | None) -> str:
    """Read the text of a template; the error of a missing one lists the known ones."""
    try:
        return read_text(path)
    except OSError as error:
        names = set(_list_names(task.folder))
        if folder is not None:
            names.update(_list_names(folder / task.name))
        known = ", ".join(sorted(names))
        raise PromptError(
            f"{path}: cannot read the prompt: {error.strerror}; known are {known}"
        ) from error


def load_prompt(
    task: Task, purpose: Purpose, name: str, folder: Path | None = None, text: str | None = None
) -> Prompt:
    """Load a prompt for a purpose, with the files that it references and its few-shot examples.

    Args:
        task: Task of the prompt.
        purpose: Purpose for which it is loaded.
        name: Name of the prompt, or the path of its template, which ends in `.jinja`.
        folder: Folder whose templates are preferred to those of the task.
        text: Text that takes the place of the template's own, such as a draft of it.

    Raises:
        PromptError: A file cannot be read, is invalid, or does not fit the purpose.
    """
    # Imported here because Jinja is slow to load, and most commands load no prompt.
    from touche_llm.prompts.templates import TemplateFiles

    source = read_template(task, name, folder, text)
    path = source.path
    header = source.header
    _check_header(path, header, purpose)
    answer_for = partial(purpose.answer_for, header)

    files = TemplateFiles(path, source.text, purpose.variables, _sanitize_value)
    _check_required_variables(path, files, purpose)

    texts = dict(files.texts)
    examples: tuple[FewShotExample, ...] = ()
    example_file = examples_path(path)
    if os.path.lexists(example_file):
        example_text = _read_examples(example_file)
        texts[example_file.name] = example_text
        examples = parse_examples(
            path=example_file,
            text=example_text,
            names=files.used - {"topic", *purpose.shared},
            answer_for=answer_for,
            form=header.form,
        )

    prompt = Prompt(
        name=f"{task.name}/{path.stem}",
        path=path,
        header=header,
        hash=_hash(source.text, texts),
        files=files,
        answer_for=answer_for,
        examples=examples,
        shared=purpose.shared,
    )
    # Errors are raised now rather than at the first question.
    prompt.check_examples()
    return prompt


def _check_header(path: Path, header: PromptHeader, purpose: Purpose) -> None:
    """Raise PromptError if a front matter does not fit the purpose of the prompt.

    Args:
        path: File of the template, for the message.
        header: Front matter.
        purpose: Purpose for which the prompt is loaded.
    """
    location = f"{path}: front matter"
    if header.answer != purpose.name:
        raise PromptError(
            f"{location}: the answer is {header.answer!r}; for this purpose it must be {purpose.name!r}"
        )

    answer = purpose.answer_for(header, _ANY_TOPIC, document_count=2)
    can_have_position = header.answer == "judge" and "position" in answer.model_fields
    if header.position and not can_have_position:
        raise PromptError(
            f"{location}: `position: true` is for judge prompts of tasks with a label without a side"
        )
    _check_form(location, header.form, answer)


def _check_form(location: str, form: AnswerForm, answer: type[AnswerModel]) -> None:
    """Raise PromptError if an answer cannot have the form that a front matter names."""
    if form is AnswerForm.TEXT:
        raise PromptError(
            f"{location}: `form: text` is for reasoning; give object, array or letters"
        )
    if form is AnswerForm.LETTERS and not can_be_letters(answer):
        raise PromptError(
            f"{location}: `form: letters` is for labels with different first letters; those of "
            f"{', '.join(answer.model_fields)} have not; use `form: array`"
        )


def _check_required_variables(path: Path, files: TemplateFiles, purpose: Purpose) -> None:
    """Raise PromptError if a template does not use a variable that it must use."""
    for name in sorted(purpose.variables):
        is_required = purpose.variables[name]
        if is_required and name not in files.used:
            raise PromptError(
                f"{path}: the variable {name!r} is not used, so its text would never be sent; insert it"
            )


def _read_examples(path: Path) -> str:
    """Read the text of a file of few-shot examples; raise PromptError if it is unreadable."""
    try:
        return read_text(resolve_reference(path.parent, path.name, "examples"))
    except OSError as error:
        raise PromptError(f"{path}: cannot read the examples: {error.strerror}") from error


def copy_prompt(prompt: Prompt, path: Path, text: str | None = None) -> list[Path]:
    """Write a copy of a prompt with all of its files.

    Args:
        prompt: Prompt to copy.
        path: File of the copied template; the other files are written beside it.
        text: Text of the copied template; None for that of the prompt.

    Returns:
        Paths of the written files, the template last.

    Raises:
        UsageError: The template exists, or another file exists with another text.
    """
    texts = {path.parent / name: content for name, content in prompt.files.texts.items()}
    if prompt.examples:
        texts[examples_path(path)] = read_text(examples_path(prompt.path))
    _check_unwritten(path, texts)

    # The template comes last, so that a copy that has it is complete.
    texts[path] = prompt.files.text if text is None else text
    for written_path, content in texts.items():
        with open_atomic(written_path) as stream:
            stream.write(content.encode())
    return list(texts)


def _check_unwritten(path: Path, texts: Mapping[Path, str]) -> None:
    """Raise UsageError if a template exists, or another of its files exists with another text.

    Args:
        path: Template to write.
        texts: Texts of the other files to write.
    """
    for other_path, content in texts.items():
        if os.path.lexists(other_path) and read_text(other_path) != content:
            raise UsageError(
                f"{other_path}: exists with another text; give a FILE in another folder"
            )
    if os.path.lexists(path):
        raise UsageError(f"{path}: exists; give another FILE")


def _hash(source: str, texts: Mapping[str, str]) -> str:
    """Return the hash of a prompt.

    Args:
        source: Text of the template.
        texts: Texts of its other files, by name.
    """
    if texts:
        content = orjson.dumps([source, sorted(texts.items())])
    else:
        content = source.encode()
    return hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]


def _list_names(folder: Path) -> list[str]:
    """Return the names of the templates in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.jinja"))


def read_header(path: Path, text: str) -> PromptHeader:
    """Parse the front matter of a template.

    Args:
        path: File of the template, for the message.
        text: Text between the lines `---`.

    Raises:
        PromptError: The front matter is invalid.
    """
    # The first line of the file is `---`, and errors count the lines of the file.
    return load_yaml(path, PromptHeader, text=f"\n{text}", error=PromptError)
