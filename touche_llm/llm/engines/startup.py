"""Start-up check of a server: what it can do, how it is made to do it, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import orjson

from touche_llm.data.json_records import Count
from touche_llm.errors import EngineError
from touche_llm.llm.answers import Unusable
from touche_llm.llm.engines.base import BrokenReply, Completion, EngineInfo, MissingLogprobs, Rejected, Transient
from touche_llm.llm.engines.chat_reply import ChatReply, Delivery, read_completion
from touche_llm.llm.engines.http_client import API_KEY_VARIABLE
from touche_llm.llm.engines.server import ChatServer
from touche_llm.llm.engines.token_counters import LlamaCppTokenCounter, LocalTokenCounter
from touche_llm.llm.logprobs import check_logprobs
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.llm.settings import EngineConfig, SamplingConfig
from touche_llm.llm.tokenizer import ChatTokenizer

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
# No model answers with this word unless the schema is enforced.
PROBE_WORD = "quokka-7351"
_PROBE_MESSAGES = (Message("user", "Say hello."),)
_PLAIN_GRADES = (
    "without them, grades are whole numbers, ties keep the order of the first stage, and stances are certain"
)
# Max difference between the prompt tokens that are counted and those that the server reports: some templates add a
# date, some servers a token at the beginning.
_MAX_COUNT_ERROR = 8


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: Count | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


class _Generation(msgspec.Struct):
    n_ctx: Count | None = None


class _Version(msgspec.Struct):
    version: str = ""
    # Those of llama.cpp, whose context is that of one of its slots.
    build_info: str = ""
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """Result of one check of a server.

    Attributes:
        name: Name of the check.
        is_ok: Whether nothing is missing; None if this cannot be found out.
        value: What was found.
        cost: What the missing part costs.
        remedy: What mends it.
        is_blocking: Whether a run cannot be made.
    """

    name: str
    is_ok: bool | None
    value: str
    cost: str = ""
    remedy: str = ""
    is_blocking: bool = False

    def __str__(self) -> str:
        return "; ".join(part for part in (self.value, self.cost, self.remedy) if part)


def block(name: str, value: str, remedy: str, cost: str = "") -> ServerCheck:
    """Return the result of a check without which a run cannot be made."""
    return ServerCheck(name, False, value, cost, remedy, is_blocking=True)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the start-up check found.

    Attributes:
        kind: The program that serves, empty if unknown.
        checks: Results in the order of the checks; after a blocking one, checks that depend on it are left out.
        info: Description of the engine; meaningful if nothing blocks.
    """

    kind: str
    checks: list[ServerCheck]
    info: EngineInfo


async def connect(server: ChatServer, engine: EngineConfig, sampling: SamplingConfig) -> EngineInfo:
    """Get model and context from a server, and verify that it can do what a run needs.

    Args:
        server: The server; afterwards it sends requests in the way that works.
        engine: Model, revision, context and tokenizer of the run.
        sampling: Sampling of the run.

    Raises:
        EngineError: The server is unreachable, serves another model, or lacks something that the run needs.
    """
    found = await survey(server, engine, sampling)
    for check in found.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
    server.is_monitored = True
    return found.info


async def survey(server: ChatServer, engine: EngineConfig, sampling: SamplingConfig) -> Survey:
    """Find out what a server can do; see `connect`.

    Raises:
        EngineError: The server is unreachable or serves another model.
    """
    try:
        return await _survey(server, engine, sampling)
    except Transient as error:
        raise EngineError(f"{server.base_url}: {error.reason}; {_HINT}") from error
    except Rejected as error:
        hint = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else _HINT
        raise EngineError(f"{server.base_url}: the server refused the start-up check: {error}; {hint}") from error


async def _survey(server: ChatServer, engine: EngineConfig, sampling: SamplingConfig) -> Survey:
    model = _choose(server.base_url, (await server.get("/v1/models", _ModelList)).data, engine.model)
    server.choose(model.id)
    kind, version = await _identify(server, model)
    title = f"{kind} {version.version or version.build_info}".strip() or "unknown server"
    served = model.max_model_len or version.default_generation_settings.n_ctx
    checks = [
        ServerCheck("server", True, title),
        ServerCheck("model", True, model.id),
        _check_context(model.id, served, engine.context),
    ]
    overhead, counting = await _find_counter(server, engine)
    schema, completion = await _find_delivery(server, sampling)
    if completion is not None and not counting.is_blocking:
        counting = await _compare_counts(server, completion, counting)
    context = engine.context or served or 0
    info = EngineInfo(model=model.id, revision=engine.revision, context=context, overhead=overhead or 0, engine=title)
    return Survey(kind, [*checks, counting, *schema], info)


def _choose(base_url: str, served: list[_Model], model: str | None) -> _Model:
    if model is None and len(served) == 1:
        return served[0]
    by_name = {choice.id: choice for choice in served}
    if model in by_name:
        return by_name[model]
    names = ", ".join(by_name) or "no model"
    wanted = "" if model is None else f", not {model!r}"
    raise EngineError(f"{base_url}: serves {names}{wanted}; choose one with `engine.model`")


async def _identify(server: ChatServer, model: _Model) -> tuple[str, _Version]:
    """Return the program that serves, and its version; empty ones if they are unknown."""
    owner = _OWNERS.get(model.owned_by or "", "")
    for kind in [owner] if owner else _VERSION_PATHS:
        try:
            version = await server.get(_VERSION_PATHS[kind], _Version)
        except (Rejected, BrokenReply):
            continue
        if version.version or version.build_info:
            return kind, version
    return owner, _Version()


