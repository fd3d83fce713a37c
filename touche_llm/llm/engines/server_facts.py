"""What a server reports of how it serves a model: adapter, precision, parallelism, speculative decoding."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from touche_llm.data.json_records import Count
from touche_llm.llm.engines.base import Rejected, Transient
from touche_llm.llm.engines.http_client import HttpClient

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


class _ModelConfig(msgspec.Struct):
    quantization: str | None = None
    dtype: str | None = None


class _ParallelConfig(msgspec.Struct):
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    data_parallel_size: Count = 1


class _SpeculativeConfig(msgspec.Struct):
    method: str | None = None
    num_speculative_tokens: Count | None = None


class _CacheConfig(msgspec.Struct):
    cache_dtype: str | None = None


class _VllmConfig(msgspec.Struct):
    model_config: _ModelConfig = msgspec.field(default_factory=_ModelConfig)
    parallel_config: _ParallelConfig = msgspec.field(default_factory=_ParallelConfig)
    cache_config: _CacheConfig = msgspec.field(default_factory=_CacheConfig)
    speculative_config: _SpeculativeConfig | None = None


class _ServerInfo(msgspec.Struct):
    vllm_config: _VllmConfig


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
    config = (await server.get("/server_info?config_format=json", _ServerInfo)).vllm_config
    sizes = {
        "tensor parallel": config.parallel_config.tensor_parallel_size,
        "pipeline parallel": config.parallel_config.pipeline_parallel_size,
        "data parallel": config.parallel_config.data_parallel_size,
    }
    facts = {name: str(size) for name, size in sizes.items() if size > 1}
    if (speculative := config.speculative_config) is not None:
        facts["speculative decoding"] = f"{speculative.method}, {speculative.num_speculative_tokens} tokens"
    return {
        **facts,
        "quantisation": config.model_config.quantization,
        "data type": config.model_config.dtype,
        "key-value cache": config.cache_config.cache_dtype,
    }
