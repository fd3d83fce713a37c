"""Examination of a server: requests that show what it can do, and whether a run is possible.

All probes raise Transient if the server did not reply, and Rejected if it refuses all requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import orjson

from touche_llm.doctor.card import (
    PROBE_ANSWER,
    PROBE_LAYOUT,
    PROBE_MESSAGES,
    PROBE_WORD,
    Survey,
    fail,
)
from touche_llm.engines.chat import DELIVERIES, LlamaCppTokenCounter, read_completion
from touche_llm.engines.identification import ServerCheck, describe_failure, identify
from touche_llm.engines.tokenizers import ChatTokenizer
from touche_llm.errors import (
    BrokenReply,
    EngineError,
    MissingLogprobs,
    Rejected,
    Transient,
    Unusable,
)
from touche_llm.llm.answer_schema import count_alternatives, list_fields
from touche_llm.llm.label_probabilities import Label, check_logprobs, read_label, squeeze
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.request import (
    EMPTY_CHAT,
    Message,
    Request,
    Thinking,
    continue_thought,
    place_system_message,
)

# Max probability of tokens that several labels share, since it is split between these; and of the
# tokens that the alternatives leave out, where one of these could be a label's.
_MAX_SHARED = _MAX_UNSEEN = 0.05


async def check_schema(survey: Survey) -> list[ServerCheck]:
    """Make the server use the first way of constraining answers that works, and check its log-probabilities."""
    server = survey.server
    problems: list[str] = []
    for delivery in DELIVERIES:
        server.delivery, refusal = delivery, ""
        reply = await survey.send(survey.build(top_logprobs=survey.sampling.top_logprobs))
        if isinstance(reply, str) and survey.sampling.logprobs:
            refusal, reply = reply, await survey.send(survey.build())
        if isinstance(reply, str):
            problems.append(f"the server refused the request: {reply}")
            continue
        completion = read_completion(reply)
        written = squeeze(completion.text)
        if written == PROBE_ANSWER:
            survey.probe = reply
            checks = [
                ServerCheck("schema", True, f"enforced with {delivery}"),
                _check_logprobs(survey, refusal),
            ]
            if completion.reasoning:
                checks.append(fail("reasoning", "the model thinks before it answers"))
            return checks
        if (
            completion.finish_reason == "length"
            and PROBE_ANSWER.startswith(written)
            and '{"word"' in written
        ):
            value = f"{server.model} fills its answer with white space until it is cut off"
            return [replace(fail("white space", value), is_blocking=True)]
        hint = " (its reasoning was not empty: switch thinking off)" if completion.reasoning else ""
        problems.append(f"the model answered {completion.text[:80]!r}{hint}")
    value = f"{server.model} does not enforce JSON schemas: restricted to {PROBE_ANSWER}, "
    return [fail("schema", value + "; ".join(dict.fromkeys(problems)))]


def _check_logprobs(survey: Survey, refusal: str) -> ServerCheck:
    assert survey.probe is not None
    name, model = "logprobs", survey.server.model
    if not survey.sampling.logprobs:
        return ServerCheck(
            name, None, "not requested", "grades are whole numbers, and stances certain"
        )
    if refusal:
        return fail(name, f"{model} refuses log-probabilities ({refusal})")
    try:
        completion = read_completion(survey.probe, PROBE_LAYOUT)
        check_logprobs(completion.text, completion.tokens)
    except MissingLogprobs:
        return fail(name, f"{model} sends no log-probabilities")
    except Unusable as error:
        remedy = "serve it with --logprobs-mode raw_logprobs, the default of vLLM, or set `sampling.logprobs: false`"
        return fail(name, f"{model} sends impossible log-probabilities: {error.reason}", remedy)
    reading = read_label(
        completion.text, completion.tokens, PROBE_LAYOUT, "word", (PROBE_WORD,), PROBE_WORD
    )
    if reading.off_label_mass is None:
        return fail(name, f"{model} sends log-probabilities that do not spell its answer")
    survey.top_logprobs = survey.sampling.top_logprobs
    survey.is_renormalised = reading.off_label_mass <= _MAX_UNSEEN
    return ServerCheck(
        name,
        True,
        f"for each token of an answer, {'renormalised' if survey.is_renormalised else 'raw'}",
    )


# Max difference between the prompt tokens that are counted and those that the server reports: some
# templates add a date, some servers a token at the beginning.
_MAX_COUNT_ERROR = 8


async def check_tokens(survey: Survey) -> list[ServerCheck]:
    """Make the server use the first counter of tokens that works, and compare its count with the server's."""
    server, folder = survey.server, survey.engine.tokenizer
    others = LlamaCppTokenCounter(server, server.model, server.chat_template_kwargs)
    problem = ""
    # Some templates refuse system messages.
    for counter in (
        [ChatTokenizer(folder, server.chat_template_kwargs)] if folder else [server.counter, others]
    ):
        server.counter = counter
        try:
            counted = await counter.count_tokens(PROBE_MESSAGES)
        except (Rejected, BrokenReply) as error:
            problem = problem or str(error)
            continue
        reported = survey.probe.usage.prompt_tokens if survey.probe else 0
        if reported > counted + _MAX_COUNT_ERROR:
            value = f"{reported} prompt tokens are {counted} by {counter.name}, so documents would not fit"
            return [fail("tokens", value)]
        return [ServerCheck("tokens", True, f"counted by {counter.name}")]
    return [fail("tokens", f"does not count the tokens of messages ({problem})")]


