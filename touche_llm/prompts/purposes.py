"""Catalog of prompts: the project's own and those of a folder, each loaded for its purpose."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from touche_llm.data.records import Document, Topic
from touche_llm.errors import PromptError, Unusable, UsageError
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel
from touche_llm.llm.parsing import parse_answer
from touche_llm.prompts.fields import JudgePer
from touche_llm.prompts.prompt import (
    AnswerByHeader,
    Prompt,
    Purpose,
    check_overlay,
    examples_path,
    load_prompt,
    read_template,
    template_path,
)
from touche_llm.prompts.templates import HEADER, read_text
from touche_llm.tasks.questions import Question
from touche_llm.tasks.task import Task

_DECODER = json.JSONDecoder()
# Purposes of the prompts that can be sent for each field of the answer.
_DIVISIBLE = ("judge", "sentence")
_TOPIC = Topic("0", "TITLE", "DESCRIPTION", "NARRATIVE", ("FIRST", "SECOND"))


def purposes_of(task: Task) -> dict[str, Purpose]:
    """Return the purposes of a task's prompts, by name."""
    questions = {
        "judge": task.question,
        "sentence": task.sentence_question,
        "stance": task.stance_question,
    }
    found = [
        Purpose(name, question.template_variables, _choose_answer(question), question=question)
        for name, question in questions.items()
        if question is not None
    ]
    if (build := task.objects_answer) is not None:
        found.append(
            Purpose("objects", {"topic": True}, lambda header, topic, _: build(topic), "topic")
        )
    found.append(Purpose("queries", {"topic": True}, lambda *_: AlternativeQueries))
    variables = list_template_variables(task.question)
    # The comparison criterion is the same for all questions of a run, so few-shot examples use it
    # too.
    compare = partial(
        Purpose,
        variables=variables,
        depends_on="documents",
        question=task.question,
        shared=("aim",),
    )
    found.append(
        compare("best", answer_for=lambda _, topic, documents: build_best_answer(documents))
    )
    found.append(
        compare("order", answer_for=lambda _, topic, documents: build_order_answer(documents))
    )
    return {purpose.name: purpose for purpose in found}


def load(
    task: Task,
    purpose: Purpose,
    name: str,
    folder: Path | None = None,
    *,
    judge_per: JudgePer = "document",
    text: str | None = None,
) -> Prompt:
    """Load a prompt like `load_prompt`; a judge prompt is divided if it is sent for each field."""
    prompt, question = load_prompt(task, purpose, name, folder, text), purpose.question
    if judge_per == "document" or purpose.name not in _DIVISIBLE or question is None:
        return prompt
    prompt = prompt.divide()
    variables = question.render(_TOPIC, Document("0", "TEXT", "TITLE", "PRO")).variables
    for field_prompt in prompt.field_prompts:
        field_prompt.render(topic=_TOPIC, document="TEXT", **variables)
    return prompt


def list_judging_purposes(task: Task, topics: Iterable[Topic], stance_depth: int) -> list[str]:
    """Return the purposes of the prompts that judge candidates."""
    needed = ["judge"]
    if task.objects_answer is not None and any(topic.objects is None for topic in topics):
        needed.append("objects")
    if task.sentence_question is not None:
        needed.append("sentence")
    if task.stance_question is not None and stance_depth:
        needed.append("stance")
    return needed


def list_copyable_answers(prompt: Prompt) -> list[str]:
    """Return a warning for each complete answer in the text of a prompt about one document.

    A small model copies what it is shown: 533 of 750 answers of Qwen2.5-Coder-1.5B were the example
    in the prompt.
    """
    if prompt.header.answer in ("objects", "best", "order"):
        return []  # answers in words of the topic, or about several documents
    model = prompt.answer_for(Topic("", ""), 1)
    text = "\n".join((prompt.files.text, *prompt.files.texts.values()))
    return [
        f"{prompt.path}: the text shows {shown}, a complete answer, which small models copy; name the parts instead, "
        f"as the project's prompts do, or give examples in {examples_path(prompt.path).name}"
        for shown in dict.fromkeys(_find_json(text))
        if _is_answer(shown, model, prompt.header.form)
    ]


def _find_json(text: str) -> Iterator[str]:
    for start in re.finditer(r"[\[{]", text):
        with suppress(json.JSONDecodeError):
            yield text[start.start() : _DECODER.raw_decode(text, start.start())[1]]


def _is_answer(text: str, model: type[AnswerModel], form: AnswerForm) -> bool:
    try:
        parse_answer(text, model, form)
    except Unusable:
        return False
    return True


def _choose_answer(question: Question) -> AnswerByHeader:
    return lambda header, topic, documents: (
        (header.position and question.position_answer) or question.answer
    )


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
    """Return the variables of a template that compares documents.

    True for those that it must use.
    """
    return {"topic": True, **question.variables, "aim": False, "documents": True}


@cache
def build_best_answer(documents: int) -> type[AnswerModel]:
    """Build the answer model that names the best of `documents` documents."""
    labels: Any = Literal[tuple(LABELS[:documents])]
    return create_model("Best", __base__=AnswerModel, best=(labels, ...))