def _check_context(model: str, served: int | None, wanted: int | None) -> ServerCheck:
    if served is None and wanted is None:
        return block("context", f"does not report the context length of {model}", "give it (`engine.context`)")
    if served is not None and wanted is not None and wanted > served:
        return block(
            "context",
            f"{model} is served with a context of {served} tokens, {wanted} are configured",
            "serve it with a longer context or give a shorter one (`engine.context`)",
        )
    origin = "as the server reports" if wanted is None else "as configured"
    return ServerCheck("context", True, f"{wanted or served} tokens, {origin}")


async def _find_counter(server: ChatServer, engine: EngineConfig) -> tuple[int | None, ServerCheck]:
    """Make the server use the first counter of tokens that works; return the tokens of two empty messages."""
    if engine.tokenizer is not None:
        server.counter = LocalTokenCounter(ChatTokenizer(engine.tokenizer, server.chat_template_kwargs))
    others = [] if engine.tokenizer else [LlamaCppTokenCounter(server, server.chat_template_kwargs)]
    problem = ""
    for counter in (server.counter, *others):
        server.counter = counter
        try:
            overhead = await counter.count_tokens((Message("system", ""), Message("user", "")))
        except (Rejected, BrokenReply) as error:
            if isinstance(error, Rejected) and error.status in (401, 403):
                raise
            problem = problem or str(error)
            continue
        return overhead, ServerCheck("tokens", True, f"counted by {counter.name}")
    value = f"does not count the tokens of messages ({problem})"
    return None, block("tokens", value, "give a folder with the model's tokenizer (`engine.tokenizer`)")


async def _compare_counts(server: ChatServer, completion: Completion, counting: ServerCheck) -> ServerCheck:
    """Return a check that blocks if the server reports more prompt tokens than are counted."""
    counted = await server.count_tokens(_PROBE_MESSAGES)
    if completion.prompt_tokens <= counted + _MAX_COUNT_ERROR:
        return counting
    value = (
        f"{completion.prompt_tokens} prompt tokens are {counted} by {server.counter.name}, so documents would not fit"
    )
    return block("tokens", value, "give the tokenizer of this very model (`engine.tokenizer`)")


async def _find_delivery(server: ChatServer, sampling: SamplingConfig) -> tuple[list[ServerCheck], Completion | None]:
    """Make the server use the first way of constraining answers that works.

    Returns:
        The checks about schemas and log-probabilities, and the completion of the request that worked.
    """
    problems: dict[str, str] = {}
    for delivery in Delivery:
        server.delivery = delivery
        try:
            reply, refusal = await _send_probe(server, sampling.top_logprobs)
        except Rejected as error:
            if error.is_fatal:
                raise
            problems[delivery] = f"the server refused the request: {error}"
            continue
        completion = read_completion(reply)
        if _is_enforced(completion.text):
            schema = ServerCheck("schema", True, f"enforced with {delivery}")
            return [schema, _check_logprobs(server.model, reply, sampling, refusal)], completion
        hint = " (its reasoning was not empty: switch thinking off)" if completion.reasoning else ""
        problems[delivery] = f"the model answered {completion.text[:80]!r}{hint}"
    distinct = dict.fromkeys(problems.values())
    value = f"{server.model} does not enforce JSON schemas: restricted to the word {PROBE_WORD}, {'; '.join(distinct)}"
    remedy = "use a server that enforces `structured_outputs` or `response_format`, such as vLLM from 0.11 on"
    return [block("schema", value, remedy)], None


async def _send_probe(server: ChatServer, top_logprobs: int) -> tuple[ChatReply, str]:
    """Return the reply to a request for one word, and why log-probabilities were refused, if they were."""
    request = Request(
        messages=_PROBE_MESSAGES,
        schema={
            "type": "object",
            "properties": {"word": {"enum": [PROBE_WORD]}},
            "required": ["word"],
            "additionalProperties": False,
        },
        sampling=Sampling(max_tokens=64, top_logprobs=top_logprobs),
        model=server.model,
        revision="",
        chat_template_kwargs=server.chat_template_kwargs,
        origin=Origin("start-up check", 0, "", "", None),
    )
    try:
        return await server.exchange(request), ""
    except Rejected as error:
        if error.is_fatal or not top_logprobs:
            raise
        plain = replace(request, sampling=replace(request.sampling, top_logprobs=0))
        return await server.exchange(plain), str(error)


def _is_enforced(text: str) -> bool:
    try:
        return bool(orjson.loads(text) == {"word": PROBE_WORD})
    except orjson.JSONDecodeError:
        return False


def _check_logprobs(model: str, reply: ChatReply, sampling: SamplingConfig, refusal: str) -> ServerCheck:
    if not sampling.logprobs:
        return ServerCheck("logprobs", None, "not requested", _PLAIN_GRADES)
    remedy = "use a server that sends them, or request plain grades with `sampling.logprobs: false`"
    if refusal:
        return block("logprobs", f"{model} refuses log-probabilities ({refusal})", remedy, _PLAIN_GRADES)
    try:
        completion = read_completion(reply, ("word",))
    except MissingLogprobs:
        return block("logprobs", f"{model} sends no log-probabilities", remedy, _PLAIN_GRADES)
    if not any(token.top for token in completion.tokens):
        return block("logprobs", f"{model} sends log-probabilities that do not spell its answer", remedy, _PLAIN_GRADES)
    try:
        check_logprobs(completion.text, completion.tokens)
    except Unusable as error:
        remedy = "serve it with --logprobs-mode raw_logprobs, the default of vLLM, or set `sampling.logprobs: false`"
        return block("logprobs", f"{model} sends impossible log-probabilities: {error.reason}", remedy)
    return ServerCheck("logprobs", True, "sent, and spell the answer")
