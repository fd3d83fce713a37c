"""Counters of a chat's tokens: a server's, in two dialects, or the tokenizer of a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from touche_llm.data.records import Count
from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.request import Message, to_prompt

if TYPE_CHECKING:  # takes a while to load
    from touche_llm.llm.http import HttpClient


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class _Count(msgspec.Struct):
    count: Count


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str


class _Content(msgspec.Struct):
    content: str


class TokenCounter(ABC):
    """Counter of tokens; `name` describes it for people."""

    name: str

    @abstractmethod
    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens.

        The decoded text of a tokenizer that normalises differs from its input, but has about as many characters.
        """
        tokens = await self._encode(text)
        if len(tokens) <= max_tokens:
            return text
        return text[: len((await self._decode(tokens[:max_tokens])).rstrip("\ufffd"))]

    async def _encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        raise NotImplementedError

    async def _decode(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        raise NotImplementedError

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> str | None:
        """Return the text of a prompt with these switches of the chat template; None if the server does not show it."""
        return None


class VllmTokenCounter(TokenCounter):
    """Counter that uses `/tokenize` with messages, as vLLM has it."""

    name = "/tokenize with messages"

    def __init__(self, client: HttpClient, model: str, chat_template_kwargs: Mapping[str, Any]) -> None:
        self._client, self._model = client, model
        self._chat_template_kwargs = dict(chat_template_kwargs)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        body = {"model": self._model, **to_prompt(messages), "chat_template_kwargs": self._chat_template_kwargs}
        return (await self._client.post("/tokenize", body, _Count)).count

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {"model": self._model, **to_prompt(messages), "chat_template_kwargs": dict(chat_template_kwargs)}
        return await self._decode((await self._client.post("/tokenize", body, _Tokens)).tokens)

    async def _encode(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return (await self._client.post("/tokenize", body, _Tokens)).tokens

    async def _decode(self, tokens: list[int]) -> str:
        return (await self._client.post("/detokenize", {"model": self._model, "tokens": tokens}, _Prompt)).prompt


class TextTokenCounter(VllmTokenCounter):
    """Counter of the tokens of a text that is sent without a chat template, given as one message."""

    name = "/tokenize"

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of tokens of a text, with those that the model adds."""
        text = "".join(message.content for message in messages)
        return (await self._client.post("/tokenize", {"model": self._model, "prompt": text}, _Count)).count


class LlamaCppTokenCounter(TokenCounter):
    """Counter that renders with `/apply-template` and tokenizes a text with `/tokenize`, as llama.cpp has them."""

    name = "/apply-template and /tokenize"

    def __init__(self, client: HttpClient, chat_template_kwargs: Mapping[str, Any]) -> None:
        self._client = client
        self._chat_template_kwargs = dict(chat_template_kwargs)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        return len(await self._tokenize(await self.render(messages, self._chat_template_kwargs), is_prompt=True))

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {**to_prompt(messages), "chat_template_kwargs": dict(chat_template_kwargs)}
        return (await self._client.post("/apply-template", body, _Prompt)).prompt

    async def _encode(self, text: str) -> list[int]:
        return await self._tokenize(text, is_prompt=False)

    async def _tokenize(self, text: str, *, is_prompt: bool) -> list[int]:
        """Return the tokens of a text, with those that the model adds to a prompt if it is one."""
        return (await self._client.post("/tokenize", {"content": text, "add_special": is_prompt}, _Tokens)).tokens

    async def _decode(self, tokens: list[int]) -> str:
        return (await self._client.post("/detokenize", {"tokens": tokens}, _Content)).content


class ChatTokenizer(TokenCounter):
    """Counter that uses the tokenizer and chat template of a local folder; a server may have another template."""

    name = "the tokenizer of a folder"

    def __init__(self, folder: Path, chat_template_kwargs: Mapping[str, Any]) -> None:
        """Load the tokenizer; no code from the folder is executed.

        Raises:
            UsageError: The folder holds no tokenizer, or one without a chat template.
            EngineError: The transformers library is not installed.
        """
        if not (folder / "tokenizer_config.json").is_file():
            raise UsageError(f"{folder}: no tokenizer; give a folder with tokenizer_config.json (`engine.tokenizer`)")
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise EngineError(
                "engine.tokenizer: needs transformers, which vLLM brings: pip install transformers"
            ) from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
            )
        except Exception as error:  # depends on the library that reads the file
            raise UsageError(f"{folder}: cannot load the tokenizer: {_describe(error)}") from error
        self._folder = folder
        self._chat_template_kwargs = dict(chat_template_kwargs)
        if not self._tokenizer.chat_template:
            raise UsageError(f"{folder}: the tokenizer has no chat template")

    def count(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included.

        Raises:
            UsageError: The chat template refuses the messages.
        """
        try:
            fields = {"add_generation_prompt": True} | to_prompt(messages)
            text = self._tokenizer.apply_chat_template(
                fields.pop("messages"), tokenize=False, **fields, **self._chat_template_kwargs
            )
        except Exception as error:  # templates can raise anything
            raise UsageError(f"{self._folder}: the chat template refuses the messages: {_describe(error)}") from error
        return len(self._tokenize(text))

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat as `count`."""
        return self.count(messages)

    async def _encode(self, text: str) -> list[int]:
        return self._tokenize(text)

    async def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))

    def _tokenize(self, text: str) -> list[int]:
        # The chat template writes the special tokens. The library would warn about texts longer than the context.
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return tokens
