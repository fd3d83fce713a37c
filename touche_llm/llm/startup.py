"""Examination of a server: who answers, what it can do, and whether a run is possible."""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import replace
from uuid import uuid4

import msgspec
import orjson

from touche_llm.data.records import Count
from touche_llm.errors import EngineError
from touche_llm.llm.answers import count_alternatives
from touche_llm.llm.chat import read_completion
from touche_llm.llm.checks import LABEL_TOKENS, SYSTEM_MESSAGE, ServerCheck, Survey, fail
from touche_llm.llm.engine import BrokenReply, Completion, EngineInfo, Rejected, ServedModel, Transient
from touche_llm.llm.http import API_KEY_VARIABLE, HttpClient
from touche_llm.llm.probes import Extent, Probe, list_probes, probe
from touche_llm.llm.request import EMPTY_CHAT, Message, Request, Sampling, place_system_message
from touche_llm.llm.settings import EngineConfig, PoolingConfig

# Servers by the owner that they give their models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "library": "ollama"}
# Where servers report their versions.
_VERSION_PATHS = {"vllm": "/version", "llama.cpp": "/props", "sglang": "/get_server_info", "ollama": "/api/version"}
_ALWAYS = ("server", "schema", "tokens", "description")
# vLLM writes a line for each copy of the engine.
_CACHE = re.compile(r'^vllm:cache_config_info\{[^}]*cache_dtype="([^"]*)"', re.MULTILINE)


async def connect(survey: Survey) -> EngineInfo:
    """Get model and context from a server, and verify that it can do what a run needs.

    Raises:
        EngineError: The server is unreachable, serves another model, or lacks something that the run needs.
    """
    await examine(survey)
    server = survey.server
    for check in survey.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
        if check.is_ok is False or (check.name == LABEL_TOKENS and not check.is_ok and survey.sampling.top_logprobs):
            survey.warn(f"{server.base_url}: {check.name}: {check}")
    server.is_monitored = True
    return survey.info


def _list_all(extent: Extent) -> dict[str, Probe]:
    return {"server": _check_identity, **list_probes(extent), "description": _describe}


def count_probes(extent: Extent) -> int:
    """Return the number of steps of an examination."""
    return len(_list_all(extent))


async def examine(survey: Survey, extent: Extent = Extent.RUN) -> None:
    """Find out what a server can do; the survey has the checks.

    Probes that need the schema or instructions are left out if the server lacks these.

    Args:
        survey: The server. Only a queue is passed to `warn`.
        extent: Beyond that of a run, schemas of answers with labels alone are needed.

    Raises:
        EngineError: The server is unreachable or busy, serves another model, or answers with several models.
    """
    needed, probes = _list_all(Extent.RUN), _list_all(extent)
    for (name, function), following in zip(probes.items(), [*list(probes)[1:], ""], strict=True):
        has_schema = survey.probe is not None
        takes_instructions = has_schema and not survey.is_blocked(SYSTEM_MESSAGE)
        if takes_instructions or name in _ALWAYS or (has_schema and name == SYSTEM_MESSAGE):
            try:
                survey.checks += await function(survey)
            except (Transient, Rejected) as error:
                if function is needed.get(name):
                    raise describe_failure(survey.server, error) from error
                survey.checks.append(ServerCheck(name, None, f"could not be checked: {error}"))
        survey.step(following)


def describe_failure(server: HttpClient, error: Transient | Rejected, refused: str = "") -> EngineError:
    """Return the error of a start-up check that failed; `refused` says how to go on if the server refuses."""
    hint = f"is the server running there? It answers once its model is loaded. Set its address with {server.address}"
    if isinstance(error, Transient):
        # A server that is busy runs there.
        return EngineError(f"{server.base_url}: {error.reason}" + ("" if error.is_busy else f"; {hint}"))
    remedy = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else refused or hint
    return EngineError(f"{server.base_url}: the server refused the start-up check: {error}; {remedy}")


async def _check_identity(survey: Survey) -> list[ServerCheck]:
    """Choose the model; the description of the engine is completed at the end, by `_describe`."""
    server = survey.server
    survey.info, context = await identify(server, survey.engine, "engine")
    server.choose(survey.info.model)
    waiting, queue = await server.read_queue() if survey.info.engine.startswith("vllm") else (0, "")
    if waiting:
        survey.warn(f"{server.base_url}: the server is busy: {queue}")
    server.system_message = survey.sampling.system_message
    return [ServerCheck("server", True, survey.info.engine), ServerCheck("model", True, survey.info.model), context]


