"""Check of the tokens of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from touche_llm.doctor.card import MAX_UNSEEN, Survey
from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import build_request
from touche_llm.engines.chat import read_completion
from touche_llm.engines.identification import ServerCheck
from touche_llm.errors import MissingLogprobs
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.label_probabilities import Label, read_label
from touche_llm.text.quoting import quote

# Max probability of tokens that several labels share, since it is split between these.
_MAX_SHARED = 0.05
# Alternatives of a server whose log-probabilities are those before the grammar, such as llama.cpp:
# with a model of 1.5 billion parameters, 20 showed five of six labels of a prompt and 100 all. A
# reply has 170 kB and takes as long.
_RAW_ALTERNATIVES = 200
SYSTEM = "Answer each field with one of its labels."


async def check_labels(survey: Survey) -> list[ServerCheck]:
    """Check with a request for each schema whether the labels of answers can be read from their tokens.

    If tokens that the schema forbids have a probability too, the server sends more alternatives
    from now on, unless it refuses to. The worst result counts; there is none if no answer has
    labels.
    """
    schemas_by_text = {orjson.dumps(schema): schema for schema in survey.schemas}
    schemas = [schema for schema in schemas_by_text.values() if _list_labels(schema)]
    if schemas and not survey.top_logprobs:
        return [ServerCheck(CHECK.name, None, "not read without log-probabilities")]
    if not survey.is_renormalised:
        survey.server.alternatives = _RAW_ALTERNATIVES if schemas else 0
    checks = [await _check_form(survey, schema) for schema in schemas]
    return sorted(checks, key=_order_worst_first)[:1]


def _order_worst_first(check: ServerCheck) -> tuple[bool, bool, bool]:
    """Return the key of an order: blocking checks, then failed, unknown and passed ones."""
    has_failed = check.is_ok is False
    has_passed = check.is_ok is True
    return not check.is_blocking, not has_failed, has_passed


async def _check_form(survey: Survey, schema: Mapping[str, Any]) -> ServerCheck:
    """Return whether each label of a schema can be read from an answer."""
    server = survey.server
    by_field = _list_labels(schema)
    text = "\n".join(f"{field}: {_join(labels)}" for field, labels in by_field.items())
    request = build_request(survey, text, SYSTEM, schema)
    reply = await survey.send(request)
    if isinstance(reply, str) and server.alternatives:
        server.alternatives = 0
        reply = await survey.send(request)
    if isinstance(reply, str):
        value = f"the server refuses the schema of the labels in {request.layout.form} form"
        return CHECK.fail(f"{value}: {reply}")
    try:
        completion = read_completion(reply, request.layout)
    except MissingLogprobs:
        value = f"{server.model} sends no log-probabilities of labels in {request.layout.form} form"
        return CHECK.fail(value)
    if completion.finish_reason == "length":
        value = f"could not be checked: the answer is {quote(completion.text.strip(), 40)!r}"
        return ServerCheck(CHECK.name, None, value)

    unread = 0
    shared = 0.0
    for field, labels in by_field.items():
        reading = read_label(
            completion.text, completion.tokens, request.layout, field, labels, labels[0]
        )
        if reading.probabilities is None:
            answer = quote(completion.text, 80)
            value = f"no label of {field} ({_join(labels)}) can be read from {answer!r}"
            return CHECK.fail(value)
        missing = [label for label, share in reading.probabilities.items() if not share]
        unseen = reading.off_label_mass or 0.0
        if missing and survey.is_renormalised and unseen > MAX_UNSEEN:
            value = f"{_join(missing)} of {field} cannot be read: the alternatives miss a probability of {unseen:.3f}"
            return CHECK.fail(value)
        unread += len(missing)
        shared = max(shared, reading.shared or 0.0)

    count = sum(map(len, by_field.values()))
    value = f"{count - unread} of {count} labels can be read"
    if unread and not survey.is_renormalised:
        value += f" from {max(request.sampling.top_logprobs, server.alternatives)} alternatives"
        remedy = "a label beyond them counts as improbable"
        return ServerCheck(CHECK.name, False, value, remedy)
    if shared <= _MAX_SHARED:
        return ServerCheck(CHECK.name, True, f"{value}, each from a token of its own")
    value += f", but tokens that several begin with have a probability of {shared:.3f}"
    remedy = "it is split evenly; use prompts of `form: letters`, which share least"
    return ServerCheck(CHECK.name, False, value, remedy)


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
