"""Few-shot examples of a prompt: a YAML file beside the template, each example with its correct answer.

- topic: {id: "1", title: "Is tea better than coffee?"}
  document: "Tea has less caffeine."
  first: tea
  second: coffee
  answer: {relevance: 3, quality: 2, stance: FIRST}
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

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
    """An example of a prompt.

    Attributes:
        topic: Topic of the example.
        variables: Other template variables, by name.
        answer: Text of the correct answer.
    """

    topic: Topic
    variables: Mapping[str, Any]
    answer: str


def _collapse_spaces(value: object) -> object:
    """Return a text with single spaces for all white space; other values as they are."""
    if not isinstance(value, str):
        return value
    return " ".join(value.split())


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


class AnswerFor(Protocol):
    """Chooser of the answer model of a prompt."""

    def __call__(self, topic: Topic, *, document_count: int) -> type[AnswerModel]:
        """Return the model of an answer about a topic.

        Args:
            topic: Topic, whose words are the labels of some answers.
            document_count: Number of documents that the request shows; a comparison has a label for
                each.

        Raises:
            DataError: The title of the topic has too few words for labels.
        """


def parse_examples(
    path: Path,
    text: str,
    names: Collection[str],
    answer_for: AnswerFor,
    form: AnswerForm,
) -> tuple[FewShotExample, ...]:
    """Parse the examples of a file.

    Args:
        path: File of the examples, for messages.
        text: Its text, in YAML.
        names: Variables that each example has, beside a topic and an answer.
        answer_for: Chooses the answer model of each example.
        form: Form in which the answers are written.

    Raises:
        PromptError: The file or an example is invalid; names the file, the example and the field.
    """
    try:
        values = parse_yaml(text)
    except YamlError as error:
        raise PromptError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, list) or not values:
        raise PromptError(
            f"{path}: must be a list of examples, each with topic, {', '.join(sorted(names))} and answer"
        )

    model = _create_example_model(names)
    examples: list[FewShotExample] = []
    for number, value in enumerate(values, start=1):
        location = f"{path}: example {number}"
        examples.append(_parse_example(location, value, model, answer_for, form))
    return tuple(examples)


def _create_example_model(names: Collection[str]) -> type[Model]:
    """Return the model of an example, as the file has it, with these variables."""
    variables: dict[str, Any] = {}
    for name in sorted(names):
        variable_type = _Documents if name == _DOCUMENTS else _Stripped
        variables[name] = (variable_type, ...)
    return create_model(
        "Example", __base__=Model, topic=(_Topic, ...), **variables, answer=(dict[str, Any], ...)
    )


def _parse_example(
    location: str,
    value: object,
    model: type[Model],
    answer_for: AnswerFor,
    form: AnswerForm,
) -> FewShotExample:
    """Parse an example.

    Args:
        location: File and number of the example, for messages.
        value: Value of the example in the file.
        model: Model of the example.
        answer_for: Chooses the answer model of each example.
        form: Form in which the answer is written.

    Raises:
        PromptError: The example is invalid; names the location and the field.
    """
    try:
        variables = dict(model.model_validate(value))
        topic = Topic(**variables.pop("topic").model_dump())
    except ValidationError as error:
        raise PromptError(f"{location}: {describe_first_problem(error, model=model)}") from error

    answer = variables.pop("answer")
    document_count = 1
    if _DOCUMENTS in variables:
        labelled = _label_documents(variables[_DOCUMENTS])
        variables[_DOCUMENTS] = labelled
        document_count = len(labelled)

    try:
        answer_model = answer_for(topic, document_count=document_count)
    except DataError as error:
        raise PromptError(f"{location}: {error}") from error
    _check_answer(location, answer, answer_model)

    # As the grammar lets a model spell it: fields in their order, no white space between them.
    layout = Layout(form, tuple(answer_model.model_fields))
    return FewShotExample(topic, variables, layout.spell(answer))


def _label_documents(texts: Iterable[str]) -> list[LabelledDocument]:
    """Return documents with the labels A, B, C and so on."""
    return list(map(LabelledDocument, string.ascii_uppercase, texts))


def _check_answer(
    location: str, answer: Mapping[str, Any], answer_model: type[AnswerModel]
) -> None:
    """Raise PromptError, naming the location, if the answer of an example is invalid."""
    # Checked as an object, which has the labels in full.
    text = orjson.dumps(answer).decode()
    try:
        parse_answer(text, answer_model)
    except DataError as error:
        raise PromptError(f"{location}: {error}") from error
    except Unusable as error:
        reason = error.reason.replace("Value error, ", "")
        raise PromptError(f"{location}: answer: {reason}; not {answer!r:.200}") from error
