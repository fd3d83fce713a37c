"""A run whose rounds are jobs of the real Ray Data, compared with that of a server.

Each round loads the model, which takes about a minute on two cores.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import orjson
import pytest
import yaml

from tests.sample_runs import run_lines
from tests.vllm.conftest import Tell
from tests.vllm.processes import left_in_folder
from tests.vllm.server import CONTEXT, MODEL_NAME, OPTIONS, VENV, vllm_environment
from tests.vllm.test_batch import CLOSE, answers, said
from touche_llm.cli.demo import SAMPLES

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
SAMPLE = SAMPLES / "comparative"
# Their objects are in the topics, so the model only judges: one round.
TOPICS = ["3", "7", "12"]
ON_CPU = {
    "placement_group_config": {"bundles": [{"CPU": 1}]},
    "batch_size": 8,
    "max_concurrent_batches": 1,
}
OPTIONS_OF_ENGINES = {"managed": OPTIONS, "ray": OPTIONS | ON_CPU}


def command(folder: Path, name: str, model: Path) -> list[str]:
    """Return the command of a run with an engine of this name, for files of this name."""
    engine = {
        "name": name,
        "model": str(model),
        "context": CONTEXT,
        "options": OPTIONS_OF_ENGINES[name],
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump({"engine": engine}))
    arguments = [
        "run",
        "--topics",
        SAMPLE / "topics.xml",
        "--corpus",
        SAMPLE / "passages.jsonl",
        "--config",
        config,
    ]
    arguments += [word for topic in TOPICS for word in ("--topic", topic)]
    arguments += ["--temperature", 0.7, "--stance-depth", 0, "--index", folder / "index"]
    arguments += ["--out", folder / f"{name}-out", "--cache", folder / name / "answers.sqlite"]
    return [str(VENV / "bin" / "python"), "-m", "touche_llm", *map(str, arguments)]


def test_an_interrupted_run_leaves_nothing_and_ray_gives_the_answers_of_a_server(
    tiny_model: Path, tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models" / MODEL_NAME
    shutil.copytree(tiny_model, model)
    # Sampling of the model's own, which vLLM's server applies and Ray does not. Without it, answers
    # at a temperature would differ, since no seed is sent.
    settings = model / "generation_config.json"
    settings.write_bytes(orjson.dumps(orjson.loads(settings.read_bytes()) | {"top_k": 1}))
    # Ray gives its workers a low priority, with which they load no model while the machine does
    # other work.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    log = tmp_path / "ray" / "vllm.log"
    interrupt(command(tmp_path, "ray", model), tmp_path, log)
    assert left_in_folder(tmp_path) == []
    assert {path.name for path in log.parent.iterdir()} == {"vllm.log", "answers.sqlite"}
    for name in OPTIONS_OF_ENGINES:
        run = command(tmp_path, name, model)
        started = time.monotonic()
        with vllm_environment():
            done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        assert left_in_folder(tmp_path) == []
        stored = answers(tmp_path / name / "answers.sqlite")
        tell(f"{name}: {len(stored)} answers in {time.monotonic() - started:.0f} s")
    found = answers(tmp_path / "ray" / "answers.sqlite")
    expected = answers(tmp_path / "managed" / "answers.sqlite")
    assert found.keys() == expected.keys() != set()
    for key, answer in found.items():
        assert said(answer) == said(expected[key])
        logprobs = [token.logprob for token in answer.tokens]
        assert logprobs == pytest.approx(
            [token.logprob for token in expected[key].tokens], abs=CLOSE
        )
        assert answer.fingerprint is not None and "-ray-" in answer.fingerprint
    ranked = [
        {
            (line.topic_id, line.document_id, line.stance)
            for line in run_lines(tmp_path / f"{name}-out" / "run.txt")
        }
        for name in OPTIONS_OF_ENGINES
    ]
    assert ranked[0] == ranked[1] != set()


def interrupt(run: list[str], folder: Path, log: Path) -> None:
    """Start a run, and interrupt it while its job loads the model."""
    with vllm_environment():
        process = subprocess.Popen(
            run, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        while not log.exists() or b"Initializing a V1 LLM engine" not in log.read_bytes():
            assert process.poll() is None, "the run ended before it could be interrupted"
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors[-4000:]
