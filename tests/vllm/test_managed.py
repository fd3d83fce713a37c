"""A run with a server that the program starts and stops, the real one, interrupted and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.vllm.processes import left_in_folder
from tests.vllm.server import CONTEXT, OPTIONS, vllm_environment
from touche_llm.cli.demo import SAMPLES
from touche_llm.llm.cache import Cache

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
SAMPLE = SAMPLES / "comparative"


def test_an_interrupted_run_ends_its_server_and_is_resumed(
    tiny_model: Path, tmp_path: Path
) -> None:
    engine = {
        "name": "managed",
        "model": str(tiny_model),
        "context": CONTEXT,
        "options": OPTIONS,
        "concurrency": 2,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"engine": engine}))
    arguments = ["run", "--topics", SAMPLE / "topics.xml", "--corpus", SAMPLE / "passages.jsonl"]
    arguments += [
        "--config",
        "config.yaml",
        "--out",
        "out",
        "--cache",
        "answers.sqlite",
        "--index",
        "index",
    ]
    command = [sys.executable, "-m", "touche_llm", *map(str, arguments)]
    with vllm_environment():
        process = subprocess.Popen(
            command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        while stored(tmp_path / "answers.sqlite") < 20:
            assert process.poll() is None, "the run ended before it could be interrupted"
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors[-4000:]
        assert left_in_folder(tmp_path) == []
        before = stored(tmp_path / "answers.sqlite")

        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert left_in_folder(tmp_path) == []
    stages = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]
    assert stages["judge"]["llm"]["counts"]["cache_hits"] == before


def stored(path: Path) -> int:
    if not path.exists():
        return 0
    with Cache(path) as cache:
        return len(cache.find("answer"))
