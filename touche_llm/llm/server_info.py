"""Counters of a chat's tokens: a server's, in two dialects, or the tokenizer of a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from touche_llm.data.records import Count
from touche_llm.llm.engine import CountingEngine, Rejected, Transient
from touche_llm.llm.http import HttpClient
from touche_llm.llm.request import Message
from touche_llm.llm.truncation import ChatTokenizer
from touche_llm.llm.vllm_common import match_prefix, to_prompt

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


class TokenCount(msgspec.Struct):
    """Reply of `/tokenize` of which only the number of tokens is decoded."""

    count: Count


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str


class _Content(msgspec.Struct):
    content: str


class TokenCounter(CountingEngine, Protocol):
    """Counter of tokens; `name` describes it for people."""

    name: str

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> str | None:
        """Return the text of a prompt as the server renders it; None if the server does not show it."""
        ...


class VllmTokenCounter:
    """Counter that uses `/tokenize` with messages, as vLLM has it."""

    name = "/tokenize with messages"

    def __init__(self, client: HttpClient, model: str, chat_template_kwargs: Mapping[str, Any]) -> None:
        self._client, self._model = client, model
        self._chat_template_kwargs = dict(chat_template_kwargs)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        body = {
            "model": self._model,
            **to_prompt(messages),
            "chat_template_kwargs": self._chat_template_kwargs,
        }
        return (await self._client.post("/tokenize", body, TokenCount)).count

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens."""
        body: dict[str, Any] = {"model": self._model, "prompt": text, "add_special_tokens": False}
        tokens = (await self._client.post("/tokenize", body, _Tokens)).tokens
        if len(tokens) <= max_tokens:
            return text
        return match_prefix(text, await self._decode(tokens[:max_tokens]))

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {"model": self._model, **to_prompt(messages), "chat_template_kwargs": dict(chat_template_kwargs)}
        return await self._decode((await self._client.post("/tokenize", body, _Tokens)).tokens)

    async def _decode(self, tokens: list[int]) -> str:
        body = {"model": self._model, "tokens": tokens}
        return (await self._client.post("/detokenize", body, _Prompt)).prompt


class LlamaCppTokenCounter:
    """Counter that renders with `/apply-template` and tokenizes a text with `/tokenize`, as llama.cpp has them."""

    name = "/apply-template and /tokenize"

    def __init__(self, client: HttpClient, chat_template_kwargs: Mapping[str, Any]) -> None:
        self._client = client
        self._chat_template_kwargs = dict(chat_template_kwargs)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        prompt = await self.render(messages, self._chat_template_kwargs)
        return len(await self._tokenize(prompt, add_special=True))

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {**to_prompt(messages), "chat_template_kwargs": dict(chat_template_kwargs)}
        return (await self._client.post("/apply-template", body, _Prompt)).prompt

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens."""
        tokens = await self._tokenize(text, add_special=False)
        if len(tokens) <= max_tokens:
            return text
        decoded = await self._client.post("/detokenize", {"tokens": tokens[:max_tokens]}, _Content)
        return match_prefix(text, decoded.content)

    async def _tokenize(self, content: str, *, add_special: bool) -> list[int]:
        body = {"content": content, "add_special": add_special}
        return (await self._client.post("/tokenize", body, _Tokens)).tokens


class LocalTokenCounter:
    """Counter that uses the tokenizer and chat template of a folder."""

    name = "the tokenizer of a folder"

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        return self._tokenizer.count_tokens(messages)

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens."""
        return self._tokenizer.truncate(text, max_tokens)

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> None:
        """Return None: the server may have another chat template than the folder."""
        return
