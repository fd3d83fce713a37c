"""Catalog of prompts: the project's own and those of a folder, each loaded for its purpose."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
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
# Answers that are words of the topic or about several documents, so that a prompt cannot show one
# that would be valid.
_OTHER_ANSWERS = ("objects", "best", "order")
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
    question: Question, header: PromptHeader, topic: Topic, document_count: int
) -> type[AnswerModel]:
    """Return the answer model of a question, with the position if the front matter has it."""
    if header.position and question.position_answer is not None:
        return question.position_answer
    return question.answer


def _list_topic_purposes(task: Task) -> list[Purpose]:
    """Return the purposes of the prompts about a topic alone.

    They find additional queries and, if the task is about two objects, the objects in a title.
    """
    variables = {"topic": True}
    queries = Purpose(
        name="queries",
        variables=variables,
        answer_for=lambda header, topic, document_count: AlternativeQueries,
    )
    build_objects_answer = task.objects_answer
    if build_objects_answer is None:
        return [queries]

    objects = Purpose(
        name="objects",
        variables=variables,
        answer_for=lambda header, topic, document_count: build_objects_answer(topic),
        depends_on="topic",
    )
    return [objects, queries]


def _list_comparison_purposes(task: Task) -> list[Purpose]:
    """Return the purposes of the prompts that choose the best of several documents or order them."""
    # Each builds the model of the answers about a number of documents.
    builders = {"best": build_best_answer, "order": build_order_answer}
    purposes: list[Purpose] = []
    for name, build_answer in builders.items():
        purpose = Purpose(
            name=name,
            variables=list_template_variables(task.question),
            answer_for=partial(_build_comparison_answer, build_answer),
            depends_on="documents",
            question=task.question,
            # Few-shot examples are rendered with the `aim` of the question, the criterion of the
            # comparison, which is the same for all questions of a run.
            shared=("aim",),
        )
        purposes.append(purpose)
    return purposes


def _build_comparison_answer(
    build_answer: Callable[[int], type[AnswerModel]],
    header: PromptHeader,
    topic: Topic,
    document_count: int,
) -> type[AnswerModel]:
    """Build the model of an answer that compares documents, whatever the topic is."""
    return build_answer(document_count)


def load(
    task: Task,
    purpose: Purpose,
    name: str,
    folder: Path | None = None,
    *,
    judge_per: JudgePer = "document",
    text: str | None = None,
) -> Prompt:
    """Load a prompt; divide a judge prompt that is to be sent once for each field of its answer.

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
    is_divided = judge_per == "field" and purpose.name in _DIVISIBLE
    if not is_divided or purpose.question is None:
        return prompt

    divided = prompt.divide()
    _check_instructions(divided, purpose.question)
    return divided


def _check_instructions(divided: Prompt, question: Question) -> None:
    """Raise PromptError if a divided prompt has no instructions for one of its fields alone.

    They are found when a prompt is rendered, so each one is rendered once with invented texts.
    """
    rendered = question.render(_TOPIC, Document("0", "TEXT", "TITLE", "PRO"))
    for field_prompt in divided.field_prompts:
        field_prompt.render(topic=_TOPIC, document="TEXT", **rendered.variables)


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
    if prompt.header.answer in _OTHER_ANSWERS:
        return []

    # These answers do not depend on the topic.
    answer_model = prompt.answer_for(Topic("", ""), document_count=1)
    examples_name = examples_path(prompt.path).name
    text = "\n".join((prompt.files.text, *prompt.files.texts.values()))

    warnings: list[str] = []
    for value in _find_json(text):
        if _is_answer(value, answer_model, prompt.header.form):
            warnings.append(
                f"{prompt.path}: the text shows {value}, a complete answer, which small models copy; name the parts "
                f"instead, as the project's prompts do, or give examples in {examples_name}"
            )
    return warnings


def _find_json(text: str) -> list[str]:
    """Return the different JSON objects and arrays in a text, also those within others."""
    values: list[str] = []
    for bracket in re.finditer(r"[\[{]", text):
        start = bracket.start()
        try:
            _, end = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError:
            continue
        values.append(text[start:end])
    return list(dict.fromkeys(values))


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
    pattern = f"^{_match_orders(labels)}$"
    # It runs before the pattern, whose error would not say which labels are wrong.
    check_labels = BeforeValidator(partial(_require_each_label, labels))
    order_type: Any = Annotated[str, check_labels, Field(pattern=pattern)]
    return create_model("Order", __base__=AnswerModel, order=(order_type, ...))


def _match_orders(labels: str) -> str:
    """Return a regular expression of the orders of labels: of many labels, also with repetitions."""
    if len(labels) <= _MAX_IN_SCHEMA:
        return _match_permutations(labels)
    label = f"[A-{labels[-1]}]"
    return f"{label}(?:{ORDER_SEPARATOR}{label}){{{len(labels) - 1}}}"


