"""Identity of a server: its program, its model, and how it serves the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from touche_llm.data.records import Count
from touche_llm.errors import EngineError
from touche_llm.llm.engine import BrokenReply, Rejected, Transient
from touche_llm.llm.http import HttpClient

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


class ServedModel(msgspec.Struct):
    """Model in the list of a server; a LoRA adapter has a `parent`, the model that it adapts."""

    id: str
    owned_by: str | None = None
    max_model_len: Count | None = None
    root: str | None = None
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


class _Generation(msgspec.Struct):
    n_ctx: Count | None = None


class _Version(msgspec.Struct):
    version: str = ""
    # Those of llama.cpp, whose context is that of one of its slots.
    build_info: str = ""
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


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


async def read_serving(server: HttpClient, kind: str, model: ServedModel, fingerprint: str | None) -> dict[str, str]:
    """Return what the server reports, by name; a part that it does not report is left out.

    Of vLLM, adapter and fingerprint (with its parallelism) are always there, speculative decoding and the type of the
    key-value cache are in its metrics, and quantisation only in `/server_info`, with VLLM_SERVER_DEV_MODE=1.
    """
    root = model.root if model.root != model.id else None
    facts = {"root": root, "base model": model.parent, "fingerprint": fingerprint}
    if kind == "vllm":
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