async def _describe(survey: Survey) -> list[ServerCheck]:
    """Complete the description of the engine."""
    server, overhead = survey.server, 0
    if not survey.is_blocked():
        overhead = await server.counter.count_tokens(place_system_message(EMPTY_CHAT, survey.sampling.system_message))
    fingerprint = None if survey.probe is None else survey.probe.system_fingerprint
    serving = await read_serving(server, survey.info, fingerprint)
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


async def identify(
    server: HttpClient, settings: EngineConfig | PoolingConfig, section: str
) -> tuple[EngineInfo, ServerCheck]:
    """Return what a server says of itself and of the configured model, or of its only one.

    Returns:
        The description of the engine before it is checked, with a context of 0 if it is unknown; and a check that
        blocks if the context is unknown, or the configured one is longer than the served one.

    Raises:
        EngineError: It does not serve the model, or several; the message names the setting.
        Transient, Rejected: It did not reply, or refuses to.
    """
    by_name = {served.id: served for served in (await server.get("/v1/models", _ModelList)).data}
    name = next(iter(by_name)) if settings.model is None and len(by_name) == 1 else settings.model
    if name is None or name not in by_name:
        other = "" if name is None else f", not {name!r}"
        names = ", ".join(by_name) or "no model"
        raise EngineError(f"{server.base_url}: serves {names}{other}; choose one with `{section}.model`")
    model = by_name[name]
    # vLLM does not report the context of an adapter, which is that of the adapted model.
    served = model.max_model_len or by_name.get(model.parent or "", model).max_model_len
    owner = _OWNERS.get(model.owned_by or "", "")
    title = owner or "unknown server"
    for kind in [owner] if owner else _VERSION_PATHS:
        try:
            version = await server.get(_VERSION_PATHS[kind], _Version)
        except (Rejected, BrokenReply):
            continue
        if number := version.version or version.build_info:
            served, title = served or version.default_generation_settings.n_ctx, f"{kind} {number}"
            break
    facts = {"root": model.root if model.root != name else None, "base model": model.parent}
    info = EngineInfo(
        model=name,
        revision=settings.revision,
        context=settings.context or served or 0,
        overhead=0,
        engine=title,
        serving={fact: value for fact, value in facts.items() if value},
    )
    wanted, problem = settings.context, ""
    if not info.context:
        problem, remedy = f"does not report the context length of {info.model}", f"give it (`{section}.context`)"
    elif served is not None and wanted is not None and wanted > served:
        problem = f"{info.model} is served with a context of {served} tokens, {wanted} are configured"
        remedy = f"serve it with a longer context or give a shorter one (`{section}.context`)"
    if problem:
        return info, ServerCheck("context", False, problem, "", remedy, is_blocking=True)
    origin = "as the server reports" if wanted is None else "as configured"
    return info, ServerCheck("context", True, f"{info.context} tokens, {origin}")


async def read_serving(server: HttpClient, info: EngineInfo, fingerprint: str | None = None) -> dict[str, str]:
    """Return what the server reports of how it serves the model, by name; what it does not report is left out."""
    facts = info.serving | ({"fingerprint": fingerprint} if fingerprint else {})
    # An old version, or a proxy, hides them.
    _, metrics = await server.look("/metrics") if info.engine.startswith("vllm") else (0, "")
    types = _CACHE.findall(metrics)
    # The cache has the model's data type unless it says more than `auto`.
    if types and types[-1] != "auto":
        facts["key-value cache"] = types[-1]
    if "\nvllm:spec_decode_" in metrics:
        facts["speculative decoding"] = "yes"
    if len(types) > 1:
        facts["data parallel"] = str(len(types))
    return facts


# Times that one request is sent alone, and again among others.
_REPEATS = 20
# Tokens for which the requests are made if the context is unknown.
_SHORT_CONTEXT = 2048
# Logarithm of a probability below which a token counts as forbidden; vLLM sends -9999 for those.
_MIN_LOGPROB = -100.0
# White space that no compact grammar allows.
_FREE_WHITE_SPACE = re.compile(r"[\n\r\t]|\s\s")
_INSTRUCTIONS = "Judge how relevant the passage is to the question, from 0 to 3, and which side it takes."
_PASSAGE = "Question: are heat pumps better than gas boilers?\nPassage: heat pumps are cheaper to run, boilers to buy."


