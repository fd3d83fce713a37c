"""Conformance card of a server: the start-up check and further checks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import orjson

from touche_llm.data.records import Reading
from touche_llm.llm.answers import Layout, count_alternatives, list_fields
from touche_llm.llm.chat import ChatReply, ChatServer, read_completion
from touche_llm.llm.checks import REMEDIES, SYSTEM_MESSAGE, ServerCheck
from touche_llm.llm.engine import Completion, Rejected, Transient
from touche_llm.llm.logprobs import read_label
from touche_llm.llm.request import DELIMITERS, Message, Request, Sampling
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.startup import SURVEY_STEPS, check_thoughts, is_renormalised, survey

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


@dataclass(frozen=True, slots=True)
class _Examination:
    """Server under examination; `schema` is that of the answers."""

    server: ChatServer
    kind: str
    context: int
    schema: Mapping[str, Any]
    top_logprobs: int
    is_renormalised: bool

    def build(self, text: str, system: str = _SYSTEM) -> Request:
        sampling = Sampling(top_logprobs=min(self.top_logprobs, count_alternatives(self.schema)))
        return self.server.build_check((Message("system", system), Message("user", text)), self.schema, sampling)

    def remedy(self, name: str) -> str:
        return REMEDIES.get((name, self.kind), "")


async def examine(
    server: ChatServer,
    engine: EngineConfig,
    sampling: SamplingConfig,
    schemas: Sequence[Mapping[str, Any]],
    warn: Callable[[str], None] = lambda _: None,
    step: Callable[[], None] = lambda: None,
    *,
    is_thorough: bool = False,
) -> list[ServerCheck]:
    """Examine a server with about fifteen short requests, and with sixty more if `is_thorough`.

    Args:
        server: The server.
        engine: Model, revision, context and tokenizer.
        sampling: Sampling.
        schemas: Schemas of JSON answers with labels alone, as a run requests; the first is also requested here.
        warn: Receives whether others use the server.
        step: Called after each of the steps that `count_steps` counts.
        is_thorough: Whether to repeat a request, to see if its answers differ.

    Returns:
        The checks; only those of the start-up check if the server does not enforce schemas or takes no instructions.

    Raises:
        EngineError: The server is unreachable, serves another model, or answers with several models.
    """
    found = await survey(server, engine, sampling, schemas, warn, step)
    known = {check.name: check for check in found.checks}
    if not known["schema"].is_ok or (SYSTEM_MESSAGE in known and known[SYSTEM_MESSAGE].is_blocking):
        return found.checks
    top_logprobs = 0 if "logprobs" in known and known["logprobs"].is_blocking else sampling.top_logprobs
    has_mask = found.probe is not None and top_logprobs > 0 and is_renormalised(found.probe)
    context = found.info.context or _SHORT_CONTEXT
    examination = _Examination(server, found.kind, context, schemas[0], top_logprobs, has_mask)
    more: Mapping[str, Callable[[_Examination], Awaitable[ServerCheck]]] = {
        "white space": _check_white_space,
        "prefix cache": _check_prefix_cache,
        "thinking": lambda _: _check_delimiters(server, sampling),
    }
    checks = list(found.checks)
    for name, check in more.items():
        if name not in known:
            checks.append(await _run(name, check, examination))
        step()
    if is_thorough:
        checks.append(await _run("determinism", partial(_check_determinism, step=step), examination))
    return checks


def count_steps(*, is_thorough: bool) -> int:
    """Return the number of steps of an examination that nothing blocks."""
    return SURVEY_STEPS + 3 + (3 * _REPEATS if is_thorough else 0)


async def _check_delimiters(server: ChatServer, sampling: SamplingConfig) -> ServerCheck:
    """Return the check of reasoning with the delimiters that pass it: those of the configuration, and the presets.

    A template that writes messages as they are passes with all; which ones the model knows is not checked.
    """
    found: dict[str, ServerCheck] = {}
    for opening, closing in dict.fromkeys([sampling.thinking.delimiters, *DELIMITERS.values()]):
        thinking = sampling.thinking.model_copy(update={"delimiters": (opening, closing)})
        check = await check_thoughts(server, sampling.model_copy(update={"thinking": thinking}))
        found[closing.strip()] = check
    passed = [closing for closing, check in found.items() if check.is_ok]
    if passed:
        return replace(found[passed[0]], value=f"{found[passed[0]].value}, ended by {' or '.join(passed)}")
    # A run without reasoning is possible.
    return replace(next(iter(found.values())), is_blocking=False)


async def _run(
    name: str, check: Callable[[_Examination], Awaitable[ServerCheck]], examination: _Examination
) -> ServerCheck:
    try:
        return await check(examination)
    except (Transient, Rejected) as error:
        return ServerCheck(name, None, f"could not be checked: {error}")


async def _check_white_space(examination: _Examination) -> ServerCheck:
    name, remedy = "white space", examination.remedy("white space")
    cost = "a weak model can write it until its answer is cut off"
    reply = await examination.server.exchange(examination.build(_PASSAGE))
    completion = read_completion(reply)
    if completion.finish_reason == "length":
        value = f"an answer was cut off after {completion.completion_tokens} tokens"
        return ServerCheck(name, False, value, cost, remedy)
    values = _parse(completion)
    # A compact grammar may require one space after `,`, as Python's json writes it.
    if completion.text not in (orjson.dumps(values).decode(), json.dumps(values)):
        return ServerCheck(name, False, "written between tokens", cost, remedy)
    if not examination.is_renormalised:
        return ServerCheck(name, None, "none in one answer; raw log-probabilities show no more", cost, remedy)
    if any(_FREE_WHITE_SPACE.search(text) for text in _list_possible_tokens(reply)):
        return ServerCheck(name, False, "allowed between tokens", cost, remedy)
    return ServerCheck(name, True, "not allowed between tokens")


def _list_possible_tokens(reply: ChatReply) -> list[str]:
    """Return the texts of the tokens that were possible somewhere in an answer."""
    return [text for token in reply.choices[0].tokens for text, logprob in token.alternatives if logprob > _MIN_LOGPROB]


async def _check_prefix_cache(examination: _Examination) -> ServerCheck:
    name, remedy = "prefix cache", examination.remedy("prefix cache")
    # New in each examination; longer than the blocks of a cache, and short enough for the context.
    words = min(600, examination.context // 5)
    beginning = f"Session {uuid4().hex}. " + "word " * words
    for text in ("First passage.", "Second passage."):
        usage = (await examination.server.exchange(examination.build(text, system=beginning))).usage
    if usage.cached_tokens is None:
        return ServerCheck(name, None, "not reported", "its use cannot be seen in a run's metadata", remedy)
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    if not usage.cached_tokens:
        return ServerCheck(name, False, value, "instructions and topic are computed for each document", remedy)
    return ServerCheck(name, True, value)


async def _check_determinism(examination: _Examination, step: Callable[[], None]) -> ServerCheck:
    async def send(sent: Request) -> Completion:
        completion = await examination.server.complete(sent)
        step()
        return completion

    request = examination.build(_PASSAGE)
    answers = [await send(request) for _ in range(_REPEATS)]
    others = [examination.build(f"{_PASSAGE} " * (1 + number % 3) + str(number)) for number in range(_REPEATS)]
    sent = [each for other in others for each in (request, other)]
    answers += (await asyncio.gather(*map(send, sent)))[::2]
    first, *rest = [_read_fields(answer, examination.schema) for answer in answers]
    flips = sum(any(a.answered != b.answered for a, b in zip(first, other, strict=True)) for other in rest)
    difference = max(
        abs(share - b.shares.get(label, 0.0))
        for other in rest
        for a, b in zip(first, other, strict=True)
        for label, share in a.shares.items()
    )
    value = f"{flips} of {len(answers)} repeats differ, probabilities by up to {difference:.2g}"
    if flips:
        cost = "without the answer cache a run is not repeatable"
        return ServerCheck("determinism", False, value, cost, examination.remedy("determinism"))
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
