"""Few-shot examples of a prompt: a YAML file beside the template, each example with its correct answer.

- topic: {id: "1", title: "Is tea better than coffee?"}
  document: "Tea has less caffeine."
  first: tea
  second: coffee
  answer: {relevance: 3, quality: 2, stance: FIRST}
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model

from touche_llm.data.records import LabelledDocument, Model, Topic
from touche_llm.errors import DataError, PromptError, Unusable, describe_first_problem
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, Layout
from touche_llm.llm.parsing import parse_answer
from touche_llm.settings.yaml_text import YamlError, parse_yaml

EXAMPLES_SUFFIX = ".examples.yaml"
_DOCUMENTS = "documents"


@dataclass(frozen=True, slots=True)
class FewShotExample:
    """An example: its topic, the other template variables by name, and the text of the correct answer."""

    topic: Topic
    variables: Mapping[str, Any]
    answer: str


def _collapse_spaces(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_collapse_spaces)]
_Stripped = Annotated[str, Field(strict=True), AfterValidator(str.strip)]
_Documents = Annotated[list[_Stripped], Field(min_length=2, max_length=len(string.ascii_uppercase))]


class _Topic(Model, hide_input_in_errors=True):
    id: Annotated[
        str, Field(min_length=1, coerce_numbers_to_str=True), BeforeValidator(_collapse_spaces)
    ]
    title: Annotated[str, Field(min_length=1), BeforeValidator(_collapse_spaces)]
    description: _Text = ""
    narrative: _Text = ""
    objects: tuple[_Text, _Text] | None = None


def parse_examples(
    path: Path,
    text: str,
    names: Collection[str],
    answer_for: Callable[[Topic, int], type[AnswerModel]],
    form: AnswerForm,
) -> tuple[FewShotExample, ...]:
    """Parse the examples of a file.

    Each has a topic, the variables `names` and an answer, written in the given form.

    A PromptError names the file, the example and the field.
    """
    try:
        values = parse_yaml(text)
    except YamlError as error:
        raise PromptError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, list) or not values:
        raise PromptError(
            f"{path}: must be a list of examples, each with topic, {', '.join(sorted(names))} and answer"
        )
    variables: dict[str, Any] = {
        name: (_Documents if name == _DOCUMENTS else _Stripped, ...) for name in sorted(names)
    }
    model = create_model(
        "Example", __base__=Model, topic=(_Topic, ...), **variables, answer=(dict[str, Any], ...)
    )
    return tuple(
        _parse_example(f"{path}: example {number}", value, model, answer_for, form)
        for number, value in enumerate(values, start=1)
    )


def _parse_example(
    where: str,
    value: Any,
    model: type[Model],
    answer_for: Callable[[Topic, int], type[AnswerModel]],
    form: AnswerForm,
) -> FewShotExample:
    try:
        given = dict(model.model_validate(value))
        topic = Topic(**given.pop("topic").model_dump())
        if _DOCUMENTS in given:
            given[_DOCUMENTS] = list(
                map(LabelledDocument, string.ascii_uppercase, given[_DOCUMENTS])
            )
        answer = answer_for(topic, len(given.get(_DOCUMENTS, [0])))
        # As an object, which has the labels in full.
        parse_answer(orjson.dumps(given["answer"]).decode(), answer)
    except ValidationError as error:
        raise PromptError(f"{where}: {describe_first_problem(error, model=model)}") from error
    except DataError as error:
        raise PromptError(f"{where}: {error}") from error
    except Unusable as error:
        reason = error.reason.replace("Value error, ", "")
        raise PromptError(f"{where}: answer: {reason}; not {given['answer']!r:.200}") from error
    # As the grammar lets a model spell it: fields in their order, no white space between them.
    return FewShotExample(
        topic, given, Layout(form, tuple(answer.model_fields)).spell(given.pop("answer"))
    )
