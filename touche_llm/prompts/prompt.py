"""Prompt templates: load, check, render. Text that a template inserts is data and can never act as chat control."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from jinja2 import UndefinedError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from touche_llm.data.records import Topic
from touche_llm.data.setting_problems import describe_problem
from touche_llm.data.yaml_text import YamlError, parse_yaml
from touche_llm.errors import PromptError, UsageError
from touche_llm.llm.answers import AnswerModel
from touche_llm.llm.request import Message, Origin
from touche_llm.prompts.few_shot import ENDING as EXAMPLES_ENDING
from touche_llm.prompts.few_shot import Example, parse_examples
from touche_llm.prompts.templates import HEADER, ROLES, TemplateFiles, pulled_in, read_text
from touche_llm.text.sanitize import SanitizedText, sanitize

_INSTALLED = Path(__file__).parent.parent / "_prompts"
_CHECKOUT = Path(__file__).parents[2] / "prompts"
_HASH_DIGITS = 12
# Characters.
_SHORT = 10_000


class PromptHeader(BaseModel):
    """The YAML front matter of a template."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = Field(ge=1, lt=2**53)
    purpose: str
    answer: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A template with its header.

    Attributes:
        name: `task/name`.
        path: of the template.
        header: its front matter.
        hash: over the text of the file, and where there are any over the files that it pulls in and its examples.
        files: the template with what it pulls in.
        examples: solved examples, which are shown before the question.
        shared: variables that the examples take from the question, such as what better means.
    """

    name: str
    path: Path
    header: PromptHeader
    hash: str
    files: TemplateFiles
    examples: tuple[Example, ...] = ()
    shared: tuple[str, ...] = ()
    _turns: dict[tuple[Any, ...], tuple[Message, ...]] = field(default_factory=dict, repr=False, compare=False)

    def render(self, **variables: Any) -> tuple[Message, ...]:
        """The system message, a user and an assistant message for each example, and the user message.

        Raises:
            PromptError: an undefined variable, or a template that fails or does what the sandbox forbids; names the
                template, the place and the variable.
        """
        system, user = (Message(role, self._text(role, variables)) for role in ROLES)
        return (system, *self._examples(variables), user)

    def _examples(self, variables: Mapping[str, Any]) -> tuple[Message, ...]:
        common = {name: variables[name] for name in self.shared if name in variables}
        # They are the same for all documents, and a document that is cut is rendered many times.
        key = tuple(common.items())
        if key not in self._turns:
            turns: list[Message] = []
            for number, each in enumerate(self.examples, start=1):
                try:
                    text = self._text("user", {**each.variables, **common, "topic": each.topic})
                except PromptError as error:
                    raise PromptError(f"{examples_path(self.path)}: example {number}: {error}") from error
                turns += [Message("user", text), Message("assistant", each.answer)]
            self._turns[key] = tuple(turns)
        return self._turns[key]

    def _text(self, role: str, variables: Mapping[str, Any]) -> str:
        try:
            return self.files.render(role, variables).strip("\n")
        except UndefinedError as error:
            place = self.files.place(error)
            raise PromptError(
                f"{self.path}: block {role}: {place}{error.message}; the template may use {_names(variables)}"
            ) from error
        # A template is a program of its author: whatever it raises is about the template.
        except Exception as error:
            place = self.files.place(error)
            raise PromptError(f"{self.path}: block {role}: {place}{type(error).__name__}: {error}") from error

    def origin(self, topic_id: str, document_id: str | None) -> Origin:
        """The origin of a request made from this prompt."""
        return Origin(self.name, self.header.version, self.hash, topic_id, document_id)

    @property
    def label(self) -> str:
        """Name, version and hash in one word, as judgments carry it."""
        return f"{self.name}@{self.header.version}-{self.hash}"


def _inserted(value: Any) -> str:
    """What an expression of a template inserts."""
    if type(value) is SanitizedText:
        return value
    text = value if type(value) is str else str(value)
    return _neutralised(text) if len(text) <= _SHORT else sanitize(text)


# A topic's texts are inserted anew for each of its documents.
_neutralised = lru_cache(maxsize=1024)(sanitize)


def prompts_folder() -> Path:
    """The project's own templates: in the installed package, or at the top of a checkout."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def examples_path(template: Path) -> Path:
    """Where the examples of a template lie, if it has any."""
    return template.with_name(template.stem + EXAMPLES_ENDING)


def template_path(task: str, name: str, folder: Path | None = None) -> Path:
    """Where the template of a name lies, in `folder` or else among the project's own; a name may be a path itself."""
    if name.endswith(".jinja"):
        return Path(name)
    file = Path(task, f"{name}.jinja")
    # A link that leads nowhere is there, and an error.
    return (folder if folder is not None and os.path.lexists(folder / file) else prompts_folder()) / file


