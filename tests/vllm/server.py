"""A real vLLM on the CPU with the tiny random model, as a context manager."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from touche_llm.llm.request import Message

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-vllm"
MODEL_NAME = "tiny"
READY_SECONDS = 400.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default takes much of the machine's memory
    "TORCHDYNAMO_DISABLE": "1",  # else the first request with log-probabilities compiles C++
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",  # seconds; the default of 5 resets pooled connections
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def make_model(folder: Path) -> Path:
    """Write the tiny model; returns its folder."""
    model = folder / MODEL_NAME
    script = Path(__file__).with_name("make_tiny_model.py")
    subprocess.run([VENV / "bin" / "python", script, model], check=True, capture_output=True)
    return model


@contextmanager
def vllm_server(model: Path, log: Path) -> Iterator[str]:
    """Serve the model on a free port of this machine; yields the base URL and stops the server at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(VENV / "bin" / "vllm"), "serve", str(model), "--served-model-name", MODEL_NAME]
    command += ["--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-model-len", "2048", "--dtype", "float32", "--enforce-eager"]
    # Without this setting a random model writes blanks without end; a trained one does not.
    structured = json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})
    command += ["--disable-uvicorn-access-log", "--structured-outputs-config", structured]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} | ENVIRONMENT
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process, log)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"vLLM did not start:\n{log.read_text(errors='replace')[-4000:]}") from None
            time.sleep(0.5)


def finished_requests(url: str) -> int:
    """How many requests the server has finished, from its own metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    name = "vllm:request_success_total{"
    return round(
        sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and 'reason="abort"' not in line)
    )


def token_ids(url: str, messages: tuple[Message, ...]) -> list[int]:
    """The prompt's token ids, chat template included, as the server makes them."""
    body = {"model": MODEL_NAME, "messages": [{"role": each.role, "content": each.content} for each in messages]}
    request = urllib.request.Request(f"{url}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        ids: list[int] = json.load(response)["tokens"]
    return ids
