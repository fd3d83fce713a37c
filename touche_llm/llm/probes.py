"""Probes that start-up and doctor share: labels, instructions, reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import create_model

from touche_llm.llm.answers import (
    MAX_ALTERNATIVES,
    AnswerForm,
    AnswerModel,
    Layout,
    Unusable,
    build_schema,
    count_alternatives,
    get_labels,
    list_fields,
    parse_answer,
)
from touche_llm.llm.chat import ChatServer, read_completion
from touche_llm.llm.checks import (
    LABEL_TOKENS,
    OPEN_THOUGHT,
    PLAIN,
    PROBE_ANSWER,
    SYSTEM_MESSAGE,
    ServerCheck,
    Survey,
    fail,
)
from touche_llm.llm.engine import BrokenReply, Completion, MissingLogprobs, Rejected
from touche_llm.llm.logprobs import Label, read_label
from touche_llm.llm.request import (
    Message,
    Request,
    Sampling,
    Thinking,
    continue_thought,
    place_system_message,
)
from touche_llm.llm.settings import ThinkingConfig

# Max probability of tokens that several labels share, since it is split between these; and of the tokens that the
# alternatives leave out, where one of these could be a label's.
_MAX_SHARED = _MAX_UNSEEN = 0.05
# Alternatives of a server whose log-probabilities are those before the grammar, such as llama.cpp: with a model of 1.5
# billion parameters, 20 showed five of six labels of a prompt and 100 all. A reply has 170 kB and takes as long.
_RAW_ALTERNATIVES = 200
SYSTEM = "Answer each field with one of its labels."


async def check_labels(survey: Survey) -> list[ServerCheck]:
    """Check with one request for each form whether the labels of answers can be read from their tokens.

    One answer has the labels of all schemas in one form. If tokens that the schema forbids have a probability too, the
    server sends more alternatives from now on, unless it refuses to.

    Returns:
        The worst result; nothing if no answer has labels.

    Raises:
        Transient, Rejected: The server did not reply, or refuses all requests.
    """
    joined = _join_answers(survey.schemas)
    if not joined:
        return []
    if not survey.top_logprobs:
        return [ServerCheck(LABEL_TOKENS, None, "not read without log-probabilities")]
    if not survey.is_renormalised:
        survey.server.alternatives = _RAW_ALTERNATIVES
    found = [await _check_form(survey, *each) for each in joined]
    return [min(found, key=lambda check: (not check.is_blocking, check.is_ok is not False, check.is_ok is not None))]


async def _check_form(survey: Survey, answer: type[AnswerModel], form: AnswerForm) -> ServerCheck:
    server, request = survey.server, _build_request(survey, answer, form)
    other_form = "use prompts of another `form`, such as `object`"
    try:
        completion = await server.complete(request)
        values = parse_answer(completion.text, answer, form).model_dump()
    except Rejected as error:
        if error.is_fatal:
            raise
        if server.alternatives:
            server.alternatives = 0
            return await _check_form(survey, answer, form)
        return fail(LABEL_TOKENS, f"the server refuses the schema of the labels in {form} form: {error}", other_form)
    except MissingLogprobs:
        return fail(LABEL_TOKENS, f"{server.model} sends no log-probabilities of labels in {form} form")
    except Unusable as error:
        found = f"{' '.join(error.text.split())[:40]!r}"
        if completion.finish_reason == "length":
            return ServerCheck(LABEL_TOKENS, None, f"could not be checked: the answer is {found}")
        return fail(LABEL_TOKENS, f"the schema of the labels in {form} form is not enforced: {found}", other_form)
    sent = max(request.sampling.top_logprobs, server.alternatives)
    return _judge_readings(completion, request, values, sent, is_renormalised=survey.is_renormalised)


def _judge_readings(
    completion: Completion, request: Request, values: Mapping[str, Label], sent: int, *, is_renormalised: bool
) -> ServerCheck:
    """Return whether each label can be read from an answer with these values, of which `sent` alternatives came."""
    layout = Layout.of_schema(request.schema)
    read, count, shared = 0, 0, 0.0
    for name, labels in _list_labels(request.schema):
        reading = read_label(completion.text, completion.tokens, layout, name, labels, values[name])
        if reading.probabilities is None:
            return fail(LABEL_TOKENS, f"no label of {name} ({_join(labels)}) can be read from {completion.text!r:.80}")
        unread = [label for label, share in reading.probabilities.items() if not share]
        unseen = reading.off_label_mass or 0.0
        if unread and is_renormalised and unseen > _MAX_UNSEEN:
            more = f"use prompts of `form: object` with {MAX_ALTERNATIVES}, or " if sent < MAX_ALTERNATIVES else ""
            value = f"{_join(unread)} of {name} cannot be read: {sent} alternatives miss a probability of {unseen:.3f}"
            return fail(LABEL_TOKENS, value, more + PLAIN)
        read, count, shared = read + len(labels) - len(unread), count + len(labels), max(shared, reading.shared or 0.0)
    value = f"{read} of {count} labels can be read"
    if read < count and not is_renormalised:
        cost = "a label beyond them counts as improbable"
        return ServerCheck(LABEL_TOKENS, False, f"{value} from {sent} alternatives", cost)
    if shared <= _MAX_SHARED:
        return ServerCheck(LABEL_TOKENS, True, f"{value}, each from a token of its own")
    value += f", but tokens that several begin with have a probability of {shared:.3f}"
    # No form shares less than letters.
    remedy = "use prompts of `form: letters`, whose labels begin with different characters"
    remedy = "" if layout.form is AnswerForm.LETTERS else remedy
    return ServerCheck(LABEL_TOKENS, False, value, "the probability of a shared token is split evenly", remedy)


def _join_answers(schemas: Sequence[Mapping[str, Any]]) -> list[tuple[type[AnswerModel], AnswerForm]]:
    """Return an answer for each form, with each set of labels of its schemas once."""
    by_form: dict[AnswerForm, dict[tuple[Label, ...], str]] = {}
    for schema in schemas:
        fields = by_form.setdefault(Layout.of_schema(schema).form, {})
        for name, labels in _list_labels(schema):
            fields.setdefault(labels, name if name not in fields.values() else f"{name}{len(fields) + 1}")
    joined = []
    for form, fields in by_form.items():
        if not fields:
            continue
        given: dict[str, Any] = {name: (Literal[labels], ...) for labels, name in fields.items()}
        joined.append((create_model("JoinedLabels", __base__=AnswerModel, **given), form))
    return joined


def _list_labels(schema: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Label, ...]]]:
    for name, part in list_fields(schema).items():
        if "enum" in part:
            yield name, tuple(part["enum"])


def _build_request(survey: Survey, answer: type[AnswerModel], form: AnswerForm) -> Request:
    schema = build_schema(answer, form)
    fields = "\n".join(f"{name}: {_join(labels)}" for name, labels in get_labels(answer).items())
    sampling = Sampling(max_tokens=256, top_logprobs=min(survey.top_logprobs, count_alternatives(schema)))
    return survey.server.build_check((Message("system", SYSTEM), Message("user", fields)), schema, sampling)


def _join(labels: Sequence[Label]) -> str:
    return ", ".join(map(str, labels))


_SYSTEM, _USER = "Quokka rules apply.", "Say wombat."
# Words that a longer system message has besides; a prompt that shows it has at least as many more tokens.
_MORE_WORDS = 40
# Beginnings and ends of thoughts in published chat templates.
_OPENING = re.compile(
    r"<(?![^<>]*END_)[^<>/]*think[^<>]*>|\[THINK\]|<thought>|<\|channel>thought|here are my reasoning steps:",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"</[^<>]*(?:think|thought)[^<>]*>|\[/THINK\]|<\|END_THINKING\|>|<channel\|>", re.IGNORECASE)


async def check_system_message(survey: Survey) -> list[ServerCheck]:
    """Check whether the model sees a system message: by the text of a prompt, else by its effect on the tokens.

    Some templates write a message of their own where a chat has none, so that only prompts with one are compared.

    Raises:
        Transient, Rejected: The server did not reply, or refuses all requests.
    """
    if survey.sampling.system_message == "user":
        return [ServerCheck(SYSTEM_MESSAGE, True, "in the user message, as configured")]
    try:
        prompt = await _render(survey)
        if prompt is None:
            return [await _compare_tokens(survey)]
        if _SYSTEM.casefold() not in " ".join(prompt.casefold().split()):
            return [survey.fail(SYSTEM_MESSAGE, "ignored by the chat template")]
        return [ServerCheck(SYSTEM_MESSAGE, True, "shown by the chat template")]
    except Rejected as error:
        if error.is_fatal:
            raise
        return [survey.fail(SYSTEM_MESSAGE, f"refused: {error}")]


async def _compare_tokens(survey: Survey) -> ServerCheck:
    """Return whether a longer system message makes a longer prompt."""
    counts = []
    for text in (_SYSTEM, _SYSTEM + " quokka" * _MORE_WORDS):
        request = replace(survey.build_probe(), messages=(Message("system", text), Message("user", _USER)))
        counts.append((await survey.server.exchange(request)).usage.prompt_tokens)
    added = counts[1] - counts[0]
    if added >= _MORE_WORDS:
        return ServerCheck(SYSTEM_MESSAGE, True, "shown by the chat template, by its tokens")
    if added or not counts[0]:
        return ServerCheck(SYSTEM_MESSAGE, None, "accepted; the prompt tokens do not show whether it is used")
    return survey.fail(SYSTEM_MESSAGE, "ignored by the chat template: a longer one adds no tokens")


async def check_open_thought(survey: Survey) -> list[ServerCheck]:
    """Check whether the prompt of an answer without reasoning ends inside a thought; raise Transient or Rejected."""
    if survey.sampling.thinking.judge:
        return []
    prompt = await _render(survey)
    if prompt is None:
        return [ServerCheck(OPEN_THOUGHT, None, "unknown, since the server does not show its prompts")]
    end = prompt[prompt.rfind(_USER) + len(_USER) :]
    opened, closed = ([match.start() for match in pattern.finditer(end)] for pattern in (_OPENING, _CLOSING))
    if opened and opened[-1] > max(closed, default=-1):
        return [survey.fail(OPEN_THOUGHT, f"the prompt ends inside a thought: {end[-40:]!r}")]
    return [ServerCheck(OPEN_THOUGHT, True, "none in the prompt of an answer")]


async def _render(survey: Survey) -> str | None:
    """Return the prompt of a short question as a run would send it; None if the server does not show it."""
    sampling = survey.sampling
    chat = place_system_message((Message("system", _SYSTEM), Message("user", _USER)), sampling.system_message)
    return await survey.server.render(chat, sampling.chat_template_kwargs)


_NAME = "thinking"
_PARSER = "serve the model without a reasoning parser (vLLM: --reasoning-parser)"
# Two thoughts that no template would change.
_THOUGHTS = ("One of two.", "Other words.")


async def check_thinking(survey: Survey, settings: ThinkingConfig) -> ServerCheck:
    """Return whether the server continues a thought that has ended with an answer that fits the schema.

    Args:
        survey: The server, with the field in which it gets schemas.
        settings: Delimiters, and switches of the chat template.

    Raises:
        Transient, Rejected: The server did not reply, or refuses all requests.
    """
    server, probe = survey.server, survey.build_probe()
    opening, closing = settings.delimiters
    thinking = Thinking(1, opening, closing, settings.temperature)
    known = await _check_template(server, probe.messages, thinking, settings.chat_template_kwargs)
    if known is not None and not known.is_ok:
        return known
    thoughtful = replace(probe, thinking=thinking, chat_template_kwargs=settings.chat_template_kwargs)
    request = continue_thought(thoughtful, 0, _THOUGHTS[0])
    try:
        completion = read_completion(await server.exchange(request))
    except Rejected as error:
        if error.is_fatal:
            raise
        remedy = "let the model reason on a server that continues one, such as vLLM"
        return fail(_NAME, f"the server refuses to continue a message of the assistant: {error}", remedy)
    if "".join(completion.text.split()) == PROBE_ANSWER:
        unknown = "an answer continues a thought; whether the template keeps it is unknown"
        return known or ServerCheck(_NAME, None, unknown)
    if PROBE_ANSWER in "".join((completion.reasoning or "").split()):
        return fail(_NAME, "the answer after a thought is in the field of the reasoning", _PARSER)
    return fail(_NAME, f"no schema is enforced after a thought: {completion.text[:80]!r}", _PARSER)


async def _check_template(
    server: ChatServer, messages: tuple[Message, ...], thinking: Thinking, chat_template_kwargs: Mapping[str, Any]
) -> ServerCheck | None:
    """Return whether the chat template keeps a thought; None if the server does not show its prompts.

    Apart from white space, the prompt of the answer is the prompt of the thought with the thought after it: a template
    may write an empty thought before it, or put it in a channel of its own.
    """
    prompt = await server.render(messages, chat_template_kwargs)
    if prompt is None:
        return None
    found = []
    for thought in _THOUGHTS:
        continued = (*messages, Message("assistant", thinking.delimit(thought)))
        try:
            found.append(await server.counter.render(continued, chat_template_kwargs) or "")
        except (Rejected, BrokenReply) as error:
            return fail(_NAME, f"the chat template refuses to continue a thought: {error}")
    text, other = found
    if text == other:
        return fail(_NAME, "the chat template drops the thought when an answer continues it")
    # Some templates open the thought themselves.
    begun = _squeeze(prompt).removesuffix(_squeeze(thinking.opening))
    if _squeeze(text) != begun + _squeeze(thinking.delimit(_THOUGHTS[0])):
        how = f"the chat template continues a thought as {text[-80:]!r}"
        return fail(_NAME, f"after {prompt[-40:]!r} the model reasons, but {how}")
    return ServerCheck(_NAME, True, "a thought is kept")


def _squeeze(text: str) -> str:
    """Return a text without white space, which templates strip from messages."""
    return "".join(text.split())
