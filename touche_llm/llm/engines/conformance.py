"""Conformance card of a server: the start-up check and further checks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import uuid4

import orjson
from pydantic import create_model

from touche_llm.data.records import Reading
from touche_llm.llm.answer_forms import AnswerForm, Layout
from touche_llm.llm.answers import AnswerModel, build_schema, count_alternatives
from touche_llm.llm.engines.base import Completion, Rejected, Transient
from touche_llm.llm.engines.chat_reply import ChatReply, read_completion
from touche_llm.llm.engines.server import ChatServer
from touche_llm.llm.engines.server_checks import REMEDIES, ServerCheck, block
from touche_llm.llm.engines.startup import check_thoughts, is_renormalised, survey
from touche_llm.llm.logprobs import Label, read_label
from touche_llm.llm.request import Message, Request, Sampling
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.thinking import DELIMITERS

# Times that one request is sent alone, and again among others.
_REPEATS = 20
# Tokens for which the requests are made if the context is unknown.
_SHORT_CONTEXT = 2048
_GRADES = (0, 1, 2, 3)
# Logarithm of a probability below which a token counts as forbidden; vLLM sends -9999 for those.
_MIN_LOGPROB = -100.0
# White space that no compact grammar allows.
_FREE_WHITE_SPACE = re.compile(r"[\n\r\t]|\s\s")
_SYSTEM = "Judge how relevant the passage is to the question, from 0 to 3, and which side it takes."
_PASSAGE = "Question: are heat pumps better than gas boilers?\nPassage: heat pumps are cheaper to run, boilers to buy."


@dataclass(frozen=True, slots=True)
class _Examination:
    """Server under examination; `labels` are those of a stance."""

    server: ChatServer
    kind: str
    context: int
    labels: Sequence[Label]
    top_logprobs: int
    is_renormalised: bool

    def build(self, text: str, system: str = _SYSTEM) -> Request:
        schema = _build_answer_schema(self.labels)
        messages = (*((Message("system", system),) if system else ()), Message("user", text))
        sampling = Sampling(top_logprobs=min(self.top_logprobs, count_alternatives(schema)))
        return self.server.build_check(messages, schema, sampling)

    def remedy(self, name: str) -> str:
        return REMEDIES.get((name, self.kind), "")


def _build_answer_schema(labels: Sequence[Label]) -> Mapping[str, Any]:
    """Return the schema of an answer in the form of the project's prompts."""
    fields: dict[str, Any] = {"relevance": (Literal[_GRADES], ...), "stance": (Literal[tuple(labels)], ...)}
    return build_schema(create_model("Examined", __base__=AnswerModel, **fields), AnswerForm.ARRAY)


async def examine(
    server: ChatServer, engine: EngineConfig, sampling: SamplingConfig, labels: Sequence[Label]
) -> list[ServerCheck]:
    """Examine a server with about seventy short requests; `labels` are those of a stance, as prompts write them.

    Returns:
        The checks; only those of the start-up check if the server does not enforce schemas.

    Raises:
        EngineError: The server is unreachable, serves another model, or answers with several models.
    """
    found = await survey(server, engine, sampling, [_build_answer_schema(labels)])
    known = {check.name: check for check in found.checks}
    if not known["schema"].is_ok:
        return found.checks
    top_logprobs = 0 if "logprobs" in known and known["logprobs"].is_blocking else sampling.top_logprobs
    has_mask = found.probe is not None and top_logprobs > 0 and is_renormalised(found.probe)
    context = found.info.context or _SHORT_CONTEXT
    examination = _Examination(server, found.kind, context, labels, top_logprobs, has_mask)
    more: Mapping[str, Callable[[_Examination], Awaitable[ServerCheck]]] = {
        "system message": _check_system_message,
        "white space": _check_white_space,
        "prefix cache": _check_prefix_cache,
        "determinism": _check_determinism,
        "thinking": lambda _: _check_delimiters(server, sampling),
    }
    return [*found.checks, *[await _run(name, check, examination) for name, check in more.items() if name not in known]]


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


async def _check_system_message(examination: _Examination) -> ServerCheck:
    name, remedy = "system message", examination.remedy("system message")
    cost = "prompts give their instructions in one"
    plain = await examination.server.exchange(examination.build(_PASSAGE, system=""))
    try:
        full = await examination.server.exchange(examination.build(_PASSAGE))
    except Rejected as error:
        return block(name, f"refused: {error}", remedy, cost)
    if not full.usage.prompt_tokens:
        return ServerCheck(name, None, "accepted; the server reports no prompt tokens", cost)
    added = full.usage.prompt_tokens - plain.usage.prompt_tokens
    if added < len(_SYSTEM.split()):
        return block(name, f"ignored by the chat template: it adds {added} tokens", remedy, cost)
    return ServerCheck(name, True, f"taken by the chat template: {added} tokens")


async def _check_white_space(examination: _Examination) -> ServerCheck:
    name, remedy = "white space", examination.remedy("white space")
    cost = "a weak model can write it until its answer is cut off"
    reply = await examination.server.exchange(examination.build(_PASSAGE))
    completion = read_completion(reply)
    if completion.finish_reason == "length":
        value = f"an answer was cut off after {completion.completion_tokens} tokens"
        return ServerCheck(name, False, value, cost, remedy)
    values = list(_parse(completion).values())
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


async def _check_determinism(examination: _Examination) -> ServerCheck:
    server, request = examination.server, examination.build(_PASSAGE)
    answers = [await server.complete(request) for _ in range(_REPEATS)]
    others = [examination.build(f"{_PASSAGE} " * (1 + number % 3) + str(number)) for number in range(_REPEATS)]
    sent = [each for other in others for each in (request, other)]
    answers += (await asyncio.gather(*map(server.complete, sent)))[::2]
    first, *rest = [_read_fields(answer, examination.labels) for answer in answers]
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


def _read_fields(completion: Completion, labels: Sequence[Label]) -> list[Reading]:
    answered = _parse(completion)
    fields: dict[str, Sequence[Label]] = {"relevance": _GRADES, "stance": labels}
    layout = Layout(AnswerForm.ARRAY, tuple(fields))
    return [
        read_label(completion.text, completion.tokens, layout, name, fields[name], answered[name]) for name in fields
    ]


def _parse(completion: Completion) -> dict[str, Any]:
    """Return the fields of an answer; raise Transient if it is not the JSON that was requested."""
    try:
        relevance, stance = orjson.loads(completion.text)
        return {"relevance": relevance, "stance": stance}
    except (ValueError, TypeError) as error:
        raise Transient("server_error", f"the answer is {' '.join(completion.text.split())[:40]!r}") from error