def _build(survey: Survey, text: str, system: str = _INSTRUCTIONS) -> Request:
    schema = survey.schemas[0]
    sampling = Sampling(top_logprobs=min(survey.top_logprobs, count_alternatives(schema)))
    return survey.server.build_check((Message("system", system), Message("user", text)), schema, sampling)


@probe(Extent.DOCTOR, "white space")
async def check_white_space(survey: Survey) -> list[ServerCheck]:
    """Check whether a schema allows white space between the tokens of an answer."""
    name = "white space"
    reply = await survey.server.exchange(_build(survey, _PASSAGE))
    completion = read_completion(reply)
    if completion.finish_reason == "length":
        return [fail(name, f"an answer was cut off after {completion.completion_tokens} tokens")]
    try:
        values = orjson.loads(completion.text)
    except orjson.JSONDecodeError:
        return [ServerCheck(name, None, f"could not be checked: the answer is {completion.text[:40]!r}")]
    # A compact grammar may require one space after `,`, as Python's json writes it.
    if completion.text not in (orjson.dumps(values).decode(), json.dumps(values)):
        return [fail(name, "written between tokens")]
    if not survey.is_renormalised:
        return [replace(fail(name, "none in one answer; raw log-probabilities show no more"), is_ok=None)]
    alternatives = (pair for token in reply.choices[0].tokens for pair in token.alternatives)
    if any(logprob > _MIN_LOGPROB and _FREE_WHITE_SPACE.search(text) for text, logprob in alternatives):
        return [fail(name, "allowed between tokens")]
    return [ServerCheck(name, True, "not allowed between tokens")]


@probe(
    Extent.DOCTOR,
    "prefix cache",
    "instructions and topic are computed for each document",
    "vLLM: --enable-prefix-caching --enable-prompt-tokens-details; SGLang: --enable-cache-report, without "
    "--disable-radix-cache; llama.cpp: --cache-prompt",
)
async def check_prefix_cache(survey: Survey) -> list[ServerCheck]:
    """Check whether a second prompt reuses its common beginning with the first."""
    name, words = "prefix cache", min(600, (survey.info.context or _SHORT_CONTEXT) // 5)
    # New in each examination; longer than the blocks of a cache, and short enough for the context.
    beginning = f"Session {uuid4().hex}. " + "word " * words
    for text in ("First passage.", "Second passage."):
        usage = (await survey.server.exchange(_build(survey, text, system=beginning))).usage
    if usage.cached_tokens is None:
        unseen = fail(name, "not reported")
        return [replace(unseen, is_ok=None, cost="its use cannot be seen in a run's metadata")]
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    return [ServerCheck(name, True, value) if usage.cached_tokens else fail(name, value)]


@probe(
    Extent.THOROUGH,
    "determinism",
    "without the answer cache a run is not repeatable",
    "vLLM: --dtype float32, or VLLM_BATCH_INVARIANT=1 in its environment; SGLang: --enable-deterministic-inference",
)
async def check_determinism(survey: Survey) -> list[ServerCheck]:
    """Check whether answers to a request that is repeated alone and among others differ."""
    name, server, request = "determinism", survey.server, _build(survey, _PASSAGE)
    answers = [await server.complete(request) for _ in range(_REPEATS)]
    others = [_build(survey, f"{_PASSAGE} " * (1 + number % 3) + str(number)) for number in range(_REPEATS)]
    sent = [each for other in others for each in (request, other)]
    answers += (await asyncio.gather(*map(server.complete, sent)))[::2]
    flips = sum(answer.text != answers[0].text for answer in answers)
    # Later tokens depend on those before, so that only equal answers are compared token by token.
    same = [_list_probabilities(answer) for answer in answers if answer.text == answers[0].text]
    differences = (abs(share - other.get(key, 0.0)) for other in same for key, share in same[0].items())
    value = f"{flips} of {len(answers)} repeats differ, probabilities by up to {max(differences, default=0.0):.2g}"
    return [fail(name, value) if flips else ServerCheck(name, True, value)]


def _list_probabilities(answer: Completion) -> dict[tuple[int, str], float]:
    return {(token.at, text): math.exp(logprob) for token in answer.tokens for text, logprob in token.top}
