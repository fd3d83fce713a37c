"""Catalog of prompts: the project's own and those of a folder, each loaded for its purpose."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, create_model

from touche_llm.data.records import Document, Topic
from touche_llm.errors import PromptError, Unusable, UsageError
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel
from touche_llm.llm.parsing import parse_answer
from touche_llm.prompts.fields import JudgePer
from touche_llm.prompts.prompt import (
    Prompt,
    PromptHeader,
    Purpose,
    check_overlay,
    examples_path,
    load_prompt,
    read_template,
    template_path,
)
from touche_llm.prompts.template_text import HEADER, read_text
from touche_llm.tasks.questions import Question
from touche_llm.tasks.task import Task

_DECODER = json.JSONDecoder()
# Purposes of the prompts that can be sent for each field of the answer.
_DIVISIBLE = ("judge", "sentence")
_TOPIC = Topic("0", "TITLE", "DESCRIPTION", "NARRATIVE", ("FIRST", "SECOND"))


def purposes_of(task: Task) -> dict[str, Purpose]:
    """Return the purposes of a task's prompts, by name."""
    purposes = [
        *_list_document_purposes(task),
        *_list_topic_purposes(task),
        *_list_comparison_purposes(task),
    ]
    return {purpose.name: purpose for purpose in purposes}


def _list_document_purposes(task: Task) -> list[Purpose]:
    """Return the purposes of the prompts about one document."""
    purposes: list[Purpose] = []
    for name, question in task.questions.items():
        purpose = Purpose(
            name=name,
            variables=question.template_variables,
            answer_for=partial(_choose_answer, question),
            question=question,
        )
        purposes.append(purpose)
    return purposes


def _choose_answer(
    question: Question, header: PromptHeader, topic: Topic, documents: int
) -> type[AnswerModel]:
    """Return the answer model of a question, with the position if the front matter has it."""
    if header.position and question.position_answer is not None:
        return question.position_answer
    return question.answer


def _list_topic_purposes(task: Task) -> list[Purpose]:
    """Return the purposes of the prompts about a topic alone."""
    variables = {"topic": True}
    purposes: list[Purpose] = []
    build_objects_answer = task.objects_answer
    if build_objects_answer is not None:
        purpose = Purpose(
            name="objects",
            variables=variables,
            answer_for=lambda header, topic, documents: build_objects_answer(topic),
            depends_on="topic",
        )
        purposes.append(purpose)

    purpose = Purpose(
        name="queries",
        variables=variables,
        answer_for=lambda header, topic, documents: AlternativeQueries,
    )
    purposes.append(purpose)
    return purposes


def _list_comparison_purposes(task: Task) -> list[Purpose]:
    """Return the purposes of the prompts that compare documents."""
    builders = {"best": build_best_answer, "order": build_order_answer}
    purposes: list[Purpose] = []
    for name, build_answer in builders.items():
        purpose = Purpose(
            name=name,
            variables=list_template_variables(task.question),
            answer_for=partial(_build_comparison_answer, build_answer),
            depends_on="documents",
            question=task.question,
            # The comparison criterion is the same for all questions of a run, so few-shot examples
            # use it too.
            shared=("aim",),
        )
        purposes.append(purpose)
    return purposes


def _build_comparison_answer(
    build_answer: Callable[[int], type[AnswerModel]],
    header: PromptHeader,
    topic: Topic,
    documents: int,
) -> type[AnswerModel]:
    """Build the answer model for a number of documents."""
    return build_answer(documents)


def load(
    task: Task,
    purpose: Purpose,
    name: str,
    folder: Path | None = None,
    *,
    judge_per: JudgePer = "document",
    text: str | None = None,
) -> Prompt:
    """Load a prompt like `load_prompt`, and divide a judge prompt that is sent for each field.

    Args:
        task: Task of the prompt.
        purpose: Purpose for which it is loaded.
        name: Name of the prompt, or the path of its template, which ends in `.jinja`.
        folder: Folder whose templates are preferred to those of the task.
        judge_per: What one request of a judge prompt is about.
        text: Text that takes the place of the template's own.

    Raises:
        PromptError: The prompt is invalid, or has no instructions for one of its fields alone.
        UsageError: The prompt is to be divided, and its answer has one field only.
    """
    prompt = load_prompt(task, purpose, name, folder, text)
    question = purpose.question
    if judge_per == "document" or purpose.name not in _DIVISIBLE or question is None:
        return prompt

    divided = prompt.divide()
    # Errors are raised now rather than at the first question.
    rendered = question.render(_TOPIC, Document("0", "TEXT", "TITLE", "PRO"))
    for field_prompt in divided.field_prompts:
        field_prompt.render(topic=_TOPIC, document="TEXT", **rendered.variables)
    return divided


def list_judging_purposes(task: Task, topics: Iterable[Topic], stance_depth: int) -> list[str]:
    """Return the purposes of the prompts that judge candidates.

    Args:
        task: Task of the run.
        topics: Topics of the run.
        stance_depth: Number of documents per topic that the stance prompt labels.
    """
    purposes = ["judge"]
    lacks_objects = any(topic.objects is None for topic in topics)
    if task.objects_answer is not None and lacks_objects:
        purposes.append("objects")
    if "sentence" in task.questions:
        purposes.append("sentence")
    if "stance" in task.questions and stance_depth > 0:
        purposes.append("stance")
    return purposes


