"""A server under examination: who answers, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from touche_llm.data.records import Count
from touche_llm.engines.chat import ChatReply, ChatServer
from touche_llm.engines.http import API_KEY_VARIABLE, HttpClient
from touche_llm.errors import EngineError, Warn
from touche_llm.llm.answers import AnswerModel, Layout, build_schema
from touche_llm.llm.engine import BrokenReply, EngineInfo, Rejected, Transient
from touche_llm.llm.request import Message, Origin, Request, Sampling, place_system_message
from touche_llm.llm.settings import EngineConfig, PoolingConfig, SamplingConfig

# What a server may lack, and what helps; docs/reference/doctor.md has what each costs.
REMEDIES = {
    # While thinking is off, a reasoning parser switches schemas off:
    # https://github.com/vllm-project/vllm/issues/39130
    "schema": "use a server that enforces `structured_outputs` or `response_format`, such as vLLM from 0.11 on without "
    "a reasoning parser (--reasoning-parser)",
    "logprobs": "use a server that sends them, or request plain grades with `sampling.logprobs: false`: whole numbers, "
    "whose ties keep the order of the first stage",
    "reasoning": "each answer takes many more tokens; switch it off (`sampling.chat_template_kwargs`)",
    "white space": "a weak model can write it until its answer is cut off; vLLM: --structured-outputs-config "
    '\'{"backend": "xgrammar", "disable_any_whitespace": true}\'; SGLang: --constrained-json-disable-any-whitespace',
    "tokens": "give a folder with the tokenizer of this very model (`engine.tokenizer`)",
    "system message": "put the instructions into the user message (`sampling.system_message: user`), or serve another "
    "chat template (vLLM, SGLang: --chat-template FILE; llama.cpp: --chat-template-file FILE)",
    "label tokens": "use prompts of another `form`, such as `object`, or request plain grades with "
    "`sampling.logprobs: false`",
    "open thought": "let it reason (`sampling.thinking`), or switch reasoning off, with a switch of its chat template "
    "(`sampling.chat_template_kwargs`) or another template",
    "thinking": "set the delimiters of the model (`sampling.thinking.delimiters`), or serve it with a chat template "
    "that keeps its thought (vLLM: --chat-template FILE)",
    "prefix cache": "instructions and topic are computed for each document; vLLM: --enable-prefix-caching "
    "--enable-prompt-tokens-details; SGLang: --enable-cache-report, without --disable-radix-cache; llama.cpp: "
    "--cache-prompt",
    "determinism": "without the answer cache a run is not repeatable; vLLM: --dtype float32, or VLLM_BATCH_INVARIANT=1 "
    "in its environment; SGLang: --enable-deterministic-inference",
}
# No run is possible without these, unless a check says so.
_BLOCKING = ("schema", "logprobs", "tokens", "system message", "label tokens", "thinking")


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """Result of one check of a server.

    Attributes:
        is_ok: Whether nothing is missing; None if unknown.
        value: Finding.
        remedy: What the missing part costs, and how to add it.
        is_blocking: Whether no run is possible without it.
    """

    name: str
    is_ok: bool | None
    value: str
    remedy: str = ""
    is_blocking: bool = False

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.value, self.remedy)))


def fail(name: str, value: str, remedy: str = "") -> ServerCheck:
    """Return a failed check, with the remedy for what is missing by default."""
    return ServerCheck(name, False, value, remedy or REMEDIES[name], name in _BLOCKING)


class _Word(AnswerModel):
    """Answer that no model gives unless the schema is enforced."""

    word: Literal["quokka-7351"]


PROBE_WORD = "quokka-7351"
PROBE_ANSWER = '{"word":"quokka-7351"}'
PROBE_MESSAGES = (Message("user", "Say hello."),)
_PROBE_SCHEMA = build_schema(_Word)
PROBE_LAYOUT = Layout.of_schema(_PROBE_SCHEMA)


@dataclass(slots=True)
class Survey:
    """Server under examination, and what was found so far.

    Attributes:
        server: The server; the probes make it send requests in the way that works.
        schemas: Schemas of the answers that the run requests, as far as they are known.
        warn: Receives what is missing if a run is possible.
        step: Called after each probe.
        info: Description of the engine, complete after all probes.
        probe: Reply in which the schema was enforced, if there was one.
        top_logprobs: Number of alternatives to request; 0 if the server sends none.
        is_renormalised: Whether only tokens that a schema allows have a probability.
    """

    server: ChatServer
    engine: EngineConfig
    sampling: SamplingConfig
    schemas: Sequence[Mapping[str, Any]] = ()
    warn: Warn = lambda _: None
    step: Callable[[], None] = lambda: None
    checks: list[ServerCheck] = field(default_factory=list)
    info: EngineInfo = EngineInfo(model="", revision="", context=0, overhead=0, engine="")
    probe: ChatReply | None = None
    top_logprobs: int = 0
    is_renormalised: bool = False

    def is_blocked(self, name: str = "") -> bool:
        """Return whether a check, or any if none is named, makes a run impossible."""
        return any(check.is_blocking for check in self.checks if name in ("", check.name))

    async def send(self, request: Request) -> ChatReply | str:
        """Return the reply to a request, or why the server refuses it.

        Raise Rejected if it refuses all requests.
        """
        try:
            return await self.server.exchange(request)
        except Rejected as error:
            if error.is_fatal:
                raise
            return str(error)

    def build(
        self,
        messages: tuple[Message, ...] = PROBE_MESSAGES,
        schema: Mapping[str, Any] = _PROBE_SCHEMA,
        top_logprobs: int = 0,
    ) -> Request:
        """Return a request of a check, which no cache stores.

        That of the defaults allows one answer.
        """
        if messages[0].role == "system":
            messages = place_system_message(messages, self.sampling.system_message)
        sampling, origin = (
            Sampling(top_logprobs=top_logprobs),
            Origin("check of the server", 0, "", "", None),
        )
        return Request(
            messages,
            schema,
            sampling,
            self.server.model,
            "",
            self.server.chat_template_kwargs,
            origin,
        )


# Where servers report their versions, by the owner that they give their models, with their names.
_VERSION_PATHS = {
    "vllm": ("vllm", "/version"),
    "llamacpp": ("llama.cpp", "/props"),
    "sglang": ("sglang", "/get_server_info"),
    "library": ("ollama", "/api/version"),
}


class _ServedModel(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: Count | None = None
    root: str | None = None
    # The model that a LoRA adapter adapts.
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_ServedModel]


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
    """Return what a server says of itself and of the configured model, or of its only one, before it is checked.

    An unknown context is 0. The check blocks then, and if the configured context is longer than the
    served one. Raises EngineError if it does not serve the model, or several; Transient or Rejected
    as a request does.
    """
    by_name = {served.id: served for served in (await server.get("/v1/models", _ModelList)).data}
    name = next(iter(by_name)) if settings.model is None and len(by_name) == 1 else settings.model
    if name is None or name not in by_name:
        other = "" if name is None else f", not {name!r}"
        names = ", ".join(by_name) or "no model"
        raise EngineError(
            f"{server.base_url}: serves {names}{other}; choose one with `{section}.model`"
        )
    model = by_name[name]
    # vLLM does not report the context of an adapter, which is that of the adapted model.
    served = model.max_model_len or by_name.get(model.parent or "", model).max_model_len
    known = _VERSION_PATHS.get(model.owned_by or "")
    title = known[0] if known else "unknown server"
    for kind, path in [known] if known else _VERSION_PATHS.values():
        try:
            version = await server.get(path, _Version)
        except (Rejected, BrokenReply):
            continue
        if number := version.version or version.build_info:
            served, title = served or version.default_generation_settings.n_ctx, f"{kind} {number}"
            break
    facts = {"root": model.root if model.root != name else None, "base model": model.parent}
    wanted = settings.context
    info = EngineInfo(
        model=name,
        revision=settings.revision,
        context=wanted or served or 0,
        overhead=0,
        engine=title,
        serving={fact: value for fact, value in facts.items() if value},
    )
    if not info.context:
        problem, remedy = (
            f"does not report the context length of {name}",
            f"give it (`{section}.context`)",
        )
    elif served is not None and info.context > served:
        problem = f"{name} is served with a context of {served} tokens, {wanted} are configured"
        remedy = f"serve it with a longer context or give a shorter one (`{section}.context`)"
    else:
        origin = "as the server reports" if wanted is None else "as configured"
        return info, ServerCheck("context", True, f"{info.context} tokens, {origin}")
    return info, ServerCheck("context", False, problem, remedy, is_blocking=True)


def describe_failure(
    server: HttpClient, error: Transient | Rejected, refused: str = "", *, is_known: bool = False
) -> EngineError:
    """Return the error of a start-up check that failed by a failure of a request.

    `refused` says how to go on if the server refuses; `is_known`, whether it has replied to another
    request.
    """
    hint = f"is the server running there? It answers once its model is loaded. Set its address with {server.address}"
    if isinstance(error, Transient):
        if error.kind == "timeout" and is_known:
            hint = "the server is busy (it answers other requests); wait, or give requests more time with "
            hint += f"`{server.section}.request_timeout`"
        return EngineError(f"{server.base_url}: {error.reason}; {hint}")
    remedy = (
        f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else refused or hint
    )
    return EngineError(
        f"{server.base_url}: the server refused the start-up check: {error}; {remedy}"
    )
