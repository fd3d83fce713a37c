"""Schemas of answers, and the forms in which they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args

import orjson
from pydantic import Field
from pydantic.fields import FieldInfo

from touche_llm.data.records import Label, Model

_ELEMENT = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s\[\],"]+')


class AnswerForm(StrEnum):
    """Form of an answer: `{"relevance":2,"stance":"PRO"}`, `[2,"PRO"]`, `[2,"P"]`, or any text."""

    OBJECT = "object"
    ARRAY = "array"
    LETTERS = "letters"
    TEXT = "text"


def list_fields(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each field of an answer by name, in order.

    Args:
        schema: JSON Schema in any form; that of a free text has no fields.
    """
    if not schema:
        return {}
    if "properties" in schema:
        return dict(schema["properties"])
    return {part["title"]: part for part in schema["prefixItems"]}


def slice_bytes(text: str, start: int, end: int) -> str:
    """Return the part of a text between two offsets in bytes of UTF-8, as tokens and spans have them."""
    content = text.encode("utf-8", errors="replace")
    return content[start:end].decode("utf-8", errors="replace")


def abbreviate(label: Any) -> Any:
    """Return a label as the form `letters` writes it.

    A text becomes its first letter, which is one token of every model; a number stays.
    """
    return label[:1] if isinstance(label, str) else label


@dataclass(frozen=True, slots=True)
class Layout:
    """How an answer is written.

    Attributes:
        form: Form of the answer.
        fields: Names of its fields, in the order of their values.
    """

    form: AnswerForm
    fields: tuple[str, ...]

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> Layout:
        """Return the layout of the answers that a JSON Schema allows; an empty one allows any text."""
        if not schema:
            return cls(AnswerForm.TEXT, ())
        fields = list_fields(schema)
        form = AnswerForm(schema["type"])
        if form is AnswerForm.ARRAY and _has_letters_only(fields):
            form = AnswerForm.LETTERS
        return cls(form, tuple(fields))

    @property
    def ends(self) -> str:
        """Characters that can follow a value."""
        if self.form is AnswerForm.TEXT:
            return ""
        return ",}" if self.form is AnswerForm.OBJECT else ",]"

    def spell_value(self, value: Any) -> str:
        """Return a value as it is written."""
        if self.form is AnswerForm.LETTERS:
            value = abbreviate(value)
        return orjson.dumps(value).decode()

    @property
    def frame(self) -> list[str]:
        """Texts before each value, and the text after the last one, without optional white space.

        For two fields, `[`, `,` and `]` in an array, and `{"relevance":`, `,"stance":` and `}` in
        an object.
        """
        if self.form is AnswerForm.TEXT:
            return [""]
        if self.form is AnswerForm.OBJECT:
            keys = [f"{orjson.dumps(name).decode()}:" for name in self.fields]
            later_keys = [f",{key}" for key in keys[1:]]
            return ["{" + keys[0], *later_keys, "}"]
        commas = [","] * (len(self.fields) - 1)
        return ["[", *commas, "]"]

    def spell(self, values: Mapping[str, Any]) -> str:
        """Return the text of an answer with these values by field."""
        *texts_before, end = self.frame
        parts: list[str] = []
        for text_before, name in zip(texts_before, self.fields, strict=True):
            parts += [text_before, self.spell_value(values[name])]
        return "".join(parts) + end

    # Few different answers consist of labels, and each is searched once per field.
    @lru_cache(maxsize=1024)  # noqa: B019, layouts are few
    def find_values(self, text: str) -> Mapping[str, tuple[int, int]]:
        """Return where the values are in the text of an answer.

        Returns:
            Offset of the first byte of each value, and of the byte after its last one, by field.
            Fields with ambiguous values are left out: keys that occur twice in an object, or all
            fields if an array has another number of values.
        """
        content = text.encode("utf-8", errors="replace")
        if self.form is AnswerForm.OBJECT:
            return self._find_object_values(content)
        spans = [match.span() for match in _ELEMENT.finditer(content)]
        if len(spans) != len(self.fields):
            return {}
        return dict(zip(self.fields, spans, strict=True))

    def _find_object_values(self, content: bytes) -> dict[str, tuple[int, int]]:
        """Return the span of each value that follows a key which occurs once."""
        spans: dict[str, tuple[int, int]] = {}
        for field in self.fields:
            matches = list(_compile_value_pattern(field).finditer(content))
            if len(matches) == 1:
                spans[field] = matches[0].span(1)
        return spans


