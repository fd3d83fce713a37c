"""Trying a prompt against a real vLLM, and watching it being changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.command import touche
from tests.vllm.server import finished_requests
from touche_llm.cli.demo import SAMPLES
from touche_llm.tasks import prompts_folder

pytestmark = pytest.mark.vllm
SAMPLE = SAMPLES / "comparative"
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
ABOUT = ["--topic", "3", "--doc", "sample-heating-01___3", "--doc", "sample-heating-02___1"]


def arguments(folder: Path, *more: str) -> list[str]:
    places = ["--index", str(folder / "index"), "--cache", str(folder / "answers.sqlite")]
    return ["prompts", *more, *ABOUT, *DATA, *places]


def rows(folder: Path, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        touche(*arguments(folder, *more), "--format", "json").stdout
    )
    return found


def test_a_prompt_is_tried_and_counted_as_the_server_counts_it(
    vllm_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    template = tmp_path / "mine.jinja"
    text = (prompts_folder() / "comparative" / "judge.jinja").read_text()
    template.write_text(text)
    asks = ["try", str(template), "--base-url", vllm_url]
    before = finished_requests(vllm_url)
    found = rows(tmp_path, *asks)
    assert [row["field"] for row in found] == ["relevance", "quality", "stance"] * 2
    for row in found:
        assert sum(json.loads(row["probabilities"]).values()) == pytest.approx(1.0)
        assert row["cached"] is False
    after = finished_requests(vllm_url)
    assert after > before
    assert rows(tmp_path, *asks) == [{**row, "cached": True} for row in found]
    assert finished_requests(vllm_url) == after
