"""A model's tokeniser without the model: counts and cuts as a server of the model would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.engines.vllm_common import chat, match_prefix
from touche_llm.llm.request import Message


class ChatTokenizer:
    """The tokeniser and chat template of a local folder."""

    def __init__(self, folder: Path, chat_template_kwargs: Mapping[str, Any]) -> None:
        """Load it; no code of the folder is run.

        Args:
            folder: a model's, or as much of it as its tokeniser and chat template need.
            chat_template_kwargs: the chat template's switches.

        Raises:
            UsageError: the folder holds no tokeniser, or one without a chat template.
            EngineError: the library for it is not installed.
        """
        if not (folder / "tokenizer_config.json").is_file():
            raise UsageError(
                f"{folder}: no tokeniser: a folder with tokenizer_config.json is needed (--tokenizer FOLDER)"
            )
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise EngineError("--tokenizer needs transformers, which vLLM brings: pip install transformers") from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
            )
        except Exception as error:  # of whatever library has to do with the file
            raise UsageError(f"{folder}: the tokeniser cannot be loaded: {_said(error)}") from error
        self._folder = folder
        self._switches = dict(chat_template_kwargs)
        if not self._tokenizer.chat_template:
            raise UsageError(f"{folder}: the tokeniser has no chat template")

    def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Number of prompt tokens of a chat, template included; raises UsageError where the template refuses it."""
        try:
            text = self._tokenizer.apply_chat_template(
                chat(messages), tokenize=False, add_generation_prompt=True, **self._switches
            )
        except Exception as error:  # a template may raise anything
            raise UsageError(f"{self._folder}: the chat template does not take the messages: {_said(error)}") from error
        return len(self._encoded(text))

    def truncate(self, text: str, max_tokens: int) -> str:
        """The beginning of `text` that has about this many tokens; always a prefix of it."""
        found = self._encoded(text)
        return text if len(found) <= max_tokens else match_prefix(text, self._tokenizer.decode(found[:max_tokens]))

    def _encoded(self, text: str) -> list[int]:
        # The chat template writes the special tokens; longer texts than the model takes are what is looked for.
        encoded: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return encoded


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
