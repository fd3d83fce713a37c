"""Engine whose answers come from a function: to try a pipeline or a template without a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from touche_llm.engines.label_tokens import make_label_token
from touche_llm.engines.token_estimates import EstimatingTokenizer, estimate_tokens
from touche_llm.errors import UsageError
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import Layout, list_fields, slice_bytes
from touche_llm.llm.protocol import Completion, Counter
from touche_llm.llm.request import Request

# Name of a function as a model, unless the settings of the engine give another.
FUNCTION = "function"
# Max excess of a sum of probabilities over 1 due to rounding.
_ROUNDING = 1e-6


# Probabilities by label: a grade, or a text.
LabelShares = Mapping[int, float] | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FunctionAnswer:
    """Answer of a function, with probabilities of its labels.

    Attributes:
        text: Text of the answer. `request.layout.spell({"relevance": 2, ...})` returns it in the
            form that the prompt requests.
        probabilities: Probabilities by field and label, which need not add up to 1. Labels that are
            left out have 0; the label of a field that is left out is certain.
    """

    text: str
    probabilities: Mapping[str, LabelShares] = field(default_factory=dict)


# From a request to its answer; the labels of a text alone are certain.
AnswerFunction = Callable[[Request], str | FunctionAnswer]


class FunctionEngine:
    """Engine that calls a function for each request; tokens are estimated."""

    def __init__(self, function: AnswerFunction) -> None:
        """Make the engine of a function."""
        self._function = function
        self._tokenizer = EstimatingTokenizer()

    @property
    def counter(self) -> Counter:
        """Estimates of tokens."""
        return self._tokenizer

    async def complete(self, request: Request) -> Completion:
        """Return the function's answer to a request.

        Raises:
            UsageError: The function returns something else than an answer, or probabilities that
                do not fit the request.
        """
        answer = self._call_function(request)
        tokens: list[Token] = []
        if request.sampling.top_logprobs:
            tokens = _make_label_tokens(answer, request)
        return Completion(
            text=answer.text,
            finish_reason="stop",
            prompt_tokens=await self._tokenizer.count_tokens(request.messages),
            completion_tokens=estimate_tokens(answer.text),
            tokens=tokens,
        )

    def _call_function(self, request: Request) -> FunctionAnswer:
        """Return what the function returns for a request; a text as an answer without probabilities.

        Raises:
            UsageError: It returns neither a text nor an answer.
        """
        answer = self._function(request)
        if isinstance(answer, str):
            return FunctionAnswer(answer)
        if not isinstance(answer, FunctionAnswer) or not isinstance(answer.text, str):
            raise UsageError(
                f"answers: {request.origin.location}: the function returned {answer!r:.80}; "
                "it must return the text of the answer, or a FunctionAnswer"
            )
        return answer


def _make_label_tokens(answer: FunctionAnswer, request: Request) -> list[Token]:
    """Return one token for each label in the text, with all probable labels as alternatives.

    Raises:
        UsageError: The probabilities do not fit the request.
    """
    labels = _spell_labels(request)
    for field_name in answer.probabilities:
        if field_name not in labels:
            problem = f"{field_name!r:.80} is no field with labels"
            raise _refuse(request, problem, ", ".join(labels))

    tokens: list[Token] = []
    for label in _find_labels(answer.text, labels, request.layout):
        shares = _get_shares(label, answer.probabilities, request)
        tokens.append(make_label_token(answer.text, label.span, shares))
    return tokens


@dataclass(frozen=True, slots=True)
class _WrittenLabel:
    """Label in the text of an answer.

    Attributes:
        field_name: Name of its field.
        text: The label as it is written.
        span: First byte of the label in the answer, and the byte after its last one.
        allowed: All labels of the field, as they are written.
    """

    field_name: str
    text: str
    span: tuple[int, int]
    allowed: Collection[str]


def _find_labels(
    text: str, labels: Mapping[str, Collection[str]], layout: Layout
) -> list[_WrittenLabel]:
    """Return the labels in the text of an answer.

    Values that are no labels are left out: parsing the text says what is wrong with them.

    Args:
        text: Text of the answer.
        labels: Labels of each field that has labels, as they are written.
        layout: Layout of the answer.
    """
    found: list[_WrittenLabel] = []
    for field_name, span in layout.find_values(text).items():
        value = slice_bytes(text, *span)
        allowed = labels.get(field_name, ())
        if value in allowed:
            found.append(_WrittenLabel(field_name, value, span, allowed))
    return found


def _get_shares(
    label: _WrittenLabel, probabilities: Mapping[str, LabelShares], request: Request
) -> dict[str, float]:
    """Return the probabilities of the labels of a field, by label as it is written.

    The label in the text is certain if the function gives no probabilities of the field.

    Args:
        label: Label of the field in the text.
        probabilities: Probabilities by field and label, from the function.
        request: Request that was answered.

    Raises:
        UsageError: The probabilities do not fit the request or the text.
    """
    if label.field_name not in probabilities:
        return {label.text: 1.0}

    shares = _spell_shares(
        probabilities[label.field_name],
        request,
        label.field_name,
        label.allowed,
    )
    if label.text not in shares:
        problem = f"{label.field_name}: {label.text} has no probability"
        raise _refuse(request, problem, "that of the label in the text too")
    return shares


def _spell_labels(request: Request) -> dict[str, set[str]]:
    """Return the labels of each field that has labels, as they are written."""
    labels: dict[str, set[str]] = {}
    for name, schema in list_fields(request.schema).items():
        if "enum" in schema:
            labels[name] = {request.layout.spell_value(label) for label in schema["enum"]}
    return labels


def _spell_shares(
    probabilities: LabelShares, request: Request, name: str, allowed: Collection[str]
) -> dict[str, float]:
    """Return the probabilities above 0 of a field's labels, by label as it is written.

    Args:
        probabilities: Probabilities by label, from the function.
        request: Request that was answered.
        name: Name of the field.
        allowed: Labels of the field, as they are written.

    Raises:
        UsageError: A label or a probability is impossible, or they add up to more than 1.
    """
    shares: dict[str, float] = {}
    for label, share in probabilities.items():
        spelling = request.layout.spell_value(label)
        if spelling not in allowed:
            raise _refuse(request, f"{name}: no label {label!r:.80}", ", ".join(sorted(allowed)))
        if not 0.0 <= share <= 1.0:
            problem = f"{name}: {spelling}: {share!r:.80}"
            raise _refuse(request, problem, "a probability from 0 to 1")
        if share > 0.0:
            shares[spelling] = float(share)

    if math.fsum(shares.values()) > 1.0 + _ROUNDING:
        raise _refuse(request, f"{name}: the probabilities add up to more than 1", "at most 1")
    return shares


def _refuse(request: Request, problem: str, expected: str) -> UsageError:
    """Return the error of probabilities that do not fit a request."""
    return UsageError(
        f"answers: {request.origin.location}: the function returned probabilities that do not fit: "
        f"{problem}; expected {expected}"
    )
