"""Tasks built from their definitions: answer models, questions and corpus readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import create_model, model_validator

from touche_llm.data.records import Document, Topic
from touche_llm.errors import DataError
from touche_llm.llm.answers import AnswerModel
from touche_llm.tasks import features
from touche_llm.tasks.base import Question, RenderedDocument, Task
from touche_llm.tasks.definition import NO_SIDE, TASK_FILE, TaskDefinition, read_definition
from touche_llm.text.analysis import Analyzer
from touche_llm.text.passages import rank_passages

# The longest title of the three editions has 17 words. Each span of words becomes a label of the schema.
_MAX_TITLE_WORDS = 40
_MAX_OBJECT_WORDS = 5
_PUNCTUATION = " \t.,;:?!\"'()[]{}“”‘’„…"
OBJECT_VARIABLES = {"first": False, "second": False}
SENTENCE_VARIABLES = {"conclusion": False, "side": False}
# Shared by all pages, since it caches stems.
_ANALYZER = Analyzer()


class _Objects(AnswerModel):
    first: str
    second: str

    @model_validator(mode="after")
    def _differ(self) -> _Objects:
        first, second = (f" {' '.join(name.casefold().split())} " for name in (self.first, self.second))
        if first in second or second in first:
            raise ValueError(f"{self.first!r} and {self.second!r} are not two objects: one contains the other")
        return self


def objects_answer(topic: Topic) -> type[AnswerModel]:
    """Return the answer model for the two objects of a topic; only spans of its title are valid.

    Raises:
        DataError: The title has fewer than two words, or more than `_MAX_TITLE_WORDS`.
    """
    spans = list_title_spans(topic.title)
    if len(spans) < 2 or len(topic.title.split()) > _MAX_TITLE_WORDS:
        raise DataError(
            f"topic {topic.id}: cannot extract two objects from a title of {len(topic.title.split())} words; "
            "name them in <objects>"
        )
    labels = Literal[spans]  # type: ignore[valid-type]
    return create_model("Objects", __base__=_Objects, first=(labels, ...), second=(labels, ...))


def list_title_spans(title: str) -> tuple[str, ...]:
    """Return all distinct spans of one to five words of a title, without punctuation at their ends."""
    words = title.split()
    spans = (
        " ".join(words[start : start + length]).strip(_PUNCTUATION)
        for start in range(len(words))
        for length in range(1, min(_MAX_OBJECT_WORDS, len(words) - start) + 1)
    )
    return tuple(dict.fromkeys(span for span in spans if span))


def name_objects(topic: Topic) -> dict[str, str]:
    """Return the objects of a topic as variables of a template."""
    assert topic.objects is not None
    first, second = topic.objects
    return {"first": first, "second": second}


def render_text(topic: Topic, document: Document) -> RenderedDocument:
    """Render the whole text of a document."""
    return RenderedDocument(document.text)


def render_excerpts(topic: Topic, document: Document) -> RenderedDocument:
    """Render the passages of a long page, the best ones for the topic first to be kept."""
    return RenderedDocument(rank_passages(document.text, topic, _ANALYZER))


def render_argument(topic: Topic, document: Document) -> RenderedDocument:
    """Render an argument of args.me as one text: its conclusion, then its premises with their side."""
    side = {"PRO": " for the conclusion", "CON": " against the conclusion"}.get(document.side, "")
    return RenderedDocument(f"Conclusion: {document.title or '(none)'}\nPremises{side}: {document.text or '(none)'}")


def render_sentence(topic: Topic, document: Document) -> RenderedDocument:
    """Render a sentence with the conclusion and the side of its argument."""
    return RenderedDocument(document.text, {"conclusion": document.title, "side": document.side})


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