def list_copyable_answers(prompt: Prompt) -> list[str]:
    """Return a warning for each complete answer in the text of a prompt about one document.

    A small model copies what it is shown: 533 of 750 answers of Qwen2.5-Coder-1.5B were the example
    in the prompt.
    """
    # Other answers are words of the topic, or about several documents.
    if prompt.header.answer in ("objects", "best", "order"):
        return []

    answer = prompt.answer_for(Topic("", ""), 1)
    text = "\n".join((prompt.files.text, *prompt.files.texts.values()))
    # Without repetitions.
    values = list(dict.fromkeys(_find_json(text)))
    return [
        f"{prompt.path}: the text shows {value}, a complete answer, which small models copy; name the parts instead, "
        f"as the project's prompts do, or give examples in {examples_path(prompt.path).name}"
        for value in values
        if _is_answer(value, answer, prompt.header.form)
    ]


def _find_json(text: str) -> Iterator[str]:
    """Yield the JSON objects and arrays in a text, also those within others."""
    for start in re.finditer(r"[\[{]", text):
        with suppress(json.JSONDecodeError):
            _, end = _DECODER.raw_decode(text, start.start())
            yield text[start.start() : end]


def _is_answer(text: str, model: type[AnswerModel], form: AnswerForm) -> bool:
    """Return whether a text is an answer in a form."""
    try:
        parse_answer(text, model, form)
    except Unusable:
        return False
    return True


LABELS = string.ascii_uppercase
MAX_DOCUMENTS = len(LABELS)
ORDER_SEPARATOR = " > "
# For up to this many documents the schema itself forbids repeated labels; beyond, the schema
# becomes too large.
_MAX_IN_SCHEMA = 6
# In characters.
MAX_QUERY_LENGTH = 100
_Query = Annotated[str, Field(pattern=rf"^[0-9A-Za-z][0-9A-Za-z ',-]{{2,{MAX_QUERY_LENGTH - 1}}}$")]


class AlternativeQueries(AnswerModel):
    """Three keyword queries."""

    query1: _Query
    query2: _Query
    query3: _Query


def list_template_variables(question: Question) -> dict[str, bool]:
    """Return the variables of a template that compares documents; True for those it must use."""
    return {"topic": True, **question.variables, "aim": False, "documents": True}


@cache
def build_best_answer(documents: int) -> type[AnswerModel]:
    """Build the answer model that names the best of `documents` documents."""
    labels: Any = Literal[tuple(LABELS[:documents])]
    return create_model("Best", __base__=AnswerModel, best=(labels, ...))


@cache
def build_order_answer(documents: int) -> type[AnswerModel]:
    """Build the answer model that orders `documents` documents, each label once: `C > A > B`."""
    labels = LABELS[:documents]
    if documents <= _MAX_IN_SCHEMA:
        pattern = _match_permutations(labels)
    else:
        label = f"[A-{labels[-1]}]"
        pattern = f"{label}(?:{ORDER_SEPARATOR}{label}){{{documents - 1}}}"

    # Runs before the pattern, whose error could not name the wrong labels.
    complete = BeforeValidator(partial(_require_each_label, labels))
    text: Any = Annotated[str, complete, Field(pattern=f"^{pattern}$")]
    return create_model("Order", __base__=AnswerModel, order=(text, ...))


def _require_each_label(labels: str, order: object) -> object:
    """Return an order of labels as it is; anything but a text is left to other checks.

    Raises:
        ValueError: The order has repeated, missing or unknown labels.
    """
    if not isinstance(order, str):
        return order

    counts = Counter(order.split(ORDER_SEPARATOR))
    labels_by_problem = {
        "repeated": [label for label, count in counts.items() if count > 1],
        "missing": set(labels) - set(counts),
        "unknown": set(counts) - set(labels),
    }
    problems = [
        f"{', '.join(sorted(wrong))} {problem}"
        for problem, wrong in labels_by_problem.items()
        if wrong
    ]
    if problems:
        raise ValueError("; ".join(problems))
    return order


def _match_permutations(labels: str) -> str:
    """Return the regular expression of all orders of labels."""
    if len(labels) == 1:
        return labels

    branches: list[str] = []
    for label in labels:
        others = labels.replace(label, "")
        branches.append(label + ORDER_SEPARATOR + _match_permutations(others))
    return f"(?:{'|'.join(branches)})"


_REFERENCE = re.compile(r"""\{%[-+]?\s*(?:extends|include|import|from)\s+["']([^"']+)["']""")


