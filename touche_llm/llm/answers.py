"""What an engine sends back, and how it becomes an answer or a typed failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import from_json

from touche_llm.data.json_records import Count, JsonStruct
from touche_llm.data.records import Attempt

# The answer was withheld; it ended at the length limit; it is no JSON; it is JSON of another form; its probabilities
# cannot be.
UnusableKind = Literal["refused", "cut_off", "not_json", "outside_schema", "impossible_logprobs"]
# Or the server answered with an error or broke off; it did not answer in time.
FailureKind = UnusableKind | Literal["server_error", "timeout"]
# Characters of a text, or of a reason, that are kept of an answer that could not be used.
_KEPT_CHARS = 2000
_Kept = Annotated[str, msgspec.Meta(max_length=_KEPT_CHARS)]


class AnswerModel(BaseModel):
    """Base of the answers that prompts ask for: flat, every field a `Literal` or a text of a `pattern`, nothing else.

    Enumerations and patterns are the parts of JSON Schema that all structured-output backends enforce.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


AnswerT = TypeVar("AnswerT", bound=AnswerModel)
# Characters; longer texts are not remembered.
_SHORT = 1000
_PAIRS = json.JSONDecoder(object_pairs_hook=list)


# Finite: JSON has no word for what is not, and nothing else is read.
Logprob = Annotated[float, msgspec.Meta(le=0.0)]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A token of an answer: its first byte's place in the text, and its most probable alternatives, itself included.

    Log-probabilities are natural logarithms. What is read is checked, what the program makes is not.
    """

    at: Count
    token: str
    logprob: Logprob
    top: list[tuple[str, Logprob]]


class Answer(JsonStruct, frozen=True, omit_defaults=True):
    """An answer that could be used, as it is cached. `tokens` are those that carry the labels, if any were sent."""

    text: str
    finish_reason: str
    tokens: list[Token]
    prompt_tokens: Count
    completion_tokens: Count
    fingerprint: str | None = None


class UnusableAnswer(JsonStruct, frozen=True, omit_defaults=True):
    """What came back instead of an answer, as it is cached under the key of its sample: another one is requested.

    Where `kind` is "server_error", the server refused the request itself, and no other sample is requested.
    """

    kind: UnusableKind | Literal["server_error"]
    reason: _Kept
    text: _Kept = ""

    @classmethod
    def create(cls, kind: UnusableKind | Literal["server_error"], reason: str, text: str = "") -> UnusableAnswer:
        """The record with no more of the texts than is kept."""
        return cls(kind, reason[:_KEPT_CHARS], text[:_KEPT_CHARS])

    @property
    def is_final(self) -> bool:
        """Whether no other sample can give an answer."""
        return self.kind == "server_error"

    def attempt(self, sample: int) -> Attempt:
        """What a failure says of this sample."""
        return Attempt(sample=sample, kind=self.kind, reason=self.reason, text=self.text)


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """No usable answer, and why, attempt by attempt. Replay misses have no attempt."""

    attempts: list[Attempt]


# What a cache can hold under the key of a sample, by the kind of the entry.
OUTCOMES: Mapping[str, type[Answer] | type[UnusableAnswer]] = {"answer": Answer, "unusable": UnusableAnswer}


class Unusable(Exception):
    """An answer came, but not one that can be used; `kind` says why."""

    def __init__(self, kind: UnusableKind, reason: str, text: str = "") -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind: UnusableKind = kind
        self.reason = reason
        self.text = text


@lru_cache(maxsize=256)
def get_labels(model: type[AnswerModel]) -> Mapping[str, tuple[int | str, ...]]:
    """The labels that each field of an answer model allows, in order of declaration; texts of a pattern have none.

    Raises:
        TypeError: a field is neither a `Literal` of integers and strings nor a text of a pattern; that is a mistake in
            the program.
    """
    labels: dict[str, tuple[int | str, ...]] = {}
    for name, field in model.model_fields.items():
        allowed = get_args(field.annotation)
        if allowed and all(type(label) in (int, str) for label in allowed):
            labels[name] = allowed
        elif field.annotation is not str or _pattern(field) is None:
            raise TypeError(f"{model.__name__}.{name} must be a Literal of integers or strings, or have a pattern")
    return labels


@lru_cache(maxsize=256)
def build_schema(model: type[AnswerModel]) -> Mapping[str, Any]:
    """JSON Schema of an answer model: one closed object of enumerations and patterns, keys required in order."""
    labels = get_labels(model)
    return {
        "type": "object",
        "properties": {
            name: {"enum": list(labels[name])} if name in labels else {"type": "string", "pattern": _pattern(field)}
            for name, field in model.model_fields.items()
        },
        "required": list(model.model_fields),
        "additionalProperties": False,
    }


def _pattern(field: FieldInfo) -> str | None:
    return next((found for each in field.metadata if (found := getattr(each, "pattern", None))), None)


def parse(text: str, model: type[AnswerT]) -> AnswerT:
    """The answer that `text` is.

    Raises:
        Unusable: `not_json` or `outside_schema`; for any text whatever.
    """
    parsed = _parse if len(text) <= _SHORT else _parse.__wrapped__
    return cast(AnswerT, parsed(text, model))


# There are few answers of labels, and each is read when it comes and when it is taken from the cache.
@lru_cache(maxsize=1024)
def _parse(text: str, model: type[AnswerModel]) -> AnswerModel:
    try:
        # A lone surrogate cannot be encoded; no engine sends one, but a cassette can.
        value = model.model_validate_json(text.encode("utf-8", errors="replace"))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Unusable("not_json", "the answer is empty" if not text.strip() else first["msg"], text) from error
        try:
            # `NaN` and `Infinity` are read as numbers, but no JSON.
            from_json(text.encode("utf-8", errors="replace"), allow_inf_nan=False)
        except ValueError as no_json:
            raise Unusable("not_json", str(no_json)[:300], text) from error
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise Unusable("outside_schema", reason[:300], text) from error
    # A flat object by now. Which of two values a reader takes for a key is not defined, so none is taken; and Python
    # holds `false` and `0.0` for equal to 0, JSON does not.
    pairs = _PAIRS.decode(text)
    if len(pairs) != len(model.model_fields):
        raise Unusable("outside_schema", "a key occurs twice", text)
    labels = get_labels(model)
    for name, found in pairs:
        if name in labels and not any(type(found) is type(label) and found == label for label in labels[name]):
            raise Unusable("outside_schema", f"{name}: {found!r} is no label", text)
    return value
