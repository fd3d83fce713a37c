"""Shared parts of all ways to vLLM: start options, model folder, chat messages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from touche_llm.errors import UsageError
from touche_llm.llm.request import Message

# With white space allowed between tokens, weak models write it endlessly. Only this backend has the switch, and all
# requests must use the same backend.
_STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}


def build_start_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to start vLLM with: those that the program needs, overridden by those of the user.

    If the environment switches torch.compile off, vLLM does not start without `enforce_eager`.
    """
    eager = {"enforce_eager": True} if os.environ.get("TORCHDYNAMO_DISABLE") == "1" else {}
    return {"structured_outputs_config": _STRUCTURED_OUTPUTS, **eager, **options}


def check_model_folder(model: str | None) -> Path:
    """Return the folder of a model that the program serves itself.

    Raises:
        UsageError: No folder is given, or it holds no model.
    """
    if model is None:
        raise UsageError("engine.model: give the folder of the model (for tira also TOUCHE_LLM_MODEL)")
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder}: no model; give a folder with config.json, weights and tokenizer (`engine.model`)")
    return folder


def get_model_name(folder: str | Path) -> str:
    """Return the name under which a folder's model is served: the last part of its path."""
    return Path(os.path.abspath(folder)).name


def to_prompt(messages: Sequence[Message]) -> dict[str, Any]:
    """Return the fields of a request that hold its messages; a last message of the assistant is continued."""
    fields: dict[str, Any] = {"messages": [{"role": message.role, "content": message.content} for message in messages]}
    if messages and messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return fields


def match_prefix(text: str, decoded: str) -> str:
    """Return the prefix of `text` that corresponds to its first tokens, decoded.

    The decoded text of a tokenizer that normalises differs from its input, but has about as many characters.
    """
    return text[: len(decoded.rstrip("\ufffd"))]
