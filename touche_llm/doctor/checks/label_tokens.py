"""Check of the tokens of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from touche_llm.data.records import Reading
from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import build_request
from touche_llm.doctor.survey import Survey
from touche_llm.engines.chat import read_completion
from touche_llm.engines.dialects import MAX_UNSEEN, Refusal
from touche_llm.engines.identification import ServerCheck
from touche_llm.errors import MissingLogprobs
from touche_llm.llm.answer_schema import Label, list_fields
from touche_llm.llm.label_probabilities import TokenizedAnswer, read_label
from touche_llm.llm.request import Request
from touche_llm.text.quoting import quote

# Max probability of tokens that several labels share, since it is split between these.
_MAX_SHARED = 0.05
SYSTEM = "Answer each field with one of its labels."


async def check_labels(survey: Survey) -> list[ServerCheck]:
    """Check with a request for each schema whether the labels of answers can be read from their tokens.

    The worst result counts; there is none if no answer has labels.
    """
    schemas = list_labelled_schemas(survey.schemas)
    if schemas and not survey.top_logprobs:
        return [ServerCheck(CHECK.name, None, "not read without log-probabilities")]
    checks = [await _check_form(survey, schema) for schema in schemas]
    return sorted(checks, key=_order_worst_first)[:1]


def _order_worst_first(check: ServerCheck) -> tuple[bool, bool, bool]:
    """Return the key of an order: blocking checks, then failed, unknown and passed ones."""
    has_failed = check.is_ok is False
    has_passed = check.is_ok is True
    return not check.is_blocking, not has_failed, has_passed


async def _check_form(survey: Survey, schema: Mapping[str, Any]) -> ServerCheck:
    """Return whether each label of a schema can be read from an answer."""
    by_field = _list_labels(schema)
    text = "\n".join(f"{field}: {_join(labels)}" for field, labels in by_field.items())
    request = build_request(survey, text, SYSTEM, schema)
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

    answer = TokenizedAnswer(completion.text, completion.tokens, request.layout)
    readings: list[Reading] = []
    for field, labels in by_field.items():
        reading = read_label(answer, field, labels, answered=labels[0])
        problem = _find_problem(survey, field, labels, reading, completion.text)
        if problem is not None:
            return CHECK.fail(problem)
        readings.append(reading)
    return _describe_labels(survey, request, readings)


def _find_problem(
    survey: Survey, field: str, labels: Sequence[Label], reading: Reading, answer: str
) -> str | None:
    """Return why the labels of a field cannot be read; None if they can."""
    if reading.probabilities is None:
        return f"no label of {field} ({_join(labels)}) can be read from {quote(answer, 80)!r}"

    unseen = reading.off_label_mass or 0.0
    missing = _list_missing(reading)
    if missing and survey.is_renormalised and unseen > MAX_UNSEEN:
        return (
            f"{_join(missing)} of {field} cannot be read: the alternatives miss a probability of "
            f"{unseen:.3f}"
        )
    return None


def _list_missing(reading: Reading) -> list[str]:
    """Return the labels without a probability."""
    return [label for label, share in reading.shares.items() if not share]


def _describe_labels(survey: Survey, request: Request, readings: Sequence[Reading]) -> ServerCheck:
    """Return the result of a check whose labels can be read."""
    count = sum(len(reading.shares) for reading in readings)
    unread = sum(len(_list_missing(reading)) for reading in readings)
    shared = max(reading.shared or 0.0 for reading in readings)

    value = f"{count - unread} of {count} labels can be read"
    if unread and not survey.is_renormalised:
        alternatives = max(request.sampling.top_logprobs, survey.dialect.min_alternatives)
        value += f" from {alternatives} alternatives"
        remedy = "a label beyond them counts as improbable"
        return ServerCheck(CHECK.name, False, value, remedy)
    if shared <= _MAX_SHARED:
        return ServerCheck(CHECK.name, True, f"{value}, each from a token of its own")
    value += f", but tokens that several begin with have a probability of {shared:.3f}"
    remedy = "it is split evenly; use prompts of `form: letters`, which share least"
    return ServerCheck(CHECK.name, False, value, remedy)


def list_labelled_schemas(schemas: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the different schemas of answers that have labels."""
    by_content = {orjson.dumps(schema): schema for schema in schemas}
    return [schema for schema in by_content.values() if _list_labels(schema)]


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
