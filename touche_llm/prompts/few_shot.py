"""Solved examples of a prompt: a YAML file beside the template, each example with the answer that is right.

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
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from touche_llm.data.records import LabelledDocument, Topic
from touche_llm.data.setting_problems import describe_problem
from touche_llm.data.yaml_text import YamlError, parse_yaml
from touche_llm.errors import DataError, PromptError
from touche_llm.llm.answers import AnswerModel, Unusable, labels_of, parse

ENDING = ".examples.yaml"
MOST_EXAMPLES = 20
_DOCUMENTS = "documents"
_LABELS_TOLD = 20
_SCALARS = (str, int, float, type(None))


@dataclass(frozen=True, slots=True)
class Example:
    """An example: its topic, the template's other variables by name, and the text of the right answer."""

    topic: Topic
    variables: Mapping[str, Any]
    answer: str


def _spaced(value: Any) -> Any:
    """White space is collapsed as in topic files; an id may be written as a number."""
    return " ".join(value.split()) if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_spaced)]


class _Topic(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    id: Annotated[str, Field(min_length=1, coerce_numbers_to_str=True), BeforeValidator(_spaced)]
    title: Annotated[str, Field(min_length=1), BeforeValidator(_spaced)]
    description: _Text = ""
    narrative: _Text = ""
    objects: tuple[_Text, _Text] | None = None


def parse_examples(
    path: Path, text: str, names: Collection[str], answer_for: Callable[[Topic, int], type[AnswerModel]]
) -> tuple[Example, ...]:
    """The examples of a file.

    Args:
        path: for messages.
        text: what it holds; its size is bounded by the caller.
        names: of the variables that each example gives, beside its topic.
        answer_for: the answer model for a topic and a number of documents.

    Raises:
        PromptError: no YAML, too many examples, wrong or missing names, an answer that does not fit its model. Names
            the file, the example and the field.
    """
    try:
        values = parse_yaml(text, words=True)
    except YamlError as error:
        raise PromptError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, list) or not values:
        raise PromptError(f"{path}: must be a list of examples, each with topic, {', '.join(sorted(names))} and answer")
    if len(values) > MOST_EXAMPLES:
        raise PromptError(f"{path}: {len(values)} examples, more than {MOST_EXAMPLES}")
    return tuple(
        _example(f"{path}: example {number}", value, names, answer_for) for number, value in enumerate(values, start=1)
    )


def _example(
    where: str, value: Any, names: Collection[str], answer_for: Callable[[Topic, int], type[AnswerModel]]
) -> Example:
    _check_names(where, value, ["topic", *sorted(names), "answer"])
    try:
        topic = Topic(**_Topic.model_validate(value["topic"]).model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("topic", *first["loc"]))
        raise PromptError(f"{where}: {place}: {describe_problem(first)}") from error
    variables = {
        name: _documents(f"{where}: {name}", value[name]) if name == _DOCUMENTS else _text(where, name, value[name])
        for name in names
    }
    try:
        model = answer_for(topic, len(variables[_DOCUMENTS]) if _DOCUMENTS in variables else 1)
    except DataError as error:
        raise PromptError(f"{where}: {error}") from error
    return Example(topic, variables, _answer(f"{where}: answer", value["answer"], model))


def _check_names(where: str, value: Any, names: list[str]) -> None:
    if not isinstance(value, dict):
        raise PromptError(f"{where}: must have {', '.join(names)}, not be {_told(value)}")
    wrong = [f"{_told(name)} is unknown" for name in value if name not in names]
    wrong += [f"{name!r} is missing" for name in names if name not in value]
    if wrong:
        raise PromptError(f"{where}: {'; '.join(wrong[:5])}; here are needed: {', '.join(names)}")


def _text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PromptError(f"{where}: {name}: must be text (in quotation marks), not {_told(value)}")
    return value.strip()


def _documents(where: str, value: Any) -> list[LabelledDocument]:
    labels = string.ascii_uppercase
    if not isinstance(value, list) or not 2 <= len(value) <= len(labels):
        raise PromptError(f"{where}: must be a list of 2 to {len(labels)} texts, which are labelled A, B, …")
    texts = [_text(where, f"document {label}", each) for label, each in zip(labels, value, strict=False)]
    return [LabelledDocument(label, text) for label, text in zip(labels, texts, strict=False)]


def _answer(where: str, value: Any, model: type[AnswerModel]) -> str:
    """An answer as the grammar lets a model spell it: in the order of the fields, without white space between them."""
    fields, labels = list(model.model_fields), labels_of(model)
    _check_names(where, value, fields)
    for name, allowed in labels.items():
        # Python holds true and 1.0 for equal to 1.
        if not any(type(value[name]) is type(label) and value[name] == label for label in allowed):
            told = ", ".join(map(str, allowed[:_LABELS_TOLD])) + (", …" if len(allowed) > _LABELS_TOLD else "")
            raise PromptError(f"{where}: {name}: {_told(value[name])} is none of the labels {told}")
    for name in fields:
        if name not in labels:
            _text(where, name, value[name])
    try:
        spelled = orjson.dumps({name: value[name] for name in fields}).decode()
        parse(spelled, model)
    except (Unusable, TypeError) as error:
        reason = error.reason.replace("Value error, ", "") if isinstance(error, Unusable) else error
        raise PromptError(f"{where}: {reason}") from error
    return spelled


def _told(value: Any) -> str:
    """A value in a message; a list may be long."""
    return repr(value)[:80] if isinstance(value, _SCALARS) else f"a {type(value).__name__}"
