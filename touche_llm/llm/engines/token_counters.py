"""Counters of a chat's tokens: a server's, in two dialects, or the tokenizer of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from touche_llm.data.json_records import Count
from touche_llm.llm.engines.base import CountingEngine
from touche_llm.llm.engines.http_client import HttpClient
from touche_llm.llm.engines.vllm_common import match_prefix, to_prompt
from touche_llm.llm.request import Message
from touche_llm.llm.tokenizer import ChatTokenizer


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
