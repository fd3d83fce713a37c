"""A vLLM server with a random model, its counters, and those who send it requests: for `gpu` and `peers`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import orjson

from benchmarks.processes import list_processes, read_stages, run_command
from tests.vllm.server import MODEL_NAME, OPTIONS, READY_SECONDS, ROOT, VENV, vllm_environment
from touche_llm.engines.chat import CHAT_PATH
from touche_llm.engines.managed import serve
from touche_llm.errors import EngineError
from touche_llm.text.quoting import MODEL_KEY_VARIABLE

Body = dict[str, Any]
_READY_ON_GPU = 3600.0
# vLLM draws the weights itself.
RANDOM_WEIGHTS = {"load_format": "dummy"}
_COUNTER = re.compile(r"^vllm:(\w+)_total(?:\{.*\})? (\S+)$", re.MULTILINE)
_CACHE = re.compile(
    r'^vllm:cache_config_info\{.*?block_size="(\d+)".*num_gpu_blocks="(\d+)"', re.MULTILINE
)


@contextmanager
def vllm_settings(cpu: bool) -> Iterator[None]:
    """The environment for vLLM: as it is, or that of the CPU build in `.venv-vllm`.

    The prefix cache can be emptied.
    """
    with ExitStack() as stack:
        if cpu:
            stack.enter_context(vllm_environment())
        stack.enter_context(patch.dict(os.environ, {"VLLM_SERVER_DEV_MODE": "1"}))
        os.environ.pop(MODEL_KEY_VARIABLE, None)
        yield


@contextmanager
def served(model: Path, options: Mapping[str, Any], log: Path, cpu: bool) -> Iterator[str]:
    """Serve a model with the program's own function, within `vllm_settings`.

    Yields the base URL.
    """
    given = (OPTIONS if cpu else {}) | dict(options)
    with asyncio.Runner() as runner:
        serving = serve(model, given, log)
        url = runner.run(
            asyncio.wait_for(serving.__aenter__(), READY_SECONDS if cpu else _READY_ON_GPU)
        )
        try:
            yield url
        finally:
            runner.run(serving.__aexit__(None, None, None))


def write_random_model(folder: Path, size: str, cpu: bool) -> None:
    """Write a model with `benchmarks.random_model`, in the Python that vLLM is installed for."""
    python = VENV / "bin" / "python" if cpu else Path(sys.executable)
    subprocess.run([python, "-m", "benchmarks.random_model", folder, size], check=True, cwd=ROOT)


@contextmanager
def served_tiny(work: Path) -> Iterator[str]:
    """Serve the tiny random model on the CPU, with a context that no passage exceeds.

    Yields the base URL.
    """
    write_random_model(work / MODEL_NAME, "tiny", cpu=True)
    with served(work / MODEL_NAME, RANDOM_WEIGHTS, work / "server.log", cpu=True) as url:
        yield url


def served_model(url: str) -> tuple[str, int]:
    """Name and context of the one model that is served."""
    (model,) = orjson.loads(fetch(f"{url}/v1/models"))["data"]
    return str(model["id"]), int(model["max_model_len"])


def count(url: str) -> Counter[str]:
    """What the server has counted over all its engines, such as `prefix_cache_hits` (tokens) and `request_success`."""
    counts: Counter[str] = Counter()
    for name, value in _COUNTER.findall(fetch(f"{url}/metrics").decode()):
        counts[name] += round(float(value))
    return counts


def read_cache_size(url: str) -> tuple[int, int]:
    """Return the tokens of a block of the prefix cache, of which only whole ones are found, and of all of it."""
    blocks = _CACHE.findall(fetch(f"{url}/metrics").decode())
    # With several engines each row has the blocks of all of them.
    return int(blocks[0][0]), max(int(size) * int(number) for size, number in blocks)


def reset(url: str) -> None:
    """Empty the server's prefix cache."""
    content = fetch(f"{url}/reset_prefix_cache", b"")
    if content and orjson.loads(content).get("success") is False:
        raise EngineError(f"{url}: the prefix cache could not be emptied: requests are under way")


def run_load_generator(url: str, bodies: Sequence[Body], concurrency: int, folder: Path) -> float:
    """Return the seconds that `vllm bench serve` takes for the same requests in the same order.

    Messages, sampling, schema and log-probabilities are those of the bodies. One thing differs: the
    generator has the answers streamed, which costs the server a reply for each token, and the
    generator the reading of each. A salt keeps them from blocks of the prefix cache that others
    have filled.
    """
    prompts, result = folder / "prompts.jsonl", folder / "result.json"
    lines = (
        orjson.dumps({"prompt": body["messages"]}, option=orjson.OPT_APPEND_NEWLINE)
        for body in bodies
    )
    prompts.write_bytes(b"".join(lines))
    result.unlink(missing_ok=True)
    same = {name: value for name, value in bodies[0].items() if name != "messages"}
    model, most = same.pop("model"), same.pop("max_tokens")
    extra = {**same, "max_completion_tokens": most, "cache_salt": uuid4().hex}
    beside = Path(sys.executable).with_name("vllm")
    command = [
        str(beside) if beside.exists() else "vllm",
        "bench",
        "serve",
        "--backend",
        "openai-chat",
    ]
    command += [
        "--endpoint",
        CHAT_PATH,
        "--base-url",
        url,
        "--model",
        model,
        "--served-model-name",
        model,
    ]
    command += ["--skip-tokenizer-init", "--dataset-name", "custom", "--dataset-path", str(prompts)]
    command += [
        "--skip-chat-template",
        "--disable-shuffle",
        "--disable-tqdm",
        "--ready-check-timeout-sec",
        "0",
    ]
    command += ["--num-prompts", str(len(bodies)), "--max-concurrency", str(concurrency)]
    command += ["--extra-body", orjson.dumps(extra).decode()]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", result.name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not result.exists():
        raise EngineError(
            f"`vllm bench serve` ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}"
        )
    found = orjson.loads(result.read_bytes())
    if found["completed"] != len(bodies):
        raise EngineError(
            f"the load generator had {found['completed']} of {len(bodies)} requests answered"
        )
    return float(found["duration"])


def server_seconds() -> float:
    """Processor seconds of the processes that this process has started and that still run, the servers (Linux)."""
    ticks = 0
    for process in list_processes(os.getpid()):
        if process != os.getpid():
            # After the name, which may hold anything: state, parent, group, session, … (proc(5)).
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def fetch(address: str, body: bytes | None = None) -> bytes:
    """Return the reply of a server; a body is posted."""
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(address, body, headers), timeout=60
    ) as response:
        content: bytes = response.read()
    return content


def retrieve_candidates(work: Path, topics: Path, corpus: Path, limit: int, depth: int) -> None:
    """Make the candidates of `work/run`."""
    where = [
        "--task",
        "comparative",
        "--topics",
        topics,
        "--corpus",
        corpus,
        "--index",
        work / "index",
    ]
    run_command(
        "retrieve", *where, "--limit-topics", limit, "--depth", depth, "--out", work / "run"
    )


def judge_candidates(work: Path, url: str, model: str, concurrency: int) -> dict[str, Any]:
    """Judge with an empty answer cache; returns what the metadata says of the stage."""
    run = work / "run"
    with tempfile.TemporaryDirectory(dir=work) as name:
        server = ["--base-url", url, "--model", model, "--concurrency", concurrency]
        run_command(
            "judge", *server, "--overwrite", "--cache", Path(name) / "answers.sqlite", "--out", run
        )
    stage: dict[str, Any] = read_stages(run)["judge"]
    return stage