_SYSTEM, _USER = "Quokka rules apply.", "Say wombat."
# Words that a longer system message has besides; a prompt that shows it has at least as many more
# tokens.
_MORE_WORDS = 40


async def check_system_message(survey: Survey) -> list[ServerCheck]:
    """Check whether the model sees a system message: whether a longer one makes a longer prompt.

    Some templates write a message of their own where a chat has none, so that only prompts with one
    are compared.
    """
    name = "system message"
    if survey.sampling.system_message == "user":
        return [ServerCheck(name, True, "in the user message, as configured")]
    counts = []
    for text in (_SYSTEM, _SYSTEM + " quokka" * _MORE_WORDS):
        reply = await survey.send(survey.build((Message("system", text), Message("user", _USER))))
        if isinstance(reply, str):
            return [fail(name, f"refused: {reply}")]
        counts.append(reply.usage.prompt_tokens)
    short, long = counts
    if long >= short + _MORE_WORDS:
        return [ServerCheck(name, True, "shown by the chat template")]
    if long > short or not short:
        return [
            ServerCheck(name, None, "accepted; the prompt tokens do not show whether it is used")
        ]
    return [fail(name, "ignored by the chat template: a longer one adds no tokens")]


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
    schemas = list(
        {orjson.dumps(schema): schema for schema in survey.schemas if _list_labels(schema)}.values()
    )
    if schemas and not survey.top_logprobs:
        return [ServerCheck("label tokens", None, "not read without log-probabilities")]
    if not survey.is_renormalised:
        survey.server.alternatives = _RAW_ALTERNATIVES if schemas else 0
    found = [await _check_form(survey, schema) for schema in schemas]
    return sorted(
        found,
        key=lambda check: (not check.is_blocking, check.is_ok is not False, check.is_ok or False),
    )[:1]


