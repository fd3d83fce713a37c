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

from touche_llm.data.records import Model

# Label of a field, as the schema lists it: a grade, or a word.
Label = int | str
_ELEMENT = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s\[\],"]+')


class AnswerForm(StrEnum):
    """Form of an answer: `{"relevance":2,"stance":"PRO"}`, `[2,"PRO"]`, `[2,"P"]`, or any text."""

    OBJECT = "object"
    ARRAY = "array"
    LETTERS = "letters"
    TEXT = "text"


def list_fields(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each field of an answer by name, in order, for a schema of any form."""
    if "properties" in schema:
        return dict(schema["properties"])
    if not schema:
        return {}
    return {part["title"]: part for part in schema["prefixItems"]}


def abbreviate(label: Any) -> Any:
    """Return a label as the form `letters` writes it: the first letter of a text, which is one token of every model."""
    return label[:1] if isinstance(label, str) else label


@dataclass(frozen=True, slots=True)
class Layout:
    """Form of an answer and the names of its fields, in the order of their values."""

    form: AnswerForm
    fields: tuple[str, ...]

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> Layout:
        """Return the layout of the answers that a schema allows.

        An empty schema allows any text.
        """
        if not schema:
            return cls(AnswerForm.TEXT, ())
        form, fields = AnswerForm(schema["type"]), list_fields(schema)
        labels = [label for field in fields.values() for label in field.get("enum", ("text",))]
        # Labels of one letter are the same in both forms.
        if form is AnswerForm.ARRAY and labels == [abbreviate(label) for label in labels]:
            form = AnswerForm.LETTERS
        return cls(form, tuple(fields))

    @property
    def ends(self) -> str:
        """Characters that can follow a value."""
        return {AnswerForm.OBJECT: ",}", AnswerForm.TEXT: ""}.get(self.form, ",]")

    def spell_value(self, value: Any) -> str:
        """Return a value as it is written."""
        return orjson.dumps(
            abbreviate(value) if self.form is AnswerForm.LETTERS else value
        ).decode()

    @property
    def frame(self) -> list[str]:
        """Texts before each value, without optional white space, and the text after the last one."""
        if self.form is AnswerForm.TEXT:
            return [""]
        if self.form is AnswerForm.OBJECT:
            keys = [f"{orjson.dumps(name).decode()}:" for name in self.fields]
            return ["{" + keys[0], *(f",{key}" for key in keys[1:]), "}"]
        return ["[", *("," for _ in self.fields[1:]), "]"]

    def spell(self, values: Mapping[str, Any]) -> str:
        """Return the text of an answer."""
        *before, end = self.frame
        spelled = (
            text + self.spell_value(values[name])
            for text, name in zip(before, self.fields, strict=True)
        )
        return "".join(spelled) + end

    # Few different answers consist of labels, and each is searched once per field.
    @lru_cache(maxsize=1024)  # noqa: B019, layouts are few
    def find_values(self, text: str) -> Mapping[str, tuple[int, int]]:
        """Return the spans of the values in the text of an answer, as byte offsets `(first, end)`.

        Fields with ambiguous values are left out: keys that occur twice in an object, or all fields
        if an array has another number of values.
        """
        content = text.encode("utf-8", errors="replace")
        if self.form is AnswerForm.OBJECT:
            by_field = {
                field: list(_compile_value_pattern(field).finditer(content))
                for field in self.fields
            }
            return {
                field: matches[0].span(1)
                for field, matches in by_field.items()
                if len(matches) == 1
            }
        spans = [match.span() for match in _ELEMENT.finditer(content)]
        return dict(zip(self.fields, spans, strict=True)) if len(spans) == len(self.fields) else {}


@lru_cache(maxsize=256)
def _compile_value_pattern(field: str) -> re.Pattern[bytes]:
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
    """Return the labels that each field of an answer model allows, in order.

    Fields with a pattern are left out.
    """
    labels = {name: get_args(field.annotation) for name, field in model.model_fields.items()}
    return {name: allowed for name, allowed in labels.items() if allowed}


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
    labels = get_labels(model)
    if form is AnswerForm.LETTERS:
        labels = {name: tuple(map(abbreviate, allowed)) for name, allowed in labels.items()}
    fields = {
        name: {"enum": list(labels[name])}
        if name in labels
        else {"type": "string", "pattern": _get_pattern(field)}
        for name, field in model.model_fields.items()
    }
    if form is AnswerForm.OBJECT:
        return {
            "type": "object",
            "properties": fields,
            "required": list(fields),
            "additionalProperties": False,
        }
    parts = [{"title": name, **field} for name, field in fields.items()]
    return {
        "type": "array",
        "prefixItems": parts,
        "items": False,
        "minItems": len(parts),
        "maxItems": len(parts),
    }


def can_be_letters(model: type[AnswerModel]) -> bool:
    """Return whether an answer can consist of letters: the labels of each field must begin with different ones."""
    labels = get_labels(model)
    is_distinct = all(
        len(set(map(abbreviate, allowed))) == len(allowed) for allowed in labels.values()
    )
    return len(labels) == len(model.model_fields) and is_distinct


def count_alternatives(schema: Mapping[str, Any]) -> int:
    """Return the number of alternatives per token from which the labels of an answer can be read.

    It depends on form and labels alone, never on a server. A label can begin with its whole token
    or with a shorter one, hence two per label, at most the 20 that vLLM sends by default. Objects
    have 20, as stored answers have.
    """
    if schema["type"] == "object":
        return MAX_ALTERNATIVES
    return min(
        MAX_ALTERNATIVES,
        2 * max(len(field.get("enum", ())) for field in list_fields(schema).values()),
    )


def _get_pattern(field: FieldInfo) -> str | None:
    patterns = (getattr(constraint, "pattern", None) for constraint in field.metadata)
    return next((pattern for pattern in patterns if pattern), None)
