"""Tokenizers of local folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from touche_llm.errors import EngineError, UsageError, lacks_memory
from touche_llm.llm.protocol import TokenCounter
from touche_llm.llm.request import Message, to_prompt


class ChatTokenizer(TokenCounter):
    """Counter that uses the tokenizer and chat template of a local folder."""

    name = "the tokenizer of a folder"

    def __init__(self, folder: Path, chat_template_kwargs: Mapping[str, Any]) -> None:
        """Load the tokenizer; no code from the folder is executed."""
        if not (folder / "tokenizer_config.json").is_file():
            raise UsageError(
                f"{folder}: no tokenizer; give a folder with tokenizer_config.json (`engine.tokenizer`)"
            )
        try:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except ImportError as error:
            if lacks_memory(error):
                raise
            raise EngineError(
                "engine.tokenizer: needs transformers: pip install transformers"
            ) from error
        except Exception as error:  # depends on the library that reads the file
            raise UsageError(f"{folder}: cannot load the tokenizer: {_describe(error)}") from error
        self._folder = folder
        self._chat_template_kwargs = dict(chat_template_kwargs)
        if not self._tokenizer.chat_template:
            raise UsageError(f"{folder}: the tokenizer has no chat template")

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat.

        Raise UsageError if the chat template refuses the messages.
        """
        try:
            fields = {"add_generation_prompt": True} | to_prompt(messages)
            text = self._tokenizer.apply_chat_template(
                fields.pop("messages"), tokenize=False, **fields, **self._chat_template_kwargs
            )
        except Exception as error:  # templates can raise anything
            raise UsageError(
                f"{self._folder}: the chat template refuses the messages: {_describe(error)}"
            ) from error
        return len(await self._encode(text))

    async def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))

    async def _encode(self, text: str) -> list[int]:
        # The chat template writes the special tokens. The library would warn about texts longer
        # than the context.
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return tokens


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
