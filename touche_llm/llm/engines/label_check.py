"""Check of a server whose alternatives must show the labels of the answers that a run requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import create_model

from touche_llm.llm.answer_forms import AnswerForm, Layout, list_fields
from touche_llm.llm.answers import (
    MAX_ALTERNATIVES,
    AnswerModel,
    Unusable,
    build_schema,
    count_alternatives,
    get_labels,
    parse_answer,
)
from touche_llm.llm.engines.base import Completion, MissingLogprobs, Rejected
from touche_llm.llm.engines.server import ChatServer
from touche_llm.llm.engines.server_checks import ServerCheck, block
from touche_llm.llm.logprobs import Label, read_label
from touche_llm.llm.request import Message, Request, Sampling

LABEL_TOKENS = "label tokens"
# Max probability of tokens that several labels share, since it is split between these; and of the tokens that the
# alternatives leave out, where one of these could be a label's.
_MAX_SHARED = _MAX_UNSEEN = 0.05
# Alternatives of a server whose log-probabilities are those before the grammar, such as llama.cpp: with a model of 1.5
# billion parameters, 20 showed five of six labels of a prompt and 100 all. A reply has 170 kB and takes as long.
_RAW_ALTERNATIVES = 200
SYSTEM = "Answer each field with one of its labels."
_PLAIN = "request plain grades with `sampling.logprobs: false`"


async def check_labels(
    server: ChatServer, schemas: Sequence[Mapping[str, Any]], top_logprobs: int, *, is_renormalised: bool
) -> ServerCheck:
    """Check with one request for each form whether the labels of answers can be read from their tokens.

    If tokens that the schema forbids have a probability too, the server sends more alternatives from now on, unless it
    refuses to.

    Args:
        server: Server that enforces schemas.
        schemas: Schemas of answers with labels; one answer has the labels of all schemas in one form.
        top_logprobs: Max number of alternatives; 0 to check nothing.
        is_renormalised: Whether only tokens that a schema allows have a probability.

    Returns:
        The worst result.

    Raises:
        Transient, Rejected: The server did not reply, or refuses all requests.
    """
    if not top_logprobs:
        return ServerCheck(LABEL_TOKENS, None, "not read without log-probabilities")
    joined = _join_answers(schemas)
    if not is_renormalised:
        server.alternatives = _RAW_ALTERNATIVES
    found = [await _check_form(server, *each, top_logprobs, is_renormalised=is_renormalised) for each in joined]
    return min(found, key=lambda check: (not check.is_blocking, check.is_ok is not False, check.is_ok is not None))


async def _check_form(
    server: ChatServer, answer: type[AnswerModel], form: AnswerForm, top_logprobs: int, *, is_renormalised: bool
) -> ServerCheck:
    request = _build_request(server, answer, form, top_logprobs)
    other_form = "use prompts of another `form`, such as `object`"
    try:
        completion = await server.complete(request)
        values = parse_answer(completion.text, answer, form).model_dump()
    except Rejected as error:
        if error.is_fatal:
            raise
        if server.alternatives:
            server.alternatives = 0
            return await _check_form(server, answer, form, top_logprobs, is_renormalised=is_renormalised)
        return block(LABEL_TOKENS, f"the server refuses the schema of the labels in {form} form: {error}", other_form)
    except MissingLogprobs:
        return block(LABEL_TOKENS, f"{server.model} sends no log-probabilities of labels in {form} form", _PLAIN)
    except Unusable as error:
        found = f"{' '.join(error.text.split())[:40]!r}"
        if completion.finish_reason == "length":
            return ServerCheck(LABEL_TOKENS, None, f"could not be checked: the answer is {found}")
        return block(LABEL_TOKENS, f"the schema of the labels in {form} form is not enforced: {found}", other_form)
    sent = max(request.sampling.top_logprobs, server.alternatives)
    return _judge_readings(completion, request, values, sent, is_renormalised=is_renormalised)


def _judge_readings(
    completion: Completion, request: Request, values: Mapping[str, Label], sent: int, *, is_renormalised: bool
) -> ServerCheck:
    """Return whether each label can be read from an answer with these values, of which `sent` alternatives came."""
    layout = Layout.of_schema(request.schema)
    read, count, shared = 0, 0, 0.0
    for name, labels in _list_labels(request.schema):
        reading = read_label(completion.text, completion.tokens, layout, name, labels, values[name])
        if reading.probabilities is None:
            return block(
                LABEL_TOKENS, f"no label of {name} ({_join(labels)}) can be read from {completion.text!r:.80}", _PLAIN
            )
        unread = [label for label, share in reading.probabilities.items() if not share]
        unseen = reading.off_label_mass or 0.0
        if unread and is_renormalised and unseen > _MAX_UNSEEN:
            more = f"use prompts of `form: object` with {MAX_ALTERNATIVES}, or " if sent < MAX_ALTERNATIVES else ""
            value = f"{_join(unread)} of {name} cannot be read: {sent} alternatives miss a probability of {unseen:.3f}"
            return block(LABEL_TOKENS, value, more + _PLAIN)
        read, count, shared = read + len(labels) - len(unread), count + len(labels), max(shared, reading.shared or 0.0)
    value = f"{read} of {count} labels can be read"
    if read < count and not is_renormalised:
        cost = "a label beyond them counts as improbable"
        return ServerCheck(LABEL_TOKENS, False, f"{value} from {sent} alternatives", cost)
    if shared <= _MAX_SHARED:
        return ServerCheck(LABEL_TOKENS, True, f"{value}, each from a token of its own")
    cost = "the probability of a shared token is split evenly"
    remedy = "use prompts of `form: letters`, whose labels begin with different characters"
    return ServerCheck(
        LABEL_TOKENS,
        False,
        f"{value}, but tokens that several begin with have a probability of {shared:.3f}",
        cost,
        remedy,
    )


def _join_answers(schemas: Sequence[Mapping[str, Any]]) -> list[tuple[type[AnswerModel], AnswerForm]]:
    """Return an answer for each form, with each set of labels of its schemas once."""
    by_form: dict[AnswerForm, dict[tuple[Label, ...], str]] = {}
    for schema in schemas:
        fields = by_form.setdefault(Layout.of_schema(schema).form, {})
        for name, labels in _list_labels(schema):
            fields.setdefault(labels, name if name not in fields.values() else f"{name}{len(fields) + 1}")
    joined = []
    for form, fields in by_form.items():
        given: dict[str, Any] = {name: (Literal[labels], ...) for labels, name in fields.items()}
        joined.append((create_model("JoinedLabels", __base__=AnswerModel, **given), form))
    return joined


def has_labels(schema: Mapping[str, Any]) -> bool:
    """Return whether an answer has a field with labels."""
    return any(True for _ in _list_labels(schema))


def _list_labels(schema: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Label, ...]]]:
    for name, field in list_fields(schema).items():
        if "enum" in field:
            yield name, tuple(field["enum"])


def _build_request(server: ChatServer, answer: type[AnswerModel], form: AnswerForm, top_logprobs: int) -> Request:
    schema = build_schema(answer, form)
    fields = "\n".join(f"{name}: {_join(labels)}" for name, labels in get_labels(answer).items())
    sampling = Sampling(max_tokens=256, top_logprobs=min(top_logprobs, count_alternatives(schema)))
    return server.build_check((Message("system", SYSTEM), Message("user", fields)), schema, sampling)


def _join(labels: Sequence[Label]) -> str:
    return ", ".join(map(str, labels))