def check_overlay(folder: Path, task: str, names: Collection[str]) -> None:
    """Raise UsageError unless a folder of templates has at least one of those that are asked for, `TASK/NAME.jinja`."""
    mine = folder / task
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of templates")
    wanted = sorted(f"{task}/{name}.jinja" for name in names)
    if not any(os.path.lexists(folder / each) for each in wanted):
        there = ", ".join(_stems(mine)) or "no template"
        raise UsageError(f"{folder}: none of {', '.join(wanted)} is there; {mine} has {there}")
    for path in sorted(mine.glob(f"*{EXAMPLES_ENDING}")):
        if not (mine / f"{path.name.removesuffix(EXAMPLES_ENDING)}.jinja").exists():
            raise UsageError(f"{path}: no template of this name lies beside it; copy the project's own there")


def load_prompt(
    task: str,
    name: str,
    answer: str,
    variables: Mapping[str, bool],
    *,
    folder: Path | None = None,
    answer_for: Callable[[Topic, int], type[AnswerModel]] | None = None,
    shared: Collection[str] = (),
) -> Prompt:
    """The prompt `name` of a task, or the template file that `name` is a path to (it ends in `.jinja`).

    Args:
        task: whose prompts.
        name: a name, or a path.
        answer: the answer model that the caller reads; the front matter must name the same.
        variables: what the template may use, and whether it must.
        folder: of templates that are taken in place of the project's own, as `folder/task/name.jinja`.
        answer_for: the answer model for a topic and a number of documents, which examples must fit.
        shared: those of the variables that examples take from the question.

    Raises:
        PromptError: no such template, or its front matter, syntax, blocks or examples are not as they should be.
    """
    own = prompts_folder()
    if not name.endswith(".jinja") and not name.isidentifier():
        raise PromptError(f"{name}: neither the name of a prompt nor the path of a .jinja file")
    path = template_path(task, name, folder)
    try:
        source = read_text(path)
    except OSError as error:
        known = [f"{task} has {', '.join(_stems(own / task))}"]
        if folder is not None:
            known.append(f"{folder / task} has {', '.join(_stems(folder / task))}")
        raise PromptError(f"{path}: cannot read the prompt: {error.strerror}; {'; '.join(known)}") from error
    found = HEADER.match(source)
    if found is None:
        raise PromptError(f"{path}: must begin with front matter between two lines of `---`")
    header = read_header(path, found.group(1))
    if header.answer != answer:
        raise PromptError(f"{path}: front matter: asks for the answer {header.answer!r}, but {answer!r} is read here")
    files = TemplateFiles(path, source, variables, _inserted)
    for unused in sorted(each for each, needed in variables.items() if needed and each not in files.used):
        raise PromptError(f"{path}: the variable {unused!r} is not used, so its text would never be sent")
    texts, examples = dict(files.texts), tuple[Example, ...]()
    given = examples_path(path)
    if os.path.lexists(given):
        if answer_for is None:
            raise TypeError(f"{given}: there are examples, and the caller does not say what their answers must fit")
        texts[given.name] = _examples_text(given)
        examples = parse_examples(given, texts[given.name], files.used - {"topic", *shared}, answer_for)
    prompt = Prompt(f"{task}/{path.stem}", path, header, _hash(source, texts), files, examples, tuple(shared))
    if not files.used.intersection(shared):
        prompt._examples({})  # now rather than at the first question
    return prompt


def _examples_text(path: Path) -> str:
    try:
        return read_text(pulled_in(path.parent, path.name, "examples"))
    except OSError as error:
        raise PromptError(f"{path}: cannot read the examples: {error.strerror}") from error


def _hash(source: str, texts: Mapping[str, str]) -> str:
    """Of a template alone over its text; else over that and all other files by name, in the order of their names."""
    content = source.encode() if not texts else orjson.dumps([source, sorted(texts.items())])
    return hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]


def _stems(folder: Path) -> list[str]:
    return sorted(each.stem for each in folder.glob("*.jinja"))


def read_header(path: Path, text: str) -> PromptHeader:
    """The front matter of the template `path`; raises PromptError where it is not as it should be."""
    try:
        return PromptHeader.model_validate(parse_yaml(f"\n{text}"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PromptError(f"{path}: front matter: {where}: {describe_problem(first)}") from error
    except YamlError as error:
        raise PromptError(f"{path}: front matter is not YAML: {error}") from error


def _names(variables: Mapping[str, Any]) -> str:
    return ", ".join(sorted(variables))
