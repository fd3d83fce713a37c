"""What the prompts of a task are for: the one place that names each purpose, its answer model and its variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from touche_llm.data.records import LabelledDocument, Topic
from touche_llm.errors import PromptError
from touche_llm.llm.answers import AnswerModel
from touche_llm.prompts.answers import (
    OBJECTS_VARIABLES,
    QUERIES_VARIABLES,
    AlternativeQueries,
    best_answer,
    order_answer,
    template_variables,
)
from touche_llm.prompts.prompt import Prompt, load_prompt
from touche_llm.tasks.base import Question, Task

# What better means is the same for all questions of a run, so that its examples are as well.
_SHARED = ("aim",)


@dataclass(frozen=True, slots=True)
class Use:
    """A purpose of a prompt.

    Attributes:
        purpose: its name in `config.prompts`, the name of the project's own template for it, and what a template's
            front matter names as `answer`.
        variables: what a template may use, and whether it must.
        answer_for: the answer model for a topic and a number of documents, where it depends on these.
        depends_on: on what it does; nothing: any topic and number give the same.
        question: what is asked about documents; None where the topic alone is asked about.
        shared: variables whose values are the same for all questions of a run; examples take them from the question.
    """

    purpose: str
    variables: Mapping[str, bool]
    answer_for: Callable[[Topic, int], type[AnswerModel]]
    depends_on: Literal["nothing", "topic", "documents"] = "nothing"
    question: Question | None = None
    shared: tuple[str, ...] = ()


def uses_of(task: Task) -> dict[str, Use]:
    """What the prompts of a task are for, by name."""
    return {use.purpose: use for use in _uses(task)}


def load(task: Task, use: Use, name: str, folder: Path | None = None) -> Prompt:
    """The prompt of this name or path, for a purpose.

    Args:
        task: whose prompts.
        use: one of `uses_of(task)`.
        name: see `load_prompt`.
        folder: of templates that go before the project's own.

    Raises:
        PromptError: there is none, or it is not as it should be.
    """
    prompt = load_prompt(
        task.name,
        name,
        use.purpose,
        use.variables,
        folder=folder,
        answer_for=use.answer_for,
        shared=use.shared,
    )
    if use.depends_on == "documents" and use.question is not None:
        check_template(prompt, use.question)
    return prompt


def check_template(prompt: Prompt, question: Question) -> None:
    """Raise PromptError where a template does not show the topic, or not every document with its label."""
    topic = Topic("0", "TITLE", "DESCRIPTION", "NARRATIVE", ("FIRST", "SECOND"))
    shown = [LabelledDocument(f"LABEL-{number}", f"TEXT-{number}") for number in range(3)]
    values = question.of_topic(topic)
    rendered = "".join(each.content for each in prompt.render(topic=topic, documents=shown, aim="both", **values))
    for each in shown:
        before, text, _ = rendered.partition(each.text)
        if not text or each.label not in before:
            raise PromptError(
                f"{prompt.path}: must show each of `documents` with its `label` before its `text`, as "
                "Passage {{ each.label }}: {{ each.text }}"
            )
    if not any(part in rendered for part in ("TITLE", "DESCRIPTION", "NARRATIVE")):
        raise PromptError(f"{prompt.path}: shows nothing of `topic`: not its `title`, `description` or `narrative`")


def _uses(task: Task) -> Iterator[Use]:
    for purpose, question in (
        ("judge", task.question),
        ("sentence", task.sentence_question),
        ("stance", task.stance_question),
    ):
        if question is not None:
            yield Use(purpose, question.template_variables, _always(question.answer), question=question)
    build = task.objects_answer
    if build is not None:
        yield Use("objects", OBJECTS_VARIABLES, lambda topic, _: build(topic), "topic")
    yield Use("queries", QUERIES_VARIABLES, _always(AlternativeQueries))
    for purpose, answer in (("best", best_answer), ("order", order_answer)):
        variables = template_variables(task.question)
        yield Use(purpose, variables, _of_documents(answer), "documents", task.question, _SHARED)


def _always(model: type[AnswerModel]) -> Callable[[Topic, int], type[AnswerModel]]:
    return lambda topic, documents: model


def _of_documents(answer: Callable[[int], type[AnswerModel]]) -> Callable[[Topic, int], type[AnswerModel]]:
    return lambda topic, documents: answer(documents)
