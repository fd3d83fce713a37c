"""Identification of a server: what it says of itself and of its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from touche_llm.data.records import Count
from touche_llm.engines.connections import to_line
from touche_llm.engines.http import HttpClient
from touche_llm.engines.settings import EngineConfig, PoolingConfig
from touche_llm.errors import BrokenReply, EngineError, Rejected, Transient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.text.quoting import MODEL_KEY_VARIABLE


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


@dataclass(frozen=True, slots=True)
class _ServerKind:
    """A program that serves models.

    Attributes:
        name: Name of the program.
        version_path: Where it reports its version.
    """

    name: str
    version_path: str


# By the owner that the programs give their models.
_SERVER_KINDS = {
    "vllm": _ServerKind("vllm", "/version"),
    "llamacpp": _ServerKind("llama.cpp", "/props"),
    "sglang": _ServerKind("sglang", "/get_server_info"),
    "library": _ServerKind("ollama", "/api/version"),
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


@dataclass(frozen=True, slots=True)
class Identification:
    """What a server says of itself and of a model, before it is checked.

    Attributes:
        info: Description of the engine, without the tokens of its chat template; an unknown context
            is 0.
        context_check: Check of the context, which blocks if the context is unknown, or if the
            configured one is longer than the served one.
    """

    info: EngineInfo
    context_check: ServerCheck


async def identify(
    server: HttpClient, settings: EngineConfig | PoolingConfig, section: str
) -> Identification:
    """Return what a server says of itself and of the configured model, or of its only one.

    Args:
        server: Client of the server.
        settings: Settings of the engine or of the pooling model.
        section: Section of these settings, for messages.

    Raises:
        EngineError: The server does not serve the model, or several if none is configured.
        Rejected: The server refuses a request.
        Transient: There is no reply.
    """
    model_list = await server.get("/v1/models", _ModelList)
    models = {served.id: served for served in model_list.data}
    model = _choose_model(models, settings.model, server.base_url, section)
    program = await _identify_program(server, model)
    served_context = _get_context(model, models) or program.context

    info = EngineInfo(
        model=model.id,
        revision=settings.revision,
        context=settings.context or served_context or 0,
        overhead=0,
        engine=program.title,
        serving=_describe_origin(model),
    )
    context_check = _check_context(info, settings.context, served_context, section)
    return Identification(info, context_check)


def _choose_model(
    models: Mapping[str, _ServedModel], configured: str | None, base_url: str, section: str
) -> _ServedModel:
    """Return the configured model, or the only one if none is configured.

    Raises:
        EngineError: The server does not serve the model, or several if none is configured.
    """
    if configured is None and len(models) == 1:
        (only_model,) = models.values()
        return only_model
    if configured is not None and configured in models:
        return models[configured]

    served = to_line(", ".join(models)) or "no model"
    if configured is not None:
        served += f", not {configured!r}"
    raise EngineError(f"{base_url}: serves {served}; choose one with `{section}.model`")


def _get_context(model: _ServedModel, models: Mapping[str, _ServedModel]) -> int | None:
    """Return the context of a model in tokens; None if the list of models has none."""
    if model.max_model_len:
        return model.max_model_len
    # vLLM does not report the context of an adapter, which is that of the adapted model.
    adapted = models.get(model.parent or "")
    return None if adapted is None else adapted.max_model_len


def _describe_origin(model: _ServedModel) -> dict[str, str]:
    """Return where a model comes from, as far as the server reports it, by name."""
    origin: dict[str, str] = {}
    if model.root and model.root != model.id:
        origin["root"] = model.root
    if model.parent:
        origin["base model"] = model.parent
    return origin


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that serves models, as it identifies itself.

    Attributes:
        title: Name and version, as far as they are known.
        context: Context in tokens, if it reports one.
    """

    title: str
    context: int | None = None


async def _identify_program(server: HttpClient, model: _ServedModel) -> _Program:
    """Return the program that serves a model.

    The owner of the model names it. If that is unknown, each known program is tried.

    Raises:
        Transient: There is no reply.
    """
    named_kind = _SERVER_KINDS.get(model.owned_by or "")
    if named_kind is not None:
        program = await _request_version(server, named_kind)
        return _Program(named_kind.name) if program is None else program

    for kind in _SERVER_KINDS.values():
        program = await _request_version(server, kind)
        if program is not None:
            return program
    return _Program("unknown server")


async def _request_version(server: HttpClient, kind: _ServerKind) -> _Program | None:
    """Return a program with the version that it reports; None if the server reports none there.

    Raises:
        Transient: There is no reply.
    """
    try:
        reply = await server.get(kind.version_path, _Version)
    except (Rejected, BrokenReply):
        return None
    version = reply.version or reply.build_info
    if not version:
        return None
    context = reply.default_generation_settings.n_ctx
    return _Program(f"{kind.name} {to_line(version)}", context)


def _check_context(
    info: EngineInfo, configured: int | None, served: int | None, section: str
) -> ServerCheck:
    """Check whether the context is known, and not longer than the served one.

    Args:
        info: Description of the engine.
        configured: Configured context in tokens.
        served: Context that the server reports.
        section: Section of the settings, for messages.
    """
    if not info.context:
        return ServerCheck(
            name="context",
            is_ok=False,
            value=f"does not report the context length of {info.model}",
            remedy=f"give it (`{section}.context`)",
            is_blocking=True,
        )
    if served is not None and info.context > served:
        return ServerCheck(
            name="context",
            is_ok=False,
            value=f"{info.model} is served with a context of {served} tokens, {configured} are configured",
            remedy=f"serve it with a longer context or give a shorter one (`{section}.context`)",
            is_blocking=True,
        )
    origin = "as the server reports" if configured is None else "as configured"
    return ServerCheck("context", True, f"{info.context} tokens, {origin}")


def describe_failure(
    server: HttpClient,
    error: Transient | Rejected,
    refusal_remedy: str = "",
    *,
    is_known: bool = False,
) -> EngineError:
    """Return the error of a start-up check whose request failed.

    Args:
        server: Client of the server.
        error: Failure of the request.
        refusal_remedy: What helps if the server refuses the request; empty if it is to check the
            address.
        is_known: Whether the server has replied to another request.
    """
    if isinstance(error, Rejected):
        problem = f"the server refused the start-up check: {error}"
        is_unauthorized = error.status in (401, 403)
        if is_unauthorized:
            remedy = f"give its key in {MODEL_KEY_VARIABLE}"
        else:
            remedy = refusal_remedy or _suggest_address(server)
        return EngineError(f"{server.base_url}: {problem}; {remedy}")

    is_busy = error.kind == "timeout" and is_known
    if is_busy:
        remedy = (
            "the server is busy (it answers other requests); wait, or give requests more time with "
            f"`{server.section}.request_timeout`"
        )
    else:
        remedy = _suggest_address(server)
    return EngineError(f"{server.base_url}: {error.reason}; {remedy}")


def _suggest_address(server: HttpClient) -> str:
    """Return the remedy for a server that may not run at its address."""
    return (
        "is the server running there? It answers once its model is loaded. Set its address with "
        f"{server.address}"
    )
