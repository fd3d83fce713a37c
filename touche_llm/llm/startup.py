"""Start-up check of a server: its capabilities, and how to use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import orjson

from touche_llm.data.records import Count
from touche_llm.errors import EngineError
from touche_llm.llm.answers import AnswerModel, Layout, Unusable, build_schema
from touche_llm.llm.chat import ChatReply, ChatServer, Delivery, read_completion
from touche_llm.llm.checks import (
    LABEL_TOKENS,
    REMEDIES,
    ServerCheck,
    block,
    check_labels,
    check_open_thought,
    check_system_message,
    check_thinking,
    has_labels,
)
from touche_llm.llm.engine import BrokenReply, Completion, EngineInfo, MissingLogprobs, Rejected, Transient
from touche_llm.llm.http import API_KEY_VARIABLE, HttpClient
from touche_llm.llm.logprobs import LOGPROB_ROUNDING, check_logprobs
from touche_llm.llm.request import EMPTY_CHAT, Message, Request, Sampling, place_system_message
from touche_llm.llm.server_info import LlamaCppTokenCounter, LocalTokenCounter, ServedModel, read_serving
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.truncation import ChatTokenizer

# Steps of a start-up check that nothing blocks.
SURVEY_STEPS = 7
_HINT = "is the server running there? Set its address with `engine.base_url`"
# Servers by the owner that they give their models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "library": "ollama"}
# Where servers report their versions.
_VERSION_PATHS = {
    "vllm": "/version",
    "llama.cpp": "/props",
    "sglang": "/get_server_info",
    "ollama": "/api/version",
}
_PROBE_ANSWER = '{"word":"quokka-7351"}'
_PROBE_MESSAGES = (Message("user", "Say hello."),)
_PLAIN_GRADES = (
    "without them, grades are whole numbers, ties keep the order of the first stage, and stances are certain"
)
# Max difference between the prompt tokens that are counted and those that the server reports: some templates add a
# date, some servers a token at the beginning.
_MAX_COUNT_ERROR = 8


class _Probe(AnswerModel):
    """Answer that no model gives unless the schema is enforced."""

    word: Literal["quokka-7351"]


_PROBE_SCHEMA = build_schema(_Probe)
_PROBE_LAYOUT = Layout.of_schema(_PROBE_SCHEMA)


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


class _Generation(msgspec.Struct):
    n_ctx: Count | None = None


class _Version(msgspec.Struct):
    version: str = ""
    # Those of llama.cpp, whose context is that of one of its slots.
    build_info: str = ""
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the start-up check found.

    Attributes:
        kind: The program that serves, empty if unknown.
        checks: Results in the order of the checks; after a blocking one, checks that depend on it are left out.
        info: Description of the engine; meaningful if nothing blocks.
        probe: Reply in which the schema was enforced, if there was one.
    """

    kind: str
    checks: list[ServerCheck]
    info: EngineInfo
    probe: ChatReply | None


async def connect(
    server: ChatServer,
    engine: EngineConfig,
    sampling: SamplingConfig,
    schemas: Sequence[Mapping[str, Any]] = (),
    warn: Callable[[str], None] = lambda message: None,
    step: Callable[[], None] = lambda: None,
) -> EngineInfo:
    """Get model and context from a server, and verify that it can do what a run needs.

    Args:
        server: The server; afterwards it sends requests in the way that works.
        engine: Model, revision, context and tokenizer of the run.
        sampling: Sampling of the run.
        schemas: Schemas of the answers that the run requests, as far as they are known.
        warn: Receives what is missing, and what is wrong with the tokens of labels, if a run is possible; and a queue.
        step: Called after each of `SURVEY_STEPS`.

    Raises:
        EngineError: The server is unreachable, serves another model, or lacks something that the run needs.
    """
    found = await survey(server, engine, sampling, schemas, warn, step)
    for check in found.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
        if check.is_ok is False or (check.name == LABEL_TOKENS and not check.is_ok and sampling.top_logprobs):
            warn(f"{server.base_url}: {check.name}: {check}")
    server.is_monitored = True
    return found.info