async def _check_form(survey: Survey, schema: Mapping[str, Any]) -> ServerCheck:
    """Return whether each label of a schema can be read from an answer."""
    name, server, by_field = "label tokens", survey.server, _list_labels(schema)
    text = "\n".join(f"{field}: {_join(labels)}" for field, labels in by_field.items())
    request = _build_request(survey, text, SYSTEM, schema)
    reply = await survey.send(request)
    if isinstance(reply, str) and server.alternatives:
        server.alternatives = 0
        reply = await survey.send(request)
    if isinstance(reply, str):
        return fail(
            name,
            f"the server refuses the schema of the labels in {request.layout.form} form: {reply}",
        )
    try:
        completion = read_completion(reply, request.layout)
    except MissingLogprobs:
        return fail(
            name,
            f"{server.model} sends no log-probabilities of labels in {request.layout.form} form",
        )
    if completion.finish_reason == "length":
        return ServerCheck(
            name, None, f"could not be checked: the answer is {completion.text.strip()[:40]!r}"
        )
    unread, shared = 0, 0.0
    for field, labels in by_field.items():
        reading = read_label(
            completion.text, completion.tokens, request.layout, field, labels, labels[0]
        )
        if reading.probabilities is None:
            return fail(
                name,
                f"no label of {field} ({_join(labels)}) can be read from {completion.text!r:.80}",
            )
        missing = [label for label, share in reading.probabilities.items() if not share]
        unseen = reading.off_label_mass or 0.0
        if missing and survey.is_renormalised and unseen > _MAX_UNSEEN:
            value = f"{_join(missing)} of {field} cannot be read: the alternatives miss a probability of {unseen:.3f}"
            return fail(name, value)
        unread, shared = unread + len(missing), max(shared, reading.shared or 0.0)
    count = sum(map(len, by_field.values()))
    value = f"{count - unread} of {count} labels can be read"
    if unread and not survey.is_renormalised:
        value += f" from {max(request.sampling.top_logprobs, server.alternatives)} alternatives"
        return ServerCheck(name, False, value, "a label beyond them counts as improbable")
    if shared <= _MAX_SHARED:
        return ServerCheck(name, True, f"{value}, each from a token of its own")
    value += f", but tokens that several begin with have a probability of {shared:.3f}"
    return ServerCheck(
        name, False, value, "it is split evenly; use prompts of `form: letters`, which share least"
    )


def _list_labels(schema: Mapping[str, Any]) -> dict[str, tuple[Label, ...]]:
    return {
        name: tuple(part["enum"]) for name, part in list_fields(schema).items() if "enum" in part
    }


def _join(labels: Sequence[Label]) -> str:
    return ", ".join(map(str, labels))


# Beginnings and ends of thoughts in published chat templates.
_OPENING = re.compile(
    r"<(?![^<>]*END_)[^<>/]*think[^<>]*>|\[THINK\]|<thought>|<\|channel>thought|here are my reasoning steps:",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"</[^<>]*(?:think|thought)[^<>]*>|\[/THINK\]|<\|END_THINKING\|>|<channel\|>", re.IGNORECASE
)


async def check_open_thought(survey: Survey) -> list[ServerCheck]:
    """Check whether the prompt of an answer without reasoning ends inside a thought."""
    name = "open thought"
    if survey.sampling.thinking.judge:
        return []
    request = survey.build((Message("system", _SYSTEM), Message("user", _USER)))
    prompt = await survey.server.render(request.messages, request.chat_template_kwargs)
    if prompt is None:
        return [ServerCheck(name, None, "unknown, since the server does not show its prompts")]
    end = prompt[prompt.rfind(_USER) + len(_USER) :]
    opened, closed = (
        [match.start() for match in pattern.finditer(end)] for pattern in (_OPENING, _CLOSING)
    )
    if opened and opened[-1] > max(closed, default=-1):
        return [fail(name, f"the prompt ends inside a thought: {end[-40:]!r}")]
    return [ServerCheck(name, True, "none in the prompt of an answer")]


_PARSER = "serve the model without a reasoning parser (vLLM: --reasoning-parser)"
# Two thoughts that no template would change.
_THOUGHTS = ("One of two.", "Other words.")