def _require_each_label(labels: str, order: object) -> object:
    """Return an order of labels as it is; anything but a text is left to other checks.

    Raises:
        ValueError: The order has repeated, missing or unknown labels.
    """
    if not isinstance(order, str):
        return order

    counts = Counter(order.split(ORDER_SEPARATOR))
    repeated = [label for label, count in counts.items() if count > 1]
    missing = set(labels) - set(counts)
    unknown = set(counts) - set(labels)

    problems: list[str] = []
    if repeated:
        problems.append(f"{', '.join(sorted(repeated))} repeated")
    if missing:
        problems.append(f"{', '.join(sorted(missing))} missing")
    if unknown:
        problems.append(f"{', '.join(sorted(unknown))} unknown")
    if problems:
        raise ValueError("; ".join(problems))
    return order


def _match_permutations(labels: str) -> str:
    """Return the regular expression of all orders of labels: `(?:A > B|B > A)` of A and B."""
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

    Raises:
        UsageError: The folder has no template of these tasks.
    """
    task_names: list[str] = []
    entries: list[CatalogEntry] = []
    for task in tasks:
        task_names.append(task.name)
        entries += _find_task_prompts(task, folder)
    if folder is None or not task_names:
        return entries

    has_template = any(entry.path.is_relative_to(folder) for entry in entries)
    if not has_template:
        example = f"{task_names[-1]}/judge.jinja"
        raise UsageError(f"{folder}: no template found; put them in folders of tasks, as {example}")
    return entries


def _find_task_prompts(task: Task, folder: Path | None) -> list[CatalogEntry]:
    """Return the entries of a task by name; templates of `folder` replace the task's own."""
    task_names = _list_task_prompts(task)
    folder_names: list[str] = []
    if folder is not None:
        folder_names = _list_prompts(folder / task.name)

    # A folder with templates of other tasks only is no error here, but would be in `find_prompt`.
    folder_with_prompts = folder if folder_names else None
    names = task_names.union(folder_names)
    return [find_prompt(task, name, folder_with_prompts) for name in sorted(names)]


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

    Args:
        task: Task of the prompt.
        name: Name of the prompt, or the path of its template, which ends in `.jinja`.
        folder: Folder whose templates are preferred to those of the task.
        judge_per: What one request of a judge prompt is about.

    Raises:
        PromptError: The prompt is invalid, or the task lacks its purpose.
        UsageError: The folder has no template of the task, or the prompt cannot be divided.
    """
    is_path = name.endswith(".jinja")
    if folder is not None and not is_path:
        _check_folder(folder, task)

    purpose = _find_purpose(task, name, folder)
    prompt = load(task, purpose, name, folder, judge_per=judge_per)
    return LoadedPrompt(purpose, prompt)


def _check_folder(folder: Path, task: Task) -> None:
    """Raise UsageError if a folder has no template of a task, or examples without a template."""
    templates = {path.stem for path in (folder / task.name).glob("*.jinja")}
    check_overlay(folder, task.name, templates or purposes_of(task))


def _find_purpose(task: Task, name: str, folder: Path | None) -> Purpose:
    """Return the purpose of a prompt.

    A prompt named like a purpose, such as `judge`, has that purpose; the others name theirs as
    `answer` in their front matter.

    Raises:
        PromptError: The template is invalid, or the task lacks the purpose.
    """
    purposes = purposes_of(task)
    # It is read in any case, so that the error of an invalid template comes first.
    source = read_template(task, name, folder)
    if name in purposes:
        return purposes[name]

    answer = source.header.answer
    if answer not in purposes:
        raise PromptError(
            f"{source.path}: front matter: {task.name} has no answer {answer!r:.40}; "
            f"name one of {', '.join(purposes)}"
        )
    return purposes[answer]


def list_files(template: Path) -> set[Path]:
    """Return the files of a prompt: template, few-shot examples, and all that the template includes.

    An invalid template has files too, and a file that is missing is listed as well.
    """
    files: set[Path] = set()
    waiting = [template]
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        for name in _find_references(path):
            # Jinja looks for all files in the folder of the template, whichever file refers to them.
            waiting.append(template.parent / name)

    files.add(examples_path(template))
    return files


def _list_prompts(folder: Path) -> list[str]:
    """Return the names of the prompts in a folder.

    A file without front matter that another file refers to is a part of that template, not a
    prompt.
    """
    files = sorted(folder.glob("*.jinja"))
    referenced: set[Path] = set()
    for file in files:
        referenced.update(folder / name for name in _find_references(file))

    names: list[str] = []
    for file in files:
        has_front_matter = HEADER.match(_read_text_or_empty(file)) is not None
        if has_front_matter or file not in referenced:
            names.append(file.stem)
    return names


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
