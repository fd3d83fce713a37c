"""A real vLLM on the CPU with the tiny random model, as a context manager."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from touche_llm.engines.managed import serve
from touche_llm.llm.request import Message

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-vllm"
MODEL_NAME = "tiny"
READY_SECONDS = 400.0
CONTEXT = 2048
# The CPU's results are the same for every batch in float32 alone.
OPTIONS = {"dtype": "float32", "enforce_eager": True}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default takes much of the machine's memory
    "TORCHDYNAMO_DISABLE": "1",  # else the first request with log-probabilities compiles C++
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def make_model(folder: Path, kind: str = "chat") -> Path:
    """Write the tiny model, or one of another kind, which is then its name; returns its folder."""
    model = folder / (MODEL_NAME if kind == "chat" else kind)
    script = Path(__file__).with_name("make_tiny_model.py")
    subprocess.run([VENV / "bin" / "python", script, model, kind], check=True, capture_output=True)
    return model


@contextmanager
def vllm_environment(environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[None]:
    """Make the environment of this process vLLM's, with the programs of its installation and this project's modules."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    # The installation is shared by all clones, so none is installed in it.
    paths = {"PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with patch.dict(os.environ, {**kept, **environment, **paths}, clear=True):
        yield


@contextmanager
def vllm_server(
    model: Path,
    log: Path,
    environment: Mapping[str, str] = ENVIRONMENT,
    context: int = CONTEXT,
    ready_within: float = READY_SECONDS,
    **options: Any,
) -> Iterator[str]:
    """Serve the model, named after its folder, with the program's own function.

    Yields the base URL.
    """
    serving = serve(model, OPTIONS | options, log, context=context)
    with vllm_environment(environment), asyncio.Runner() as runner:
        url = runner.run(asyncio.wait_for(serving.__aenter__(), ready_within))
        try:
            yield url
        finally:
            runner.run(serving.__aexit__(None, None, None))


def finished_requests(url: str) -> int:
    """How many requests the server has finished, from its own metrics."""
    return round(
        sum(
            value
            for labels, value in _metric(url, "request_success")
            if 'reason="abort"' not in labels
        )
    )


def prefix_cache_hits(url: str) -> int:
    """How many prompt tokens the server has taken from its prefix cache, from its own metrics."""
    return round(sum(value for _, value in _metric(url, "prefix_cache_hits")))


def _metric(url: str, name: str) -> list[tuple[str, float]]:
    """The values of a counter, each with its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(f"vllm:{name}_total{{"))
    return [(labels, float(value)) for labels, value in found]


def token_ids(url: str, messages: tuple[Message, ...]) -> list[int]:
    """The prompt's token ids, chat template included, as the server makes them."""
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": each.role, "content": each.content} for each in messages],
    }
    request = urllib.request.Request(
        f"{url}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        ids: list[int] = json.load(response)["tokens"]
    return ids