async def check_thinking(survey: Survey) -> list[ServerCheck]:
    """Check whether the server continues a thought as the run does, and enforces a schema after it.

    Nothing is checked for a run without reasoning.
    """
    name, settings = "thinking", survey.sampling.thinking
    if not settings.budgets:
        return []
    thinking = Thinking(1, *settings.delimiters, settings.temperature)
    thoughtful = replace(
        survey.build(), thinking=thinking, chat_template_kwargs=settings.chat_template_kwargs
    )
    continued = [continue_thought(thoughtful, thought) for thought in _THOUGHTS]
    try:
        problem = await _compare_prompts(survey, thoughtful, continued)
    except (Rejected, BrokenReply) as error:
        problem = f"the chat template refuses to continue a thought: {error}"
    if problem:
        return [fail(name, problem)]
    reply = await survey.send(continued[0])
    if isinstance(reply, str):
        remedy = "let the model reason on a server that continues one, such as vLLM"
        return [
            fail(
                name, f"the server refuses to continue a message of the assistant: {reply}", remedy
            )
        ]
    completion = read_completion(reply)
    if squeeze(completion.text) == PROBE_ANSWER:
        unknown = ServerCheck(
            name, None, "an answer continues a thought; whether the template keeps it is unknown"
        )
        return [unknown if problem is None else ServerCheck(name, True, "a thought is kept")]
    if PROBE_ANSWER in squeeze(completion.reasoning or ""):
        return [fail(name, "the answer after a thought is in the field of the reasoning", _PARSER)]
    return [fail(name, f"no schema is enforced after a thought: {completion.text[:80]!r}", _PARSER)]


async def _compare_prompts(
    survey: Survey, begun: Request, continued: Sequence[Request]
) -> str | None:
    """Return what the chat template does to a thought, "" if it keeps it.

    None if the server shows no prompts.

    Apart from white space, which templates strip, the prompt of the answer is the prompt of the
    thought with the thought after it: a template may write an empty thought before it, or put it in
    a channel of its own.
    """
    server, thinking = survey.server, begun.thinking
    assert thinking is not None
    prompt = await server.render(begun.messages, begun.chat_template_kwargs)
    if prompt is None:
        return None
    text, other = [
        await server.counter.render(each.messages, each.chat_template_kwargs) or ""
        for each in continued
    ]
    if text == other:
        return "the chat template drops the thought when an answer continues it"
    # Some templates open the thought themselves.
    start = squeeze(prompt).removesuffix(squeeze(thinking.opening))
    if squeeze(text) != start + squeeze(thinking.delimit(_THOUGHTS[0])):
        return f"after {prompt[-40:]!r} the model reasons, but the chat template continues a thought as {text[-80:]!r}"
    return ""


# Repeats of one request alone, and as many among others.
_REPEATS = 8
# Logarithm of a probability below which a token counts as forbidden; vLLM sends -9999 for those.
_MIN_LOGPROB = -100.0
# White space that no compact grammar allows; it may require one space after `,` and `:`, as
# Python's json writes it.
_FREE_WHITE_SPACE = re.compile(r"[\n\r\t]|\s\s|[\[{]\s|\s[:,\]}]")
_INSTRUCTIONS = (
    "Judge how relevant the passage is to the question, from 0 to 3, and which side it takes."
)
_PASSAGE = "Question: are heat pumps better than gas boilers?\nPassage: heat pumps are cheaper to run, boilers to buy."


def _build_request(
    survey: Survey, text: str, system: str = _INSTRUCTIONS, schema: Mapping[str, Any] | None = None
) -> Request:
    """Return a request for an answer of a schema, by default the first one of the survey."""
    schema = survey.schemas[0] if schema is None else schema
    top_logprobs = min(survey.top_logprobs, count_alternatives(schema))
    return survey.build((Message("system", system), Message("user", text)), schema, top_logprobs)


async def check_white_space(survey: Survey) -> list[ServerCheck]:
    """Check whether a schema allows white space between the tokens of an answer."""
    name, choice = (
        "white space",
        (await survey.server.exchange(_build_request(survey, _PASSAGE))).choices[0],
    )
    if _FREE_WHITE_SPACE.search(choice.message.content or ""):
        return [fail(name, "written between tokens")]
    if not survey.is_renormalised:
        return [
            replace(
                fail(name, "none in one answer; raw log-probabilities show no more"), is_ok=None
            )
        ]
    alternatives = (pair for token in choice.tokens for pair in token.alternatives)
    if any(
        logprob > _MIN_LOGPROB and _FREE_WHITE_SPACE.search(text) for text, logprob in alternatives
    ):
        return [fail(name, "allowed between tokens")]
    return [ServerCheck(name, True, "not allowed between tokens")]


