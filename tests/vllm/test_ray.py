"""Ray Data with vLLM, the real ones on the CPU, against a managed server: the same cache and run, nothing left behind.

Each data set loads the model anew, which takes up to a minute on two cores: so one run, interrupted and gone on with.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
import yaml

from tests.vllm.conftest import Tell
from tests.vllm.processes import left_in_session
from tests.vllm.server import CONTEXT, OPTIONS, VENV, vllm_environment
from touche_llm.cli.demo import SAMPLES
from touche_llm.llm.cache import Cache

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not list(VENV.glob("lib/python*/site-packages/ray")), reason="Ray is not in .venv-vllm: run `make test-vllm`"
    ),
]
SAMPLE = SAMPLES / "comparative"
# Their objects are in the topics: nothing but judgments is asked.
TOPICS = ["3", "7", "12"]
IN_RAY = {"placement_group_config": {"bundles": [{"CPU": 1}]}, "batch_size": 8, "max_concurrent_batches": 1}
# Where a prompt is divided depends on what else arrives, and moves the last digit of some log-probabilities.
WHOLE_PROMPTS = {"enable_chunked_prefill": False, "enable_prefix_caching": False, "max_num_batched_tokens": CONTEXT}
FILES = ("run.txt", "judgments.jsonl", "failures.jsonl")


def command(python: Path | str, folder: Path, out: str, engine: dict[str, object], *more: str) -> list[str]:
    config = folder / f"{out}.yaml"
    model = {"model": str(folder / "models" / "tiny"), "context": CONTEXT}
    config.write_text(yaml.safe_dump({"engine": model | engine}))
    arguments = ["run", "--topics", SAMPLE / "topics.xml", "--corpus", SAMPLE / "passages.jsonl", "--config", config]
    arguments += [word for topic in TOPICS for word in ("--topic", topic)]
    arguments += ["--temperature", 0.7, "--stance-depth", 0, "--index", folder / "index"]
    arguments += ["--out", folder / out, "--cache", folder / f"{out}.sqlite", *more]
    return [str(python), "-m", "touche_llm", *map(str, arguments)]


def finish(command: list[str], folder: Path, **variables: str) -> None:
    with vllm_environment():
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.startswith("run: ")


def stored(path: Path) -> int:
    if not path.exists():
        return 0
    with Cache(path) as cache:
        return len(cache.find("answer"))


def test_an_interrupted_run_under_ray_goes_on_and_is_that_of_a_server(
    tiny_model: Path, tmp_path: Path, tell: Tell
) -> None:
    shutil.copytree(tiny_model, tmp_path / "models" / "tiny")
    # Settings of the model's own, which Ray passes by.
    settings = tmp_path / "models" / "tiny" / "generation_config.json"
    settings.write_bytes(orjson.dumps(orjson.loads(settings.read_bytes()) | {"top_k": 2}))
    one_thread = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    under_ray: dict[str, object] = {"name": "ray", "options": OPTIONS | WHOLE_PROMPTS | IN_RAY}
    python = VENV / "bin" / "python"

    asked = command(python, tmp_path, "ray", under_ray)
    with vllm_environment():
        process = subprocess.Popen(
            asked,
            env=os.environ | one_thread,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while stored(tmp_path / "ray.sqlite") < 20:
            if process.poll() is not None:
                pytest.fail(f"ended before it could be interrupted: {process.communicate()[1][-4000:]}")
            time.sleep(0.2)
        children = drivers(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said[-4000:]
    assert "interrupted; every answer so far is in" in said
    assert len(children) == 1
    assert left_in_session(children[0]) == []  # it leads a session of its own, and Ray's processes stay in it
    before = stored(tmp_path / "ray.sqlite")

    started = time.monotonic()
    finish(asked, tmp_path, **one_thread)
    metadata = yaml.safe_load((tmp_path / "ray" / "ir-metadata.yml").read_text())
    requests = metadata["stages"]["judge"]["requests"]
    seconds = time.monotonic() - started
    tell(f"Ray: {before} answers before the interruption, {requests['asked']} in {seconds:.0f} s after it")
    assert requests["cache_hits"] == before
    assert 0 < before < before + requests["asked"]

    options = OPTIONS | WHOLE_PROMPTS | {"fingerprint_mode": "none"}
    finish(command(python, tmp_path, "managed", {"name": "managed", "options": options}), tmp_path, **one_thread)
    for name in ("ray", "managed"):
        with Cache(tmp_path / f"{name}.sqlite") as cache:
            cache.export_cassette(tmp_path / f"{name}.jsonl")
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "managed.jsonl").read_bytes()
    for name in FILES:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "managed" / name).read_bytes()

    # And where there is neither Ray nor vLLM.
    shutil.copy(tmp_path / "ray.sqlite", tmp_path / "replayed.sqlite")
    finish(command(sys.executable, tmp_path, "replayed", under_ray, "--cache-mode", "replay"), tmp_path)
    for name in FILES:
        assert (tmp_path / "replayed" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()


def drivers(parent: int) -> list[int]:
    """The processes that drive Ray for a run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == parent and b"touche_llm.llm.ray_driver" in arguments:
                found.append(int(entry.name))
    return found