class LoadedPrompt(NamedTuple):
    """A prompt, loaded for its purpose."""

    purpose: Purpose
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A template of the catalogue.

    Attributes:
        task: Task of the template.
        name: Name or path of the prompt.
        path: File of the template.
        result: Prompt with its purpose, or the error that prevents loading it.
    """

    task: Task
    name: str
    path: Path
    result: LoadedPrompt | PromptError

    @property
    def loaded(self) -> LoadedPrompt | None:
        """Prompt with its purpose; None if it cannot be loaded."""
        return None if isinstance(self.result, PromptError) else self.result

    @property
    def error(self) -> str | None:
        """Message of the error that prevents loading it; None if it is loaded."""
        return str(self.result) if isinstance(self.result, PromptError) else None

    @property
    def is_builtin(self) -> bool:
        """Whether the template is one of the project's own."""
        folder = self.path.parent
        is_in_task = self.task.is_own and folder == self.task.folder
        return is_in_task or folder in self.task.shared_folders


def find_prompt(task: Task, name: str, folder: Path | None = None) -> CatalogEntry:
    """Return the entry for a prompt's name or path.

    Args:
        task: Task of the prompt.
        name: Name of the prompt, or the path of its template, which ends in `.jinja`.
        folder: Folder whose templates are preferred to those of the task.

    Raises:
        UsageError: The folder has no template of the task.
    """
    path = template_path(task, name, folder)
    result: LoadedPrompt | PromptError
    try:
        result = load_named(task, name, folder)
    except PromptError as error:
        result = error
    return CatalogEntry(task, name, path, result)


def find_prompts(tasks: Iterable[Task], folder: Path | None = None) -> list[CatalogEntry]:
    """Return the entries of tasks by name; templates of `folder` replace the project's own.

    A file without front matter that another file names is a part of that template, not a prompt.

    Raises:
        UsageError: The folder has no template of these tasks.
    """
    entries: list[CatalogEntry] = []
    for task in tasks:
        own_names = set() if folder is None else set(_list_prompts(folder / task.name))
        # A folder without a template of this task is no error if it has one of another task.
        task_folder = folder if own_names else None
        names = own_names | _list_task_prompts(task)
        entries += [find_prompt(task, name, task_folder) for name in sorted(names)]

    if folder is not None and not any(entry.path.is_relative_to(folder) for entry in entries):
        raise UsageError(
            f"{folder}: no template found; put them in folders of tasks, as {task.name}/judge.jinja"
        )
    return entries


def _list_task_prompts(task: Task) -> set[str]:
    """Return the names of a task's prompts: its own, and those for its purposes that it shares."""
    names = set(_list_prompts(task.folder))
    purposes = purposes_of(task)
    for folder in task.shared_folders:
        names.update(name for name in _list_prompts(folder) if name in purposes)
    return names


def load_named(
    task: Task, name: str, folder: Path | None = None, judge_per: JudgePer = "document"
) -> LoadedPrompt:
    """Load the prompt with a name or path, divided as by `load`.

    A prompt named like a purpose, such as `judge`, has that purpose; the others name theirs as
    `answer` in their front matter.

    Args:
        task: Task of the prompt.
        name: Name of the prompt, or the path of its template, which ends in `.jinja`.
        folder: Folder whose templates are preferred to those of the task.
        judge_per: What one request of a judge prompt is about.

    Raises:
        PromptError: The prompt is invalid, or the task lacks its purpose.
        UsageError: The folder has no template of the task, or the prompt cannot be divided.
    """
    purposes = purposes_of(task)
    if folder is not None and not name.endswith(".jinja"):
        templates = {path.stem for path in (folder / task.name).glob("*.jinja")}
        check_overlay(folder, task.name, templates or purposes)

    source = read_template(task, name, folder)
    purpose_name = name if name in purposes else source.header.answer
    if purpose_name not in purposes:
        raise PromptError(
            f"{source.path}: front matter: {task.name} has no answer {purpose_name!r:.40}; "
            f"name one of {', '.join(purposes)}"
        )

    purpose = purposes[purpose_name]
    prompt = load(task, purpose, name, folder, judge_per=judge_per)
    return LoadedPrompt(purpose, prompt)


def list_files(template: Path) -> set[Path]:
    """Return the files of a template, even if it does not load; some of them may not exist."""
    files: set[Path] = set()
    waiting = [template]
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.add(path)
            waiting += [template.parent / name for name in _find_references(path)]
    files.add(examples_path(template))
    return files


def _list_prompts(folder: Path) -> Iterator[str]:
    """Yield the names of the prompts in a folder, without the parts of other templates."""
    files = sorted(folder.glob("*.jinja"))
    referenced: set[Path] = set()
    for file in files:
        referenced.update(folder / name for name in _find_references(file))

    for file in files:
        has_front_matter = HEADER.match(_read_text_or_empty(file)) is not None
        if has_front_matter or file not in referenced:
            yield file.stem


def _find_references(path: Path) -> list[str]:
    """Return the names of the files in its folder that a template file refers to."""
    names = _REFERENCE.findall(_read_text_or_empty(path))
    return [name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts]


def _read_text_or_empty(path: Path) -> str:
    """Return the text of a file, or an empty text if it is unreadable; loading raises the error."""
    try:
        return read_text(path)
    except (OSError, PromptError):
        return ""
