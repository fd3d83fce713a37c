"""Check of the tokens of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from touche_llm.data.records import Label, Reading
from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import build_request
from touche_llm.doctor.survey import Survey
from touche_llm.engines.chat import read_completion
from touche_llm.engines.dialects import MAX_UNSEEN, Refusal
from touche_llm.engines.identification import ServerCheck
from touche_llm.errors import MissingLogprobs
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.label_probabilities import TokenizedAnswer, read_label
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import Request
from touche_llm.text.quoting import quote

# Max probability of tokens that several labels share, since it is split between these.
_MAX_SHARED = 0.05
SYSTEM = "Answer each field with one of its labels."


async def check_labels(survey: Survey) -> list[ServerCheck]:
    """Check whether the probabilities of labels can be read from the tokens of an answer.

    One request is sent for each schema of an answer with labels. The worst result counts; there is
    none if no answer has labels.
    """
    schemas = list_labelled_schemas(survey.schemas)
    if not schemas:
        return []
    if not survey.top_logprobs:
        return [ServerCheck(CHECK.name, None, "not read without log-probabilities")]

    results = [await _check_schema(survey, schema) for schema in schemas]
    worst_result = min(results, key=_order_worst_first)
    return [worst_result]


def _order_worst_first(check: ServerCheck) -> tuple[bool, bool, bool]:
    """Return the key of an order: blocking checks, then failed, unknown and passed ones."""
    has_failed = check.is_ok is False
    has_passed = check.is_ok is True
    return not check.is_blocking, not has_failed, has_passed


async def _check_schema(survey: Survey, schema: Mapping[str, Any]) -> ServerCheck:
    """Check with one request whether each label of a schema can be read from an answer."""
    labels_by_field = _list_labels(schema)
    lines = [f"{field}: {_join(labels)}" for field, labels in labels_by_field.items()]
    request = build_request(survey, "\n".join(lines), SYSTEM, schema)
    completion = await _request_completion(survey, request)
    if isinstance(completion, ServerCheck):
        return completion

    answer = TokenizedAnswer(completion.text, completion.tokens, request.layout)
    fields = _read_fields(answer, labels_by_field)
    for field in fields:
        problem = _find_problem(survey, field, answer)
        if problem is not None:
            return CHECK.fail(problem)
    readings = [field.reading for field in fields]
    return _describe_labels(survey, request, readings)


@dataclass(frozen=True, slots=True)
class _FieldReading:
    """Reading of a field of an answer.

    Attributes:
        name: Name of the field.
        labels: Its labels.
        reading: Probabilities of the labels, as far as they can be read.
    """

    name: str
    labels: Sequence[Label]
    reading: Reading


def _read_fields(
    answer: TokenizedAnswer, labels_by_field: Mapping[str, Sequence[Label]]
) -> list[_FieldReading]:
    """Return the readings of the fields of an answer."""
    fields: list[_FieldReading] = []
    for name, labels in labels_by_field.items():
        # Any label will do as the one in the text: probabilities do not depend on it.
        reading = read_label(answer, name, labels, answered=labels[0])
        fields.append(_FieldReading(name, labels, reading))
    return fields


async def _request_completion(survey: Survey, request: Request) -> Completion | ServerCheck:
    """Return the completion of a request, or the result of the check if it cannot be read.

    Raises:
        Rejected: The server refuses all requests.
        Transient: There is no reply, or it is malformed.
    """
    form = request.layout.form
    reply = await survey.send(request)
    if isinstance(reply, Refusal):
        value = f"the server refuses the schema of the labels in {form} form: {reply.reason}"
        return CHECK.fail(value)
    try:
        completion = read_completion(reply, request.layout)
    except MissingLogprobs:
        model = survey.info.model
        return CHECK.fail(f"{model} sends no log-probabilities of labels in {form} form")
    if completion.finish_reason == "length":
        value = f"could not be checked: the answer is {quote(completion.text.strip(), 40)!r}"
        return ServerCheck(CHECK.name, None, value)
    return completion


def _find_problem(survey: Survey, field: _FieldReading, answer: TokenizedAnswer) -> str | None:
    """Return why the labels of a field cannot be read from an answer; None if they can.

    A label that is not among the alternatives is improbable, which is no problem, as long as the
    alternatives have nearly all of the probability.
    """
    if field.reading.probabilities is None:
        labels = _join(field.labels)
        return f"no label of {field.name} ({labels}) can be read from {quote(answer.text, 80)!r}"

    missing_labels = _list_missing(field.reading)
    if not missing_labels:
        return None
    # Raw probabilities say nothing: the rest can be that of tokens that the schema forbids.
    if not survey.is_renormalised:
        return None
    missing_probability = field.reading.off_label_mass or 0.0
    if missing_probability <= MAX_UNSEEN:
        return None
    return (
        f"{_join(missing_labels)} of {field.name} cannot be read: the alternatives miss a "
        f"probability of {missing_probability:.3f}"
    )


def _list_missing(reading: Reading) -> list[str]:
    """Return the labels without a probability."""
    return [label for label, share in reading.shares.items() if not share]


def _describe_labels(survey: Survey, request: Request, readings: Sequence[Reading]) -> ServerCheck:
    """Return the result of the check for an answer whose labels can be read.

    The check warns if the alternatives lack some labels, and otherwise if several labels begin with
    the same token. Else it has passed.
    """
    label_count = sum(len(reading.shares) for reading in readings)
    missing_count = sum(len(_list_missing(reading)) for reading in readings)
    readable = f"{label_count - missing_count} of {label_count} labels can be read"
    if missing_count and not survey.is_renormalised:
        alternatives = max(request.sampling.top_logprobs, survey.dialect.min_alternatives)
        return _warn(
            f"{readable} from {alternatives} alternatives",
            remedy="a label beyond them counts as improbable",
        )

    shared_probability = max(reading.shared or 0.0 for reading in readings)
    if shared_probability > _MAX_SHARED:
        return _warn(
            f"{readable}, but tokens that several begin with have a probability of "
            f"{shared_probability:.3f}",
            remedy="it is split evenly; use prompts of `form: letters`, which share least",
        )
    return ServerCheck(CHECK.name, True, f"{readable}, each from a token of its own")


def _warn(value: str, remedy: str) -> ServerCheck:
    """Return a failed check that does not block a run."""
    return ServerCheck(CHECK.name, False, value, remedy)


def list_labelled_schemas(schemas: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the schemas of answers that have labels, each content once."""
    schemas_by_content = {orjson.dumps(schema): schema for schema in schemas}
    return [schema for schema in schemas_by_content.values() if _list_labels(schema)]


def _list_labels(schema: Mapping[str, Any]) -> dict[str, tuple[Label, ...]]:
    return {
        name: tuple(part["enum"]) for name, part in list_fields(schema).items() if "enum" in part
    }


def _join(labels: Sequence[Label]) -> str:
    return ", ".join(map(str, labels))


CHECK = register(
    Check(
        name="label tokens",
        remedy=(
            "use prompts of another `form`, such as `object`, or request plain grades with "
            "`sampling.logprobs: false`"
        ),
        is_blocking=True,
        run=check_labels,
        occasion=Occasion.START_UP,
        order=40,
        warns_if_unknown=True,
    )
)
