"""Tasks built from their definitions: answer models, questions and corpus readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import create_model

from touche_llm.data.records import Document, Topic
from touche_llm.errors import DataError
from touche_llm.llm.answers import AnswerModel
from touche_llm.tasks import features
from touche_llm.tasks.base import Question, RenderedDocument, Task
from touche_llm.tasks.definition import NO_SIDE, TASK_FILE, TaskDefinition, read_definition

_ROLES = ("CLAIM", "PREMISE", "NONE")
_INSTALLED = Path(__file__).parent.parent / "_prompts"
_CHECKOUT = Path(__file__).parents[2] / "prompts"


def prompts_folder() -> Path:
    """Return the folder of the project's own tasks: in the installed package, or at the top of a checkout."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def build_task(definition: TaskDefinition, folder: Path, *, is_own: bool) -> Task:
    """Build a task.

    Raises:
        DataError: The folder lacks a template that the definition needs, or a task of the project that it names.
    """
    has = definition.features
    grades = [(name, scale.grades) for name, scale in definition.aspects.items()]
    stance = [] if definition.stance is None else [("stance", tuple(definition.stance.labels))]
    question = _build_question(definition, _create("Judgment", *grades, *stance))
    if definition.stance is not None and definition.stance.no_side:
        question = replace(question, position_answer=_create("Judgment", *grades, *_position_and_side(definition)))
    task = Task(
        definition=definition,
        folder=folder,
        is_own=is_own,
        shared_folders=_find_shared_folders(definition, folder),
        question=question,
        objects_answer=features.objects_answer if "objects" in has else None,
        sentence_question=_build_sentence_question(definition) if "pairs" in has else None,
        stance_question=_build_question(definition, _create("Stance", *_position_and_side(definition)))
        if "stance_prompt" in has
        else None,
    )
    _check_templates(task)
    return task


def _build_question(definition: TaskDefinition, answer: type[AnswerModel]) -> Question:
    render = features.render_excerpts if "excerpts" in definition.features else features.render_text
    if definition.corpus.reader == "args_me" and "pairs" not in definition.features:
        render = features.render_argument
    if "objects" not in definition.features:
        return Question(answer, render)

    def render_with_objects(topic: Topic, document: Document) -> RenderedDocument:
        return RenderedDocument(render(topic, document).document, features.name_objects(topic))

    return Question(answer, render_with_objects, features.OBJECT_VARIABLES, features.name_objects)


def _build_sentence_question(definition: TaskDefinition) -> Question:
    assert definition.stance is not None
    answer = _create(
        "SentenceJudgment",
        ("role", _ROLES),
        *(
            (name, definition.aspects[name].grades)
            for name in definition.aspects
            if name in definition.sentence_aspects
        ),
        ("stance", (*definition.stance.labels, NO_SIDE)),
    )
    return Question(answer, features.render_sentence, features.SENTENCE_VARIABLES)


def _position_and_side(definition: TaskDefinition) -> tuple[tuple[str, tuple[str, ...]], ...]:
    assert definition.stance is not None
    labels = tuple(label for label in definition.stance.labels if label != definition.stance.no_side[0])
    return ("position", ("YES", "NO")), ("stance", labels)


def _create(name: str, *fields: tuple[str, Iterable[int | str]]) -> type[AnswerModel]:
    """Create an answer model with these labels by field, in their order."""
    types: dict[str, Any] = {field: (Literal[tuple(labels)], ...) for field, labels in fields}
    return create_model(name, __base__=AnswerModel, **types)


def _find_shared_folders(definition: TaskDefinition, folder: Path) -> tuple[Path, ...]:
    """Return the folders of the tasks whose templates a definition shares: one that it names, one which that names."""
    folders: list[Path] = []
    while (name := definition.templates) is not None:
        shared = prompts_folder() / name
        if not (shared / TASK_FILE).is_file() or shared in folders:
            known = ", ".join(sorted(path.parent.name for path in prompts_folder().glob(f"*/{TASK_FILE}")))
            raise DataError(f"{folder / TASK_FILE}: templates: {name!r} is no task of the project; it must be {known}")
        folders.append(shared)
        definition = read_definition(shared / TASK_FILE, TaskDefinition)
    return tuple(folders)


def _check_templates(task: Task) -> None:
    """Raise DataError if a template that every run of the task needs is missing."""
    needed = {"judge": "aspects: are graded with"}
    for name, purpose in (("objects", "objects"), ("stance_prompt", "stance"), ("pairs", "sentence")):
        if name in task.definition.features:
            needed[purpose] = f"features: {name} needs"
    for purpose, why in needed.items():
        path = task.find_template(f"{purpose}.jinja")
        if not path.is_file():
            raise DataError(f"{task.folder / TASK_FILE}: {why} the template {path}, which is missing; write it")