async def survey(
    server: ChatServer,
    engine: EngineConfig,
    sampling: SamplingConfig,
    schemas: Sequence[Mapping[str, Any]] = (),
    warn: Callable[[str], None] = lambda _: None,
    step: Callable[[], None] = lambda: None,
) -> Survey:
    """Find out what a server can do; see `connect`. Only a queue is passed to `warn`.

    Raises:
        EngineError: The server is unreachable or serves another model.
    """
    try:
        return await _survey(server, engine, sampling, schemas, warn, step)
    except Transient as error:
        # A server that is busy runs there.
        hint = "" if error.is_busy else f"; {_HINT}"
        raise EngineError(f"{server.base_url}: {error.reason}{hint}") from error
    except Rejected as error:
        hint = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else _HINT
        raise EngineError(f"{server.base_url}: the server refused the start-up check: {error}; {hint}") from error


async def _survey(
    server: ChatServer,
    engine: EngineConfig,
    sampling: SamplingConfig,
    schemas: Sequence[Mapping[str, Any]],
    warn: Callable[[str], None],
    step: Callable[[], None],
) -> Survey:
    model = await choose_model(server, engine.model, "engine")
    server.choose(model.id)
    kind, title, slot_context = await identify(server, model)
    queue = await server.read_queue() if kind == "vllm" else None
    if queue is not None and queue.waiting:
        warn(f"{server.base_url}: the server is busy: {queue}; if requests time out, raise `engine.request_timeout`")
    step()
    served = model.max_model_len or slot_context
    checks = [
        ServerCheck("server", True, title),
        ServerCheck("model", True, model.id),
        check_context(model.id, served, engine.context, "engine"),
    ]
    server.system_message = sampling.system_message
    counting = await _find_counter(server, engine)
    step()
    delivery, probe = await _find_delivery(server, sampling, kind)
    step()
    if probe is not None:
        if not counting.is_blocking:
            counting = await _compare_counts(server, probe.usage.prompt_tokens, counting)
        delivery += await _check_answers(server, kind, sampling, schemas, probe, delivery, step)
    needed = [*checks, counting, *delivery]
    overhead = 0
    if not any(check.is_blocking for check in needed):
        overhead = await server.count_tokens(place_system_message(EMPTY_CHAT, sampling.system_message))
    info = EngineInfo(
        model=model.id,
        revision=engine.revision,
        context=engine.context or served or 0,
        overhead=overhead,
        engine=title,
        serving=await read_serving(server, kind, model, None if probe is None else probe.system_fingerprint),
    )
    step()
    return Survey(kind, needed, info, probe)


async def _check_answers(
    server: ChatServer,
    kind: str,
    sampling: SamplingConfig,
    schemas: Sequence[Mapping[str, Any]],
    probe: ChatReply,
    delivery: Sequence[ServerCheck],
    step: Callable[[], None],
) -> list[ServerCheck]:
    """Return the checks of a server that enforced the schema of `probe`."""
    found = [await check_system_message(server, kind, _build_probe(server, 0), sampling)]
    if found[0].is_blocking:
        # Others send one.
        return found
    step()
    if with_labels := [schema for schema in schemas if has_labels(schema)]:
        top_logprobs = 0 if any(check.is_blocking for check in delivery) else sampling.top_logprobs
        has_mask = top_logprobs > 0 and is_renormalised(probe)
        found.append(await check_labels(server, with_labels, top_logprobs, is_renormalised=has_mask))
    step()
    if not sampling.thinking.judge:
        found.append(await check_open_thought(server, sampling))
    if sampling.thinking.budgets:
        found.append(await check_thoughts(server, sampling))
    step()
    return found


async def choose_model(server: HttpClient, model: str | None, section: str) -> ServedModel:
    """Return the served model of this name, or the only one; raise EngineError, which names the setting."""
    served = (await server.get("/v1/models", _ModelList)).data
    by_name = {choice.id: choice for choice in served}
    if model is None and len(served) == 1:
        model = served[0].id
    if model in by_name:
        found = by_name[model]
        if found.max_model_len is None and found.parent in by_name:
            # vLLM does not report the context of an adapter, which is that of the adapted model.
            return msgspec.structs.replace(found, max_model_len=by_name[found.parent].max_model_len)
        return found
    names = ", ".join(by_name) or "no model"
    wanted = "" if model is None else f", not {model!r}"
    raise EngineError(f"{server.base_url}: serves {names}{wanted}; choose one with `{section}.model`")


