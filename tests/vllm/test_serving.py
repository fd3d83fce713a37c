"""Adapters, copies and speculation of a real vLLM: a run needs the model's name alone, and records the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.vllm.command import touche
from tests.vllm.real_data import TaskInput
from tests.vllm.server import MODEL_NAME, make_model, vllm_server
from touche_llm.data.io import read_records
from touche_llm.data.records import Failure

# Each needs a server of its own.
pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("model", "options", "reported"),
    [
        ("mine", {"enable_lora": True, "max_lora_rank": 8}, {"base model": MODEL_NAME}),
        (
            MODEL_NAME,
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}},
            {},
        ),
        (MODEL_NAME, {"data_parallel_size": 2}, {}),
    ],
)
def test_a_run_records_how_its_model_is_served(
    inputs: Callable[[str], TaskInput],
    tiny_model: Path,
    tmp_path: Path,
    model: str,
    options: dict[str, Any],
    reported: dict[str, str],
) -> None:
    if model != MODEL_NAME:
        options = {**options, "lora_modules": f"{model}={make_model(tmp_path, 'adapter')}"}
    command = ["run", *inputs("comparative").options, "--model", model, "--depth", 4, "--limit-topics", 5]
    command += ["--cache", tmp_path / "answers.sqlite", "--stance-depth", 0]
    asked, replayed = tmp_path / "asked", tmp_path / "replayed"
    with vllm_server(tiny_model, tmp_path / "server.log", **options) as url:
        touche(*command, "--base-url", url, "--out", asked)
    assert read_records(asked / "failures.jsonl", Failure, "failures") == []
    judge = yaml.safe_load((asked / "ir-metadata.yml").read_text())["stages"]["judge"]
    assert (judge["model"], judge["context"]) == (model, 2048)
    assert judge["serving"].items() >= reported.items()
    touche(*command, "--base-url", NOWHERE, "--cache-mode", "replay", "--out", replayed)
    assert (replayed / "run.txt").read_bytes() == (asked / "run.txt").read_bytes()
