"""Identification of a server: what it says of itself and of its models."""

from __future__ import annotations

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
        names = to_line(", ".join(by_name)) or "no model"
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
            served, title = (
                served or version.default_generation_settings.n_ctx,
                f"{kind} {to_line(number)}",
            )
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
        f"give its key in {MODEL_KEY_VARIABLE}" if error.status in (401, 403) else refused or hint
    )
    return EngineError(
        f"{server.base_url}: the server refused the start-up check: {error}; {remedy}"
    )