async def identify(server: HttpClient, model: ServedModel) -> tuple[str, str, int | None]:
    """Return the program that serves, empty if unknown, its name with the version, and the context of a slot."""
    owner = _OWNERS.get(model.owned_by or "", "")
    for kind in [owner] if owner else _VERSION_PATHS:
        try:
            version = await server.get(_VERSION_PATHS[kind], _Version)
        except (Rejected, BrokenReply):
            continue
        if number := version.version or version.build_info:
            return kind, f"{kind} {number}", version.default_generation_settings.n_ctx
    return owner, owner or "unknown server", None


def check_context(model: str, served: int | None, wanted: int | None, section: str) -> ServerCheck:
    """Return a check that blocks if no context is known, or the configured one is longer than the served one."""
    if served is None and wanted is None:
        return block("context", f"does not report the context length of {model}", f"give it (`{section}.context`)")
    if served is not None and wanted is not None and wanted > served:
        return block(
            "context",
            f"{model} is served with a context of {served} tokens, {wanted} are configured",
            f"serve it with a longer context or give a shorter one (`{section}.context`)",
        )
    origin = "as the server reports" if wanted is None else "as configured"
    return ServerCheck("context", True, f"{wanted or served} tokens, {origin}")


async def _find_counter(server: ChatServer, engine: EngineConfig) -> ServerCheck:
    """Make the server use the first counter of tokens that works; some templates refuse system messages."""
    if engine.tokenizer is not None:
        server.counter = LocalTokenCounter(ChatTokenizer(engine.tokenizer, server.chat_template_kwargs))
    others = [] if engine.tokenizer else [LlamaCppTokenCounter(server, server.chat_template_kwargs)]
    problem = ""
    for counter in (server.counter, *others):
        server.counter = counter
        try:
            await counter.count_tokens(_PROBE_MESSAGES)
        except (Rejected, BrokenReply) as error:
            if isinstance(error, Rejected) and error.status in (401, 403):
                raise
            problem = problem or str(error)
            continue
        return ServerCheck("tokens", True, f"counted by {counter.name}")
    value = f"does not count the tokens of messages ({problem})"
    return block("tokens", value, "give a folder with the model's tokenizer (`engine.tokenizer`)")


async def _compare_counts(server: ChatServer, reported: int, counting: ServerCheck) -> ServerCheck:
    """Return a check that blocks if the server reports more prompt tokens than are counted."""
    counted = await server.count_tokens(_PROBE_MESSAGES)
    if reported <= counted + _MAX_COUNT_ERROR:
        return counting
    value = f"{reported} prompt tokens are {counted} by {server.counter.name}, so documents would not fit"
    return block("tokens", value, "give the tokenizer of this very model (`engine.tokenizer`)")


async def _find_delivery(
    server: ChatServer, sampling: SamplingConfig, kind: str
) -> tuple[list[ServerCheck], ChatReply | None]:
    """Make the server use the first way of constraining answers that works.

    Returns:
        The checks of schemas and log-probabilities, and the reply in which the schema was enforced.
    """
    problems: list[str] = []
    cut_off: list[ServerCheck] = []
    for delivery in Delivery:
        server.delivery = delivery
        try:
            reply, refusal = await _send_probe(server, sampling.top_logprobs)
        except Rejected as error:
            if error.is_fatal:
                raise
            problems.append(f"the server refused the request: {error}")
            continue
        completion = read_completion(reply)
        if _is_enforced(completion.text):
            checks = [
                ServerCheck("schema", True, f"enforced with {delivery}"),
                _check_logprobs(server.model, reply, sampling, refusal),
            ]
            if completion.reasoning:
                cost, remedy = "each answer takes many more tokens", "switch it off (`sampling.chat_template_kwargs`)"
                checks.append(ServerCheck("reasoning", False, "the model thinks before it answers", cost, remedy))
            return checks, reply
        cut_off = cut_off or _check_cut_off(server.model, completion, delivery, kind)
        hint = " (its reasoning was not empty: switch thinking off)" if completion.reasoning else ""
        problems.append(f"the model answered {completion.text[:80]!r}{hint}")
    if cut_off:
        server.delivery = Delivery.STRUCTURED_OUTPUTS
        return cut_off, None
    value = f"{server.model} does not enforce JSON schemas: restricted to {_PROBE_ANSWER}, "
    # While thinking is off, a reasoning parser switches schemas off: https://github.com/vllm-project/vllm/issues/39130
    remedy = (
        "use a server that enforces `structured_outputs` or `response_format`, such as vLLM from 0.11 on without a "
        "reasoning parser (--reasoning-parser)"
    )
    return [block("schema", value + "; ".join(dict.fromkeys(problems)), remedy)], None