async def check_prefix_cache(survey: Survey) -> list[ServerCheck]:
    """Check whether a second prompt reuses its common beginning with the first."""
    # New in each examination; longer than the blocks of a cache, and short enough for the context.
    name, words = "prefix cache", min(600, (survey.info.context or 2048) // 5)
    beginning = f"Session {uuid4().hex}. " + "word " * words
    for text in ("First passage.", "Second passage."):
        usage = (await survey.server.exchange(_build_request(survey, text, beginning))).usage
    if usage.cached_tokens is None:
        return [replace(fail(name, "not reported"), is_ok=None)]
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    return [ServerCheck(name, True, value) if usage.cached_tokens else fail(name, value)]


async def check_determinism(survey: Survey) -> list[ServerCheck]:
    """Check whether answers to a request that is repeated alone and among others differ."""
    name, server, request = "determinism", survey.server, _build_request(survey, _PASSAGE)
    answers = [await server.complete(request) for _ in range(_REPEATS)]
    others = [
        _build_request(survey, f"{_PASSAGE} " * (1 + number % 3) + str(number))
        for number in range(_REPEATS)
    ]
    sent = [each for other in others for each in (request, other)]
    answers += (await asyncio.gather(*map(server.complete, sent)))[::2]
    flips = sum(answer.text != answers[0].text for answer in answers)
    value = f"{flips} of {len(answers)} repeats differ"
    return [fail(name, value) if flips else ServerCheck(name, True, value)]


Probes = Mapping[str, Callable[[Survey], Awaitable[list[ServerCheck]]]]
# By the name of the check, in the order in which they are sent: those of each run, of `doctor`, of
# `--thorough`.
RUN_PROBES: Probes = {
    "schema": check_schema,
    "tokens": check_tokens,
    "system message": check_system_message,
    "label tokens": check_labels,
    "open thought": check_open_thought,
    "thinking": check_thinking,
}
DOCTOR_PROBES: Probes = {
    **RUN_PROBES,
    "white space": check_white_space,
    "prefix cache": check_prefix_cache,
}
THOROUGH_PROBES: Probes = {**DOCTOR_PROBES, "determinism": check_determinism}


async def connect(survey: Survey) -> EngineInfo:
    """Get model and context from a server.

    Raise EngineError if it lacks something that a run needs.
    """
    await examine(survey)
    server = survey.server
    for check in survey.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
        if check.is_ok is False or (
            check.name == "label tokens" and not check.is_ok and survey.top_logprobs
        ):
            survey.warn(f"{server.base_url}: {check.name}: {check}")
    return survey.info


async def examine(survey: Survey, probes: Probes = RUN_PROBES) -> None:
    """Find out what a server can do; the survey has the checks.

    Probes that need the schema or instructions are left out if the server lacks these. Probes
    beyond those of a run need schemas of answers with labels alone. EngineError is raised if the
    server is unreachable or serves other models.
    """
    server = survey.server
    try:
        survey.info, context = await identify(server, survey.engine, "engine")
        server.choose(survey.info.model)
        if waiting := await server.count_waiting():
            survey.warn(f"{server.base_url}: the server is busy: {waiting:,} requests wait")
        survey.checks = [
            ServerCheck("server", True, survey.info.engine),
            ServerCheck("model", True, survey.info.model),
            context,
        ]
        for name, probe in probes.items():
            is_possible = survey.probe is not None and not survey.is_blocked("system message")
            if is_possible or name in ("schema", "tokens"):
                try:
                    survey.checks += await probe(survey)
                except (Transient, Rejected) as error:
                    if name in RUN_PROBES:
                        raise
                    survey.checks.append(ServerCheck(name, None, f"could not be checked: {error}"))
            survey.step()
        overhead = 0
        if not survey.is_blocked():
            chat = place_system_message(EMPTY_CHAT, survey.sampling.system_message)
            overhead = await server.counter.count_tokens(chat)
    except (Transient, Rejected) as error:
        raise describe_failure(server, error, is_known=bool(survey.checks)) from error
    fingerprint = survey.probe and survey.probe.system_fingerprint
    serving = survey.info.serving | ({"fingerprint": fingerprint} if fingerprint else {})
    survey.info = survey.info.model_copy(update={"overhead": overhead, "serving": serving})
