"""Conformance card of a server: the start-up check and further checks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import orjson

from touche_llm.data.records import Reading
from touche_llm.errors import EngineError
from touche_llm.llm.answers import Layout, count_alternatives, list_fields
from touche_llm.llm.chat import ChatReply, read_completion
from touche_llm.llm.checks import PECULIARITIES, SYSTEM_MESSAGE, ServerCheck, Survey
from touche_llm.llm.engine import Completion, Rejected, Transient
from touche_llm.llm.logprobs import read_label
from touche_llm.llm.probes import check_thinking
from touche_llm.llm.request import DELIMITERS, Message, Request, Sampling
from touche_llm.llm.startup import PROBES, check_start_up

# Peculiarities that are looked for on request, or named only if a server has them.
_OPTIONAL = {"determinism", "reasoning"}
# Times that one request is sent alone, and again among others.
_REPEATS = 20
# Tokens for which the requests are made if the context is unknown.
_SHORT_CONTEXT = 2048
# Logarithm of a probability below which a token counts as forbidden; vLLM sends -9999 for those.
_MIN_LOGPROB = -100.0
# White space that no compact grammar allows.
_FREE_WHITE_SPACE = re.compile(r"[\n\r\t]|\s\s")
_SYSTEM = "Judge how relevant the passage is to the question, from 0 to 3, and which side it takes."
_PASSAGE = "Question: are heat pumps better than gas boilers?\nPassage: heat pumps are cheaper to run, boilers to buy."


async def examine(survey: Survey, *, is_thorough: bool = False) -> list[ServerCheck]:
    """Examine a server with about fifteen short requests, and with sixty more if `is_thorough`.

    Args:
        survey: The server; its schemas are of JSON answers with labels alone, the first of which is requested here.
        is_thorough: Whether to repeat a request, to see if its answers differ.

    Returns:
        The checks; only those of the start-up check if the server does not enforce schemas or takes no instructions.

    Raises:
        EngineError: The server is unreachable or busy, serves another model, or answers with several models. The survey
            has the checks so far, and says of the others that nothing is known.
    """
    try:
        await check_start_up(survey)
        if any(check.is_blocking for check in survey.checks if check.name in ("schema", SYSTEM_MESSAGE)):
            return survey.checks
        for name, probe in (_PROBES | _THOROUGH if is_thorough else _PROBES).items():
            # Start-up has examined the reasoning of a run that reasons.
            if all(check.name != name for check in survey.checks):
                try:
                    survey.checks.append(await probe(survey))
                except (Transient, Rejected) as error:
                    survey.checks.append(ServerCheck(name, None, f"could not be checked: {error}"))
            survey.step()
    except EngineError:
        known = {check.name for check in survey.checks} | _OPTIONAL
        unknown = [name for name in PECULIARITIES if name not in known]
        survey.checks += [ServerCheck(name, None, "not known, since the examination ended") for name in unknown]
        raise
    return survey.checks


def count_steps(*, is_thorough: bool) -> int:
    """Return the number of steps of an examination that nothing blocks."""
    return len(PROBES) + len(_PROBES) + (3 * _REPEATS + len(_THOROUGH) if is_thorough else 0)


def _build(survey: Survey, text: str, system: str = _SYSTEM) -> Request:
    schema = survey.schemas[0]
    sampling = Sampling(top_logprobs=min(survey.top_logprobs, count_alternatives(schema)))
    return survey.server.build_check((Message("system", system), Message("user", text)), schema, sampling)


async def _check_delimiters(survey: Survey) -> ServerCheck:
    """Return the check of reasoning with the delimiters that pass it: those of the configuration, and the presets.

    A template that writes messages as they are passes with all; which ones the model knows is not checked.
    """
    settings, found = survey.sampling.thinking, dict[str, ServerCheck]()
    for delimiters in dict.fromkeys([settings.delimiters, *DELIMITERS.values()]):
        thinking = settings.model_copy(update={"delimiters": delimiters})
        found[delimiters[1].strip()] = await check_thinking(survey, thinking)
    passed = [closing for closing, check in found.items() if check.is_ok]
    if passed:
        return replace(found[passed[0]], value=f"{found[passed[0]].value}, ended by {' or '.join(passed)}")
    # A run without reasoning is possible.
    return replace(next(iter(found.values())), is_blocking=False)


async def _check_white_space(survey: Survey) -> ServerCheck:
    name = "white space"
    reply = await survey.server.exchange(_build(survey, _PASSAGE))
    completion = read_completion(reply)
    if completion.finish_reason == "length":
        return survey.fail(name, f"an answer was cut off after {completion.completion_tokens} tokens")
    values = _parse(completion)
    # A compact grammar may require one space after `,`, as Python's json writes it.
    if completion.text not in (orjson.dumps(values).decode(), json.dumps(values)):
        return survey.fail(name, "written between tokens")
    if not survey.is_renormalised:
        return replace(survey.fail(name, "none in one answer; raw log-probabilities show no more"), is_ok=None)
    if any(_FREE_WHITE_SPACE.search(text) for text in _list_possible_tokens(reply)):
        return survey.fail(name, "allowed between tokens")
    return ServerCheck(name, True, "not allowed between tokens")


def _list_possible_tokens(reply: ChatReply) -> list[str]:
    """Return the texts of the tokens that were possible somewhere in an answer."""
    return [text for token in reply.choices[0].tokens for text, logprob in token.alternatives if logprob > _MIN_LOGPROB]


async def _check_prefix_cache(survey: Survey) -> ServerCheck:
    # New in each examination; longer than the blocks of a cache, and short enough for the context.
    context = (survey.info.context if survey.info else 0) or _SHORT_CONTEXT
    words = min(600, context // 5)
    beginning = f"Session {uuid4().hex}. " + "word " * words
    for text in ("First passage.", "Second passage."):
        usage = (await survey.server.exchange(_build(survey, text, system=beginning))).usage
    if usage.cached_tokens is None:
        unseen = survey.fail("prefix cache", "not reported")
        return replace(unseen, is_ok=None, cost="its use cannot be seen in a run's metadata")
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    if not usage.cached_tokens:
        return survey.fail("prefix cache", value)
    return ServerCheck("prefix cache", True, value)


async def _check_determinism(survey: Survey) -> ServerCheck:
    async def send(sent: Request) -> Completion:
        completion = await survey.server.complete(sent)
        survey.step()
        return completion

    request = _build(survey, _PASSAGE)
    answers = [await send(request) for _ in range(_REPEATS)]
    others = [_build(survey, f"{_PASSAGE} " * (1 + number % 3) + str(number)) for number in range(_REPEATS)]
    sent = [each for other in others for each in (request, other)]
    answers += (await asyncio.gather(*map(send, sent)))[::2]
    first, *rest = [_read_fields(answer, survey.schemas[0]) for answer in answers]
    flips = sum(any(a.answered != b.answered for a, b in zip(first, other, strict=True)) for other in rest)
    difference = max(
        abs(share - b.shares.get(label, 0.0))
        for other in rest
        for a, b in zip(first, other, strict=True)
        for label, share in a.shares.items()
    )
    value = f"{flips} of {len(answers)} repeats differ, probabilities by up to {difference:.2g}"
    if flips:
        return survey.fail("determinism", value)
    return ServerCheck("determinism", True, value)


def _read_fields(completion: Completion, schema: Mapping[str, Any]) -> list[Reading]:
    layout, values = Layout.of_schema(schema), _parse(completion)
    if len(values) != len(layout.fields):
        raise Transient("server_error", f"the answer has {len(values)} values; expected {len(layout.fields)}")
    answered = values if isinstance(values, dict) else dict(zip(layout.fields, values, strict=True))
    return [
        read_label(completion.text, completion.tokens, layout, name, field["enum"], answered[name])
        for name, field in list_fields(schema).items()
    ]


def _parse(completion: Completion) -> Any:
    """Return the JSON of an answer; raise Transient if it is none."""
    try:
        return orjson.loads(completion.text)
    except ValueError as error:
        raise Transient("server_error", f"the answer is {' '.join(completion.text.split())[:40]!r}") from error


_PROBES = {
    "white space": _check_white_space,
    "prefix cache": _check_prefix_cache,
    "thinking": _check_delimiters,
}
_THOROUGH = {"determinism": _check_determinism}