def _check_cut_off(model: str, completion: Completion, delivery: Delivery, kind: str) -> list[ServerCheck]:
    """Return the checks for an answer that fits the schema apart from endless white space; none for other answers."""
    written = "".join(completion.text.split())
    is_beginning = _PROBE_ANSWER.startswith(written) and len(written) >= len('{"word"')
    if completion.finish_reason != "length" or not is_beginning:
        return []
    value = f"{model} fills its answer with white space until it is cut off"
    return [
        ServerCheck("schema", True, f"enforced with {delivery}"),
        ServerCheck("logprobs", None, "not seen, since the answer was cut off"),
        ServerCheck(LABEL_TOKENS, None, "not read, since the answer was cut off"),
        block("white space", value, REMEDIES.get(("white space", kind), "switch white space off in the server")),
    ]


async def check_thoughts(server: ChatServer, sampling: SamplingConfig) -> ServerCheck:
    """Check the reasoning of a server that enforces schemas; raise Transient or Rejected if it does not reply."""
    return await check_thinking(server, _build_probe(server, 0), _PROBE_ANSWER, sampling.thinking)


async def _send_probe(server: ChatServer, top_logprobs: int) -> tuple[ChatReply, str]:
    """Return the reply to a request for one word, and why log-probabilities were refused, if they were."""
    request = _build_probe(server, top_logprobs)
    try:
        return await server.exchange(request), ""
    except Rejected as error:
        if error.is_fatal or not top_logprobs:
            raise
        plain = replace(request, sampling=replace(request.sampling, top_logprobs=0))
        return await server.exchange(plain), str(error)


def _build_probe(server: ChatServer, top_logprobs: int) -> Request:
    return server.build_check(_PROBE_MESSAGES, _PROBE_SCHEMA, Sampling(top_logprobs=top_logprobs))


def _is_enforced(text: str) -> bool:
    try:
        return bool(orjson.loads(text) == orjson.loads(_PROBE_ANSWER))
    except orjson.JSONDecodeError:
        return False


def _check_logprobs(model: str, reply: ChatReply, sampling: SamplingConfig, refusal: str) -> ServerCheck:
    if not sampling.logprobs:
        return ServerCheck("logprobs", None, "not requested", _PLAIN_GRADES)
    remedy = "use a server that sends them, or request plain grades with `sampling.logprobs: false`"
    if refusal:
        return block("logprobs", f"{model} refuses log-probabilities ({refusal})", remedy, _PLAIN_GRADES)
    try:
        completion = read_completion(reply, _PROBE_LAYOUT)
    except MissingLogprobs:
        return block("logprobs", f"{model} sends no log-probabilities", remedy, _PLAIN_GRADES)
    if not any(token.top for token in completion.tokens):
        return block("logprobs", f"{model} sends log-probabilities that do not spell its answer", remedy, _PLAIN_GRADES)
    try:
        check_logprobs(completion.text, completion.tokens)
    except Unusable as error:
        remedy = "serve it with --logprobs-mode raw_logprobs, the default of vLLM, or set `sampling.logprobs: false`"
        return block("logprobs", f"{model} sends impossible log-probabilities: {error.reason}", remedy)
    return ServerCheck(
        "logprobs", True, f"for each token of an answer, {'renormalised' if is_renormalised(reply) else 'raw'}"
    )


def is_renormalised(probe: ChatReply) -> bool:
    """Return whether only tokens that the schema allows have a probability, by the reply with the one word allowed."""
    completion = read_completion(probe, _PROBE_LAYOUT)
    first, _ = _PROBE_LAYOUT.find_values(completion.text)["word"]
    inside = [token for token in completion.tokens if token.at > first] or completion.tokens
    for token in inside:
        rest = completion.text[token.at :]
        allowed = (logprob for text, logprob in token.top if rest.startswith(text) or text.startswith(rest))
        if sum(map(math.exp, allowed)) < 1.0 - LOGPROB_ROUNDING:
            return False
    return True
