"""Reasoning on a real vLLM: a random model, whose thoughts never end by themselves, on the real topics if available."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chat_templates import DEEPSEEK_R1, read_template
from tests.vllm.command import touche
from tests.vllm.real_data import TaskInput
from tests.vllm.server import MODEL_NAME, finished_requests, vllm_server
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment
from touche_llm.llm.answer import Answer
from touche_llm.llm.cache import Cache

pytestmark = pytest.mark.vllm


def thinking_model(tiny_model: Path, folder: Path, template: str) -> Path:
    model = folder / MODEL_NAME
    shutil.copytree(tiny_model, model)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template}))
    (model / "chat_template.jinja").write_text(template)
    return model


@pytest.fixture
def data(inputs: Callable[[str], TaskInput]) -> TaskInput:
    return inputs("comparative")


def arguments(data: TaskInput, url: str, out: Path) -> list[object]:
    command = [
        "run",
        *data.options,
        "--model",
        MODEL_NAME,
        "--base-url",
        url,
        "--out",
        out,
        "--depth",
        2,
    ]
    command += ["--thinking", "judge=48", "--stance-depth", 0]
    return [*command, "--cache", out.parent / "answers.sqlite"]


def stored(folder: Path) -> list[Answer]:
    with Cache(folder / "answers.sqlite") as cache:
        assert cache.find("unusable") == []
        return [cache.read(entry, Answer) for entry in cache.find("answer")]


@pytest.mark.nightly
def test_a_template_that_drops_thoughts_ends_the_run_in_one_line(
    data: TaskInput, tiny_model: Path, tmp_path: Path
) -> None:
    model = thinking_model(tiny_model, tmp_path / "model", read_template(DEEPSEEK_R1))
    with vllm_server(model, tmp_path / "server.log") as url:
        done = touche(*arguments(data, url, tmp_path / "out"), "--limit-topics", 1, code=1)
        assert "--chat-template" in done.stderr.splitlines()[-1]
        before = finished_requests(url)
        row = row_of(
            touche("doctor", url, "--thinking", "judge=48", "--format", "json", code=1).stdout
        )
        assert finished_requests(url) > before
    assert (row["is_ok"], row["is_blocking"]) == (False, True)


def row_of(card: str) -> dict[str, object]:
    (row,) = (row for row in json.loads(card) if row["name"] == "thinking")
    assert isinstance(row, dict)
    return row


def test_a_thought_before_each_answer(data: TaskInput, vllm_url: str, tmp_path: Path) -> None:
    command = [
        "run",
        *data.options,
        "--model",
        MODEL_NAME,
        "--limit-topics",
        1,
        "--depth",
        3,
        "--stance-depth",
        0,
    ]
    command += ["--thinking", "judge=24"]
    command += ["--cache", tmp_path / "answers.sqlite"]
    (said,) = json.loads(
        touche(*command, "--out", tmp_path / "out", "--dry-run", "--format", "json").stdout
    )
    touche(*command, "--base-url", vllm_url, "--out", tmp_path / "out")
    judgments = read_records(tmp_path / "out" / "judgments.jsonl", Judgment, "judgments")
    assert [len(judgment.thought_keys) for judgment in judgments] == [1, 1, 1]
    answers = stored(tmp_path)
    assert len(answers) == said["requests"] == 6
    assert max(answer.completion_tokens for answer in answers if not answer.tokens) <= 24
    touche(
        *command,
        "--cache-mode",
        "replay",
        "--base-url",
        "http://127.0.0.1:1",
        "--out",
        tmp_path / "again",
    )
    assert (tmp_path / "again" / "run.txt").read_bytes() == (
        tmp_path / "out" / "run.txt"
    ).read_bytes()