@cache
def build_order_answer(documents: int) -> type[AnswerModel]:
    """Build the answer model that orders `documents` documents, each label once: `C > A > B`."""
    if documents <= _MAX_IN_SCHEMA:
        pattern = _permutations(LABELS[:documents])
    else:
        pattern = f"[A-{LABELS[documents - 1]}](?:{ORDER_SEPARATOR}[A-{LABELS[documents - 1]}]){{{documents - 1}}}"
    # Runs before the pattern, whose error could not name the wrong labels.
    complete = BeforeValidator(partial(_require_each_label, LABELS[:documents]))
    text: Any = Annotated[str, complete, Field(pattern=f"^{pattern}$")]
    return create_model("Order", __base__=AnswerModel, order=(text, ...))


def _require_each_label(labels: str, order: Any) -> Any:
    """Return `order`; raise ValueError if it is a text with repeated, missing or unknown labels."""
    if isinstance(order, str):
        found = Counter(order.split(ORDER_SEPARATOR))
        repeated = {label for label, times in found.items() if times > 1}
        wrong = {
            "repeated": repeated,
            "missing": set(labels) - set(found),
            "unknown": set(found) - set(labels),
        }
        problems = [
            f"{', '.join(sorted(names))} {problem}" for problem, names in wrong.items() if names
        ]
        if problems:
            raise ValueError("; ".join(problems))
    return order


def _permutations(labels: str) -> str:
    if len(labels) == 1:
        return labels
    branches = (
        label + ORDER_SEPARATOR + _permutations(labels.replace(label, "")) for label in labels
    )
    return f"(?:{'|'.join(branches)})"


_REFERENCE = re.compile(r"""\{%[-+]?\s*(?:extends|include|import|from)\s+["']([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A template with its purpose and prompt, or with the error that prevents loading it."""

    task: Task
    name: str
    path: Path
    loaded: tuple[Purpose, Prompt] | None
    error: str = ""

    @property
    def is_builtin(self) -> bool:
        """Whether the template is one of the project's own."""
        own = (self.task.folder,) if self.task.is_own else ()
        return self.path.parent in (*own, *self.task.shared_folders)


def find_prompt(task: Task, name: str, folder: Path | None = None) -> CatalogEntry:
    """Return the entry for a prompt's name or path.

    Raise UsageError if the folder has no template of the task.
    """
    path = template_path(task, name, folder)
    try:
        return CatalogEntry(task, name, path, load_named(task, name, folder))
    except PromptError as error:
        return CatalogEntry(task, name, path, None, str(error))


def find_prompts(tasks: Iterable[Task], folder: Path | None = None) -> list[CatalogEntry]:
    """Return the entries of tasks by name; templates of `folder` replace the project's own.

    A file without front matter that another file names is a part of that template, not a prompt. A
    folder without a template is a UsageError.
    """
    found: list[CatalogEntry] = []
    for task in tasks:
        own = set() if folder is None else set(_list_prompts(folder / task.name))
        names = own.union(_list_prompts(task.folder))
        names |= {name for shared in task.shared_folders for name in _list_prompts(shared)} & set(
            purposes_of(task)
        )
        found += [find_prompt(task, name, folder if own else None) for name in sorted(names)]
    if folder is not None and not any(entry.path.is_relative_to(folder) for entry in found):
        raise UsageError(
            f"{folder}: no template found; put them in folders of tasks, as {task.name}/judge.jinja"
        )
    return found


def load_named(
    task: Task, name: str, folder: Path | None = None, judge_per: JudgePer = "document"
) -> tuple[Purpose, Prompt]:
    """Load the prompt with a name or path, divided as by `load`; return its purpose and the prompt.

    A prompt named like a purpose, such as `judge`, has that purpose; the others name theirs as
    `answer` in their front matter.
    """
    purposes = purposes_of(task)
    if folder is not None and not name.endswith(".jinja"):
        check_overlay(
            folder,
            task.name,
            {path.stem for path in (folder / task.name).glob("*.jinja")} or purposes,
        )
    source = read_template(task, name, folder)
    path = source.path
    answer = name if name in purposes else source.header.answer
    if answer not in purposes:
        raise PromptError(
            f"{path}: front matter: {task.name} has no answer {answer!r:.40}; name one of {', '.join(purposes)}"
        )
    return purposes[answer], load(task, purposes[answer], name, folder, judge_per=judge_per)


def list_files(template: Path) -> set[Path]:
    """Return the files of a template, even if it does not load; some of them may not exist."""
    found: set[Path] = set()
    waiting = [template]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [template.parent / name for name in _find_references(path)]
    return {*found, examples_path(template)}


def _list_prompts(folder: Path) -> Iterator[str]:
    files = sorted(folder.glob("*.jinja"))
    parts = {folder / name for file in files for name in _find_references(file)}
    for file in files:
        if file not in parts or HEADER.match(_read_text_or_empty(file)):
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
