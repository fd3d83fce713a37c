"""Tokenizer of a local folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from touche_llm.engines.tokenizers import ChatTokenizer
from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.request import Message


async def test_a_tokenizer_is_loaded_from_a_folder_alone_and_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="engine.tokenizer") as caught:
        ChatTokenizer(tmp_path, {})
    assert caught.value.location == str(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EngineError, match="pip install transformers"):
        ChatTokenizer(tmp_path, {})
    given: dict[str, Any] = {}

    class Loaded:
        chat_template: str | None = "…"

        def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
            given["template"] = options
            return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<answer>"

        def encode(self, text: str, **options: Any) -> list[int]:
            assert options == {"add_special_tokens": False, "verbose": False}
            return list(text.encode())

        def decode(self, tokens: list[int]) -> str:
            return bytes(tokens).decode(errors="replace")

    def load(folder: str, **options: Any) -> Loaded:
        given["load"] = (folder, options)
        return Loaded()

    fake = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=load))
    monkeypatch.setitem(sys.modules, "transformers", fake)
    tokenizer = ChatTokenizer(tmp_path, {"thinking": False})
    assert await tokenizer.count_tokens((Message("system", "ab"), Message("user", "c"))) == len(
        "<system>ab<user>c<answer>"
    )
    assert (await tokenizer.truncate("aéb", 2), await tokenizer.truncate("aéb", 9)) == ("a", "aéb")
    assert given["load"][0] == str(tmp_path)
    assert (
        given["load"][1] | {"local_files_only": True, "trust_remote_code": False}
        == given["load"][1]
    )
    assert given["template"] == {
        "tokenize": False,
        "add_generation_prompt": True,
        "thinking": False,
    }
    monkeypatch.setattr(Loaded, "chat_template", None)
    with pytest.raises(UsageError) as caught:
        ChatTokenizer(tmp_path, {})
    assert caught.value.location == str(tmp_path)