def _has_letters_only(fields: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether all fields have labels, each a letter or a number, as the form `letters` has.

    Args:
        fields: JSON Schemas by field.
    """
    for schema in fields.values():
        labels = schema.get("enum", ())
        if not labels:
            return False
        if any(abbreviate(label) != label for label in labels):
            return False
    return True


@lru_cache(maxsize=256)
def _compile_value_pattern(field: str) -> re.Pattern[bytes]:
    """Return the pattern of a field's key and value in an object; the value is the first group."""
    return re.compile(rb'"%s"\s*:\s*("(?:[^"\\]|\\.)*"|[^\s,}]+)' % re.escape(field.encode()))


class AnswerModel(Model, strict=True):
    """Base of the answer models: flat, each field a `Literal` or a string with a `pattern`.

    Enumerations and patterns are the parts of JSON Schema that all structured-output backends
    enforce.
    """


class FreeText(AnswerModel):
    """Any text, such as reasoning; it has no labels."""

    text: Annotated[str, Field(pattern=r"[\s\S]*")]


AnswerT = TypeVar("AnswerT", bound=AnswerModel)
# Alternatives per token that vLLM sends at most by default.
MAX_ALTERNATIVES = 20


@lru_cache(maxsize=256)
def get_labels(model: type[AnswerModel]) -> Mapping[str, tuple[Label, ...]]:
    """Return the labels of each field of an answer model that has labels, in order."""
    labels: dict[str, tuple[Label, ...]] = {}
    for name, field in model.model_fields.items():
        allowed = get_args(field.annotation)
        if allowed:
            labels[name] = allowed
    return labels


@lru_cache(maxsize=256)
def build_schema(
    model: type[AnswerModel], form: AnswerForm = AnswerForm.OBJECT
) -> Mapping[str, Any]:
    """Return the JSON Schema of an answer model in a form; all fields are required, in order.

    That of an array lists the fields in `prefixItems`, by their titles. That of a free text is
    empty.
    """
    if form is AnswerForm.TEXT:
        return {}

    fields: dict[str, dict[str, Any]] = {}
    for name, field in model.model_fields.items():
        fields[name] = _build_field(field, form)

    if form is AnswerForm.OBJECT:
        return {
            "type": "object",
            "properties": fields,
            "required": list(fields),
            "additionalProperties": False,
        }
    return {
        "type": "array",
        "prefixItems": [{"title": name, **field} for name, field in fields.items()],
        "items": False,
        "minItems": len(fields),
        "maxItems": len(fields),
    }


def _build_field(field: FieldInfo, form: AnswerForm) -> dict[str, Any]:
    """Return the JSON Schema of a field: its labels, or the pattern of its text."""
    labels = list(get_args(field.annotation))
    if not labels:
        return {"type": "string", "pattern": _get_pattern(field)}
    if form is AnswerForm.LETTERS:
        labels = [abbreviate(label) for label in labels]
    return {"enum": labels}


def _get_pattern(field: FieldInfo) -> str | None:
    """Return the pattern of a field, if it has one."""
    for constraint in field.metadata:
        pattern: str | None = getattr(constraint, "pattern", None)
        if pattern:
            return pattern
    return None


def can_be_letters(model: type[AnswerModel]) -> bool:
    """Return whether an answer can consist of letters.

    Each field must have labels that begin with different letters.
    """
    labels = get_labels(model)
    if len(labels) != len(model.model_fields):
        return False
    for allowed in labels.values():
        letters = {abbreviate(label) for label in allowed}
        if len(letters) != len(allowed):
            return False
    return True


def count_alternatives(schema: Mapping[str, Any]) -> int:
    """Return how many alternatives per token to request, so that the labels are among them.

    An answer in the form of an object gets the most that vLLM sends. In an array, a field gets two
    alternatives for each of its labels: the label as one token, and a shorter token that it begins
    with.

    The number is part of the keys of answers, so it never depends on a server.
    """
    if schema["type"] == "object":
        return MAX_ALTERNATIVES
    label_counts = [len(field.get("enum", ())) for field in list_fields(schema).values()]
    alternatives = 2 * max(label_counts)
    return min(alternatives, MAX_ALTERNATIVES)
