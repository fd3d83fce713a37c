"""Parsing of answers, with typed failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import from_json

from touche_llm.data.records import Label
from touche_llm.errors import Unusable
from touche_llm.llm.answer_schema import (
    AnswerForm,
    AnswerModel,
    AnswerT,
    abbreviate,
    get_labels,
)

_PAIRS = json.JSONDecoder(object_pairs_hook=list)
# Max characters of a reason.
_MAX_REASON = 300


def parse_answer(text: str, model: type[AnswerT], form: AnswerForm = AnswerForm.OBJECT) -> AnswerT:
    """Parse the text of an answer, which may be any text.

    Args:
        text: Text of the answer.
        model: Model of the answer.
        form: Form in which the answer was requested.

    Raises:
        Unusable: The text is not JSON (`not_json`), or JSON that the schema does not allow
            (`outside_schema`).
    """
    return cast(AnswerT, _parse(text, model, form))


# Few different answers consist of labels, and each is parsed when it arrives and when it is read
# from the cache.
@lru_cache(maxsize=1024)
def _parse(text: str, model: type[AnswerModel], form: AnswerForm) -> AnswerModel:
    """Parse the text of an answer; see `parse_answer`."""
    if form is AnswerForm.TEXT:
        return model.model_validate({"text": _encode(text).decode()})

    values = _decode_values(text, model, form)
    answer = _validate(values, model, text)
    if form is AnswerForm.OBJECT:
        _check_keys(values, text)
    _check_types(values, model, text)
    return answer


def _decode_values(text: str, model: type[AnswerModel], form: AnswerForm) -> Any:
    """Return the values of an answer by field, with letters replaced by labels.

    Those of the form `object` are any JSON.

    Raises:
        Unusable: The text is not JSON, or no array of the right length.
    """
    values = _decode(text)
    if form is AnswerForm.OBJECT:
        return values
    named_values = _name_values(values, model, form, text)
    if form is AnswerForm.LETTERS:
        return _restore_labels(named_values, model)
    return named_values


def _encode(text: str) -> bytes:
    """Return a text in UTF-8.

    Lone surrogates cannot be encoded; no engine sends them, but a cassette can hold them.
    """
    return text.encode("utf-8", errors="replace")


def _decode(text: str) -> Any:
    """Return the JSON value in a text.

    Raises:
        Unusable: The text is not JSON.
    """
    if not text.strip():
        raise Unusable("not_json", "the answer is empty", text)
    try:
        return from_json(_encode(text), allow_inf_nan=False)
    except ValueError as error:
        reason = f"Invalid JSON: {error}"
        raise Unusable("not_json", reason[:_MAX_REASON], text) from error


def _name_values(
    values: Any, model: type[AnswerModel], form: AnswerForm, text: str
) -> dict[str, Any]:
    """Return the values of an array by field.

    Raises:
        Unusable: The values are not an array of one value for each field.
    """
    if not isinstance(values, list) or len(values) != len(model.model_fields):
        reason = f"expected {len(model.model_fields)} values in {form} form"
        raise Unusable("outside_schema", reason, text)
    return dict(zip(model.model_fields, values, strict=True))


def _restore_labels(letters: Mapping[str, Any], model: type[AnswerModel]) -> dict[str, Any]:
    """Return the labels that begin with these letters, by field; None for a letter of no label."""
    labels = get_labels(model)
    return {name: _find_label(letter, labels[name]) for name, letter in letters.items()}


def _find_label(letter: Any, labels: Iterable[Label]) -> Label | None:
    """Return the label that is written as this value in the form `letters`; None if none is."""
    for label in labels:
        if type(label) is type(letter) and abbreviate(label) == letter:
            return label
    return None


def _validate(values: Any, model: type[AnswerModel], text: str) -> AnswerModel:
    """Return the answer with these values.

    Raises:
        Unusable: The values do not fit the model.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"])
        reason = f"{location}: {first['msg']}" if location else first["msg"]
        raise Unusable("outside_schema", reason[:_MAX_REASON], text) from error


def _check_keys(values: Mapping[str, Any], text: str) -> None:
    """Raise an error if a key occurs twice: JSON does not define which of its values counts.

    Args:
        values: Values by key, each key once.
        text: JSON object with these values.

    Raises:
        Unusable: A key occurs twice.
    """
    pairs = _PAIRS.decode(text)
    if len(pairs) != len(values):
        raise Unusable("outside_schema", "a key occurs twice", text)


def _check_types(values: Mapping[str, Any], model: type[AnswerModel], text: str) -> None:
    """Raise an error if a value is a label for Python but not in JSON: `false` and `0.0` equal 0.

    Raises:
        Unusable: There is such a value.
    """
    labels = get_labels(model)
    for name, value in values.items():
        if name not in labels:
            continue
        is_label = any(type(label) is type(value) and label == value for label in labels[name])
        if not is_label:
            raise Unusable("outside_schema", f"{name}: {value!r} is no label", text)
