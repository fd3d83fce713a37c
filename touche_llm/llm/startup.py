"""Start-up check of a server: its capabilities, and how to use them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import orjson

from touche_llm.data.records import Count
from touche_llm.errors import EngineError
from touche_llm.llm.answers import Unusable
from touche_llm.llm.chat import ChatReply, Delivery, read_completion
from touche_llm.llm.checks import (
    LABEL_TOKENS,
    PECULIARITIES,
    PROBE_ANSWER,
    PROBE_LAYOUT,
    PROBE_MESSAGES,
    Identity,
    ServerCheck,
    Survey,
    fail,
)
from touche_llm.llm.engine import BrokenReply, Completion, EngineInfo, MissingLogprobs, Rejected, ServedModel, Transient
from touche_llm.llm.http import API_KEY_VARIABLE, HttpClient
from touche_llm.llm.logprobs import check_logprobs
from touche_llm.llm.probes import check_labels, check_open_thought, check_system_message, check_thinking
from touche_llm.llm.request import EMPTY_CHAT, place_system_message
from touche_llm.llm.settings import EngineConfig, PoolingConfig
from touche_llm.llm.tokenizers import ChatTokenizer, LlamaCppTokenCounter

# Servers by the owner that they give their models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "library": "ollama"}
# Where servers report their versions.
_VERSION_PATHS = {
    "vllm": "/version",
    "llama.cpp": "/props",
    "sglang": "/get_server_info",
    "ollama": "/api/version",
}
# Max characters of a value.
_MAX_CHARS = 200
_METRIC = re.compile(r"^vllm:(cache_config_info|spec_decode_\w+)\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# Max difference between the prompt tokens that are counted and those that the server reports: some templates add a
# date, some servers a token at the beginning.
_MAX_COUNT_ERROR = 8


async def connect(survey: Survey) -> EngineInfo:
    """Get model and context from a server, and verify that it can do what a run needs.

    Raises:
        EngineError: The server is unreachable, serves another model, or lacks something that the run needs.
    """
    await check_start_up(survey)
    server = survey.server
    for check in survey.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
        if check.is_ok is False or (check.name == LABEL_TOKENS and not check.is_ok and survey.sampling.top_logprobs):
            survey.warn(f"{server.base_url}: {check.name}: {check}")
    server.is_monitored = True
    assert survey.info is not None
    return survey.info


async def check_start_up(survey: Survey) -> None:
    """Find out what a server can do; see `connect`. Only a queue is passed to `warn`.

    Raises:
        EngineError: The server is unreachable or serves another model.
    """
    try:
        for probe, is_possible in PROBES:
            if is_possible(survey):
                found = await probe(survey)
                # Only now: a probe can replace earlier checks.
                survey.checks += found
                survey.step()
    except (Transient, Rejected) as error:
        raise describe_failure(survey.server, error) from error


def describe_failure(server: HttpClient, error: Transient | Rejected, refused: str = "") -> EngineError:
    """Return the error of a start-up check that failed; `refused` says how to go on if the server refuses."""
    hint = f"is the server running there? Set its address with {server.address}"
    if isinstance(error, Transient):
        # A server that is busy runs there.
        return EngineError(f"{server.base_url}: {error.reason}" + ("" if error.is_busy else f"; {hint}"))
    remedy = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else refused or hint
    return EngineError(f"{server.base_url}: the server refused the start-up check: {error}; {remedy}")


async def _check_identity(survey: Survey) -> list[ServerCheck]:
    """Choose the model; the description of the engine is completed at the end, by `_describe`."""
    server, engine = survey.server, survey.engine
    identity = survey.identity = await identify(server, engine.model, "engine")
    server.choose(identity.model.id)
    waiting, queue = await server.read_queue() if identity.kind == "vllm" else (0, "")
    if waiting:
        survey.warn(f"{server.base_url}: the server is busy: {queue}")
    server.system_message = survey.sampling.system_message
    survey.info = identity.describe(engine)
    return [
        ServerCheck("server", True, identity.title),
        ServerCheck("model", True, identity.model.id),
        check_context(identity, engine.context, "engine"),
    ]


async def _describe(survey: Survey) -> list[ServerCheck]:
    """Complete the description of the engine."""
    assert survey.info is not None and survey.identity is not None
    server, overhead = survey.server, 0
    if not survey.is_blocked():
        overhead = await server.count_tokens(place_system_message(EMPTY_CHAT, survey.sampling.system_message))
    fingerprint = None if survey.probe is None else survey.probe.system_fingerprint
    serving = await read_serving(server, survey.identity, fingerprint)
    survey.info = survey.info.model_copy(update={"overhead": overhead, "serving": serving})
    return []


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


class _Generation(msgspec.Struct):
    n_ctx: Count | None = None


class _Version(msgspec.Struct):
    version: str = ""
    # Those of llama.cpp, whose context is that of one of its slots.
    build_info: str = ""
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


async def identify(server: HttpClient, model: str | None, section: str) -> Identity:
    """Return what a server says of itself and of the model of this name, or of its only one.

    Raises:
        EngineError: It does not serve the model, or several; the message names the setting.
        Transient, Rejected: It did not reply, or refuses to.
    """
    served = (await server.get("/v1/models", _ModelList)).data
    by_name = {choice.id: choice for choice in served}
    if model is None and len(served) == 1:
        model = served[0].id
    if model is None or model not in by_name:
        names = ", ".join(by_name) or "no model"
        wanted = "" if model is None else f", not {model!r}"
        raise EngineError(f"{server.base_url}: serves {names}{wanted}; choose one with `{section}.model`")
    found = by_name[model]
    # vLLM does not report the context of an adapter, which is that of the adapted model.
    parent = by_name.get(found.parent or "", found)
    context = found.max_model_len or parent.max_model_len
    owner = _OWNERS.get(found.owned_by or "", "")
    for kind in [owner] if owner else _VERSION_PATHS:
        try:
            version = await server.get(_VERSION_PATHS[kind], _Version)
        except (Rejected, BrokenReply):
            continue
        if number := version.version or version.build_info:
            return Identity(found, context or version.default_generation_settings.n_ctx, kind, f"{kind} {number}")
    return Identity(found, context, owner, owner or "unknown server")


async def recognise(server: HttpClient, settings: EngineConfig | PoolingConfig, section: str = "engine") -> EngineInfo:
    """Return the description of a server without its checks; raise as `identify`."""
    return (await identify(server, settings.model, section)).describe(settings)


async def read_serving(server: HttpClient, identity: Identity, fingerprint: str | None) -> dict[str, str]:
    """Return what the server reports, by name; a part that it does not report is left out.

    Of vLLM, adapter and fingerprint (with its parallelism) are always there, speculative decoding and the type of the
    key-value cache are in its metrics, and quantisation only in `/server_info`, with VLLM_SERVER_DEV_MODE=1.
    """
    model = identity.model
    root = model.root if model.root != model.id else None
    facts = {"root": root, "base model": model.parent, "fingerprint": fingerprint}
    if identity.kind == "vllm":
        for read in (_read_metrics, _read_configuration):
            try:
                facts |= await read(server)
            except (Rejected, Transient):
                continue  # an old version, a proxy that hides it, or no developer mode
    # vLLM's key-value cache has the model's data type unless it says more than `auto`.
    return {name: str(value)[:_MAX_CHARS] for name, value in facts.items() if value and value != "auto"}


async def _read_metrics(server: HttpClient) -> Mapping[str, str | None]:
    engines: set[str] = set()
    facts: dict[str, str | None] = {}
    for name, labels in _METRIC.findall(await server.get_text("/metrics")):
        if name != "cache_config_info":
            facts["speculative decoding"] = "yes"
            continue
        found = dict(_LABEL.findall(labels))
        engines.add(found.get("engine", ""))
        facts["key-value cache"] = found.get("cache_dtype")
    if len(engines) > 1:
        facts["data parallel"] = str(len(engines))
    return facts


async def _read_configuration(server: HttpClient) -> Mapping[str, str | None]:
    reply = await server.get("/server_info?config_format=json", dict[str, dict[str, Any]])
    parts = reply.get("vllm_config", {})

    def find(part: str, name: str) -> Any:
        section = parts.get(f"{part}_config")
        return section.get(name) if isinstance(section, dict) else None

    sizes = {f"{part} parallel": find("parallel", f"{part}_parallel_size") for part in ("tensor", "pipeline", "data")}
    facts = {name: str(size) for name, size in sizes.items() if isinstance(size, int) and size > 1}
    if method := find("speculative", "method"):
        facts["speculative decoding"] = f"{method}, {find('speculative', 'num_speculative_tokens')} tokens"
    return {
        **facts,
        "quantisation": find("model", "quantization"),
        "data type": find("model", "dtype"),
        "key-value cache": find("cache", "cache_dtype"),
    }


def check_context(identity: Identity, wanted: int | None, section: str) -> ServerCheck:
    """Return a check that blocks if no context is known, or the configured one is longer than the served one."""
    model, served = identity.model.id, identity.context
    if served is None and wanted is None:
        return fail("context", f"does not report the context length of {model}", f"give it (`{section}.context`)")
    if served is not None and wanted is not None and wanted > served:
        remedy = f"serve it with a longer context or give a shorter one (`{section}.context`)"
        return fail("context", f"{model} is served with a context of {served} tokens, {wanted} are configured", remedy)
    origin = "as the server reports" if wanted is None else "as configured"
    return ServerCheck("context", True, f"{wanted or served} tokens, {origin}")


async def _find_counter(survey: Survey) -> list[ServerCheck]:
    """Make the server use the first counter of tokens that works; some templates refuse system messages."""
    server, tokenizer = survey.server, survey.engine.tokenizer
    if tokenizer is not None:
        server.counter = ChatTokenizer(tokenizer, server.chat_template_kwargs)
    others = [] if tokenizer else [LlamaCppTokenCounter(server, server.chat_template_kwargs)]
    problem = ""
    for counter in (server.counter, *others):
        server.counter = counter
        try:
            await counter.count_tokens(PROBE_MESSAGES)
        except (Rejected, BrokenReply) as error:
            if isinstance(error, Rejected) and error.status in (401, 403):
                raise
            problem = problem or str(error)
            continue
        return [ServerCheck("tokens", True, f"counted by {counter.name}")]
    return [fail("tokens", f"does not count the tokens of messages ({problem})")]


async def _compare_counts(survey: Survey, reported: int) -> None:
    """Replace the check of the tokens by a blocking one if the server reports more prompt tokens than are counted."""
    if survey.is_blocked("tokens"):
        return
    counted = await survey.server.count_tokens(PROBE_MESSAGES)
    if reported > counted + _MAX_COUNT_ERROR:
        name = survey.server.counter.name
        value = f"{reported} prompt tokens are {counted} by {name}, so documents would not fit"
        failed = fail("tokens", value, "give the tokenizer of this very model (`engine.tokenizer`)")
        survey.checks = [failed if check.name == "tokens" else check for check in survey.checks]


async def _find_delivery(survey: Survey) -> list[ServerCheck]:
    """Make the server use the first way of constraining answers that works.

    Returns:
        The checks of schemas and log-probabilities.
    """
    server = survey.server
    problems: list[str] = []
    cut_off: list[ServerCheck] = []
    for delivery in Delivery:
        server.delivery = delivery
        try:
            reply, refusal = await _send_probe(survey)
        except Rejected as error:
            if error.is_fatal:
                raise
            problems.append(f"the server refused the request: {error}")
            continue
        completion = read_completion(reply)
        if _is_enforced(completion.text):
            survey.probe = reply
            await _compare_counts(survey, reply.usage.prompt_tokens)
            checks = [ServerCheck("schema", True, f"enforced with {delivery}"), _check_logprobs(survey, refusal)]
            if completion.reasoning:
                checks.append(fail("reasoning", "the model thinks before it answers"))
            return checks
        cut_off = cut_off or _check_cut_off(survey, completion, delivery)
        hint = " (its reasoning was not empty: switch thinking off)" if completion.reasoning else ""
        problems.append(f"the model answered {completion.text[:80]!r}{hint}")
    if cut_off:
        server.delivery = Delivery.STRUCTURED_OUTPUTS
        return cut_off
    value = f"{server.model} does not enforce JSON schemas: restricted to {PROBE_ANSWER}, "
    return [fail("schema", value + "; ".join(dict.fromkeys(problems)))]


def _check_cut_off(survey: Survey, completion: Completion, delivery: Delivery) -> list[ServerCheck]:
    """Return the checks for an answer that fits the schema apart from endless white space; none for other answers."""
    written = "".join(completion.text.split())
    is_beginning = PROBE_ANSWER.startswith(written) and len(written) >= len('{"word"')
    if completion.finish_reason != "length" or not is_beginning:
        return []
    padded = survey.fail("white space", f"{survey.server.model} fills its answer with white space until it is cut off")
    return [
        ServerCheck("schema", True, f"enforced with {delivery}"),
        ServerCheck("logprobs", None, "not seen, since the answer was cut off"),
        ServerCheck(LABEL_TOKENS, None, "not read, since the answer was cut off"),
        replace(padded, cost="", remedy=padded.remedy or "switch white space off in the server", is_blocking=True),
    ]


async def _send_probe(survey: Survey) -> tuple[ChatReply, str]:
    """Return the reply to a request for one word, and why log-probabilities were refused, if they were."""
    request, server = survey.build_probe(survey.sampling.top_logprobs), survey.server
    try:
        return await server.exchange(request), ""
    except Rejected as error:
        if error.is_fatal or not request.sampling.top_logprobs:
            raise
        plain = replace(request, sampling=replace(request.sampling, top_logprobs=0))
        return await server.exchange(plain), str(error)


def _is_enforced(text: str) -> bool:
    try:
        return bool(orjson.loads(text) == orjson.loads(PROBE_ANSWER))
    except orjson.JSONDecodeError:
        return False


def _check_logprobs(survey: Survey, refusal: str) -> ServerCheck:
    assert survey.probe is not None
    model = survey.server.model
    if not survey.sampling.logprobs:
        return ServerCheck("logprobs", None, "not requested", PECULIARITIES["logprobs"].cost)
    if refusal:
        return fail("logprobs", f"{model} refuses log-probabilities ({refusal})")
    try:
        completion = read_completion(survey.probe, PROBE_LAYOUT)
    except MissingLogprobs:
        return fail("logprobs", f"{model} sends no log-probabilities")
    if not any(token.top for token in completion.tokens):
        return fail("logprobs", f"{model} sends log-probabilities that do not spell its answer")
    try:
        check_logprobs(completion.text, completion.tokens)
    except Unusable as error:
        remedy = "serve it with --logprobs-mode raw_logprobs, the default of vLLM, or set `sampling.logprobs: false`"
        return fail("logprobs", f"{model} sends impossible log-probabilities: {error.reason}", remedy)
    kind = "renormalised" if survey.is_renormalised else "raw"
    return ServerCheck("logprobs", True, f"for each token of an answer, {kind}")


async def _check_reasoning(survey: Survey) -> list[ServerCheck]:
    """Check the prompt of an answer without reasoning, and an answer after reasoning, if the run has any."""
    found = await check_open_thought(survey)
    if survey.sampling.thinking.budgets:
        found.append(await check_thinking(survey, survey.sampling.thinking))
    return found


# Probes with their conditions, in the order of the card. A blocking check of the schema or of the instructions ends
# those that need them.
PROBES: tuple[tuple[Callable[[Survey], Awaitable[list[ServerCheck]]], Callable[[Survey], bool]], ...] = (
    (_check_identity, lambda _: True),
    (_find_counter, lambda _: True),
    (_find_delivery, lambda _: True),
    (check_system_message, lambda survey: survey.is_enforced),
    (check_labels, lambda survey: survey.takes_instructions),
    (_check_reasoning, lambda survey: survey.takes_instructions),
    (_describe, lambda _: True),
)
