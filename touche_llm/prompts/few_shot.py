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

from pydantic import BeforeValidator, Field, ValidationError

from touche_llm.data.records import LabelledDocument, Model, Topic
from touche_llm.data.settings import YamlError, parse_yaml
from touche_llm.errors import DataError, PromptError, describe_first_problem
from touche_llm.llm.answers import AnswerForm, AnswerModel, Layout, Unusable, parse_answer

EXAMPLES_SUFFIX = ".examples.yaml"
MAX_EXAMPLES = 20
_DOCUMENTS = "documents"
_SCALARS = (str, int, float, type(None))


@dataclass(frozen=True, slots=True)
class FewShotExample:
    """An example: its topic, the other template variables by name, and the text of the correct answer."""

    topic: Topic
    variables: Mapping[str, Any]
    answer: str


def _collapse_spaces(value: Any) -> Any:
    """Collapse white space in a text, as in topic files."""
    return " ".join(value.split()) if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_collapse_spaces)]


class _Topic(Model, hide_input_in_errors=True):
    id: Annotated[str, Field(min_length=1, coerce_numbers_to_str=True), BeforeValidator(_collapse_spaces)]
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
    """Parse the examples of a file; each has a topic, the variables `names` and an answer, written in the given form.

    Raises:
        PromptError: The file is not YAML or has too many examples, or an example has wrong or missing names or an
            answer that does not fit its model. Names the file, the example and the field.
    """
    try:
        values = parse_yaml(text, words=True)
    except YamlError as error:
        raise PromptError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, list) or not values:
        raise PromptError(f"{path}: must be a list of examples, each with topic, {', '.join(sorted(names))} and answer")
    if len(values) > MAX_EXAMPLES:
        raise PromptError(f"{path}: {len(values)} examples, more than {MAX_EXAMPLES}")
    return tuple(
        _parse_example(f"{path}: example {number}", value, names, answer_for, form)
        for number, value in enumerate(values, start=1)
    )


def _parse_example(
    where: str,
    value: Any,
    names: Collection[str],
    answer_for: Callable[[Topic, int], type[AnswerModel]],
    form: AnswerForm,
) -> FewShotExample:
    _check_names(where, value, ["topic", *sorted(names), "answer"])
    try:
        topic = Topic(**_Topic.model_validate(value["topic"]).model_dump())
    except ValidationError as error:
        raise PromptError(f"{where}: {describe_first_problem(error, 'topic')}") from error
    variables = {
        name: _parse_documents(f"{where}: {name}", value[name])
        if name == _DOCUMENTS
        else _parse_text(where, name, value[name])
        for name in names
    }
    try:
        model = answer_for(topic, len(variables[_DOCUMENTS]) if _DOCUMENTS in variables else 1)
    except DataError as error:
        raise PromptError(f"{where}: {error}") from error
    return FewShotExample(topic, variables, _spell_answer(f"{where}: answer", value["answer"], model, form))


def _check_names(where: str, value: Any, names: list[str]) -> None:
    if not isinstance(value, dict):
        raise PromptError(f"{where}: must have {', '.join(names)}, not be {_shorten(value)}")
    wrong = [f"{_shorten(name)} is unknown" for name in value if name not in names]
    wrong += [f"{name!r} is missing" for name in names if name not in value]
    if wrong:
        raise PromptError(f"{where}: {'; '.join(wrong[:5])}; give {', '.join(names)}")


def _parse_text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PromptError(f"{where}: {name}: must be text (in quotation marks), not {_shorten(value)}")
    return value.strip()


def _parse_documents(where: str, value: Any) -> list[LabelledDocument]:
    labels = string.ascii_uppercase
    if not isinstance(value, list) or not 2 <= len(value) <= len(labels):
        raise PromptError(f"{where}: must be a list of 2 to {len(labels)} texts, which are labelled A, B, …")
    return [
        LabelledDocument(label, _parse_text(where, f"document {label}", text))
        for label, text in zip(labels, value, strict=False)
    ]


def _spell_answer(where: str, value: Any, model: type[AnswerModel], form: AnswerForm) -> str:
    """Return an answer as the grammar lets a model spell it: fields in their order, no white space between them."""
    fields = list(model.model_fields)
    _check_names(where, value, fields)
    try:
        # As an object, which has the labels in full.
        parse_answer(Layout(AnswerForm.OBJECT, tuple(fields)).spell(value), model)
    except (Unusable, TypeError) as error:
        reason = error.reason.replace("Value error, ", "") if isinstance(error, Unusable) else error
        raise PromptError(f"{where}: {reason}; not {value!r:.200}") from error
    return Layout(form, tuple(fields)).spell(value)


def _shorten(value: Any) -> str:
    """Return a value as a message shows it; a list may be long."""
    return repr(value)[:80] if isinstance(value, _SCALARS) else f"a {type(value).__name__}"
