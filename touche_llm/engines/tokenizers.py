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
        """Load the tokenizer; no code from the folder is executed.

        Args:
            folder: Folder of the tokenizer.
            chat_template_kwargs: Switches of the chat template.

        Raises:
            EngineError: The library `transformers` is missing.
            UsageError: The folder has no tokenizer with a chat template.
        """
        self._folder = folder
        self._chat_template_kwargs = dict(chat_template_kwargs)
        self._tokenizer = _load_tokenizer(folder)
        if not self._tokenizer.chat_template:
            raise UsageError(f"{folder}: the tokenizer has no chat template")

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat.

        Raises:
            UsageError: The chat template refuses the messages.
        """
        options = {"add_generation_prompt": True} | to_prompt(messages)
        chat = options.pop("messages")
        try:
            text = self._tokenizer.apply_chat_template(
                chat, tokenize=False, **options, **self._chat_template_kwargs
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


def _load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder.

    Raises:
        EngineError: The library `transformers` is missing.
        UsageError: The folder has no tokenizer, or it cannot be loaded.
    """
    if not (folder / "tokenizer_config.json").is_file():
        raise UsageError(
            f"{folder}: no tokenizer; give a folder with tokenizer_config.json (`engine.tokenizer`)"
        )
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
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


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
