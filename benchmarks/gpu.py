"""The judge stage against vLLM on a GPU: requests and tokens a second, beside vLLM's own load generator.

    python -m benchmarks.gpu [--architecture llama] [--size 8B] [--vocabulary 128256] [--folder FOLDER]
                             [--topics 50] [--depth 200] [--passages 20000] [--rounds 2] [--concurrency 256]
                             [--option tensor_parallel_size=2] [--option data_parallel_size=4]
    python -m benchmarks.gpu --model FOLDER_OR_NAME [--option …]
    python -m benchmarks.gpu --url http://127.0.0.1:8000
    python -m benchmarks.gpu --cpu --size tiny --vocabulary 4096 --topics 2 --depth 10 --passages 500 --rounds 1

Makes a model of random weights with the sizes of a real one (`benchmarks.random_model`; what it costs to serve
depends on nothing else), serves it and judges synthetic passages for synthetic topics. `--model` takes a real model
instead, a folder or a name that vLLM downloads, and `--url` a server that runs already: with VLLM_SERVER_DEV_MODE=1,
so that its prefix cache can be emptied between the clients, or else for one round. Any option of `vllm serve` goes in
with `--option`. Run it with the Python that vLLM is installed for (`pip install -e '.[vllm]' pandas`); `--cpu` takes
the CPU build in `.venv-vllm`, as the tests do, and leaves the rows of the GPU empty.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import Figure, show
from benchmarks.judge_rate import Measured, figures, measure, random_model, served, vllm_settings
from benchmarks.random_model import ARCHITECTURES, SHAPES, is_complete
from benchmarks.sizes import at_least
from benchmarks.synthetic import write_passages, write_topics
from touche_llm.errors import ToucheError, UsageError

_GIB = 2**30


def gpus() -> list[tuple[str, float, float]]:
    """Name, memory in use and memory of each GPU, in GiB, from nvidia-smi; empty if it is not installed."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=name,memory.used,memory.total", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = (line.rsplit(",", 2) for line in lines if line.strip())
    return [(name.strip(), float(used) / 1024, float(memory) / 1024) for name, used, memory in rows]


def weights_gib(model: Path) -> float | None:
    """The size of a folder's weights; None where the model is no folder of this machine."""
    return sum(file.stat().st_size for file in model.glob("*.safetensors")) / _GIB if model.is_dir() else None


def option(text: str) -> tuple[str, Any]:
    """An option of vLLM, as `tensor_parallel_size=2`; the value is read as YAML."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r}: name=value is expected, as tensor_parallel_size=2")
    return name, yaml.safe_load(value)


def main() -> None:
    """Make or take a model, serve it, measure all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="llama")
    parser.add_argument("--size", choices=list(SHAPES), default="8B")
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--folder", type=Path, help="keep the random model here, and take it where it is there already")
    parser.add_argument("--model", type=Path, help="a real model: a folder, or a name for vLLM to download")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--option", type=option, action="append", default=[], help="of vllm serve; repeatable")
    parser.add_argument("--cpu", action="store_true", help="the CPU build of vLLM in .venv-vllm")
    parser.add_argument("--topics", type=at_least(1), default=50)
    parser.add_argument("--depth", type=at_least(1), default=200)
    parser.add_argument("--passages", type=at_least(1), default=20_000)
    parser.add_argument("--rounds", type=at_least(1), default=2)
    parser.add_argument("--concurrency", type=at_least(1), nargs="+", default=[256])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, vllm_settings(options.cpu):
        work = Path(name)
        write_topics(work / "topics.xml", options.topics)
        write_passages(work / "passages.jsonl.gz", options.passages)
        if options.url:
            model, title = None, options.url
            found, devices = _measured(options, work, options.url.rstrip("/").removesuffix("/v1"))
        else:
            model, title = _model(options, work)
            with served(model, dict(options.option), work / "server.log", options.cpu) as url:
                found, devices = _measured(options, work, url)
        rows = [*figures(found), *_memory(model, devices)]
    given = "".join(f", {name}={value}" for name, value in options.option)
    show(f"Judge stage against vLLM: {title}{given}, median (range)", rows)


def _measured(options: argparse.Namespace, work: Path, url: str) -> tuple[Measured, list[tuple[str, float, float]]]:
    """The figures of all rounds, and the GPUs while the server runs."""
    found = measure(
        work,
        work / "topics.xml",
        work / "passages.jsonl.gz",
        url,
        limit=options.topics,
        depth=options.depth,
        concurrency=options.concurrency,
        rounds=options.rounds,
    )
    return found, gpus()


def _model(options: argparse.Namespace, work: Path) -> tuple[Path, str]:
    """The folder or name of the model, and what to call it."""
    if options.model:
        return options.model, str(options.model)
    folder: Path = options.folder or work / "random"
    if not is_complete(folder):
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder}: holds something else than a random model that is complete: remove it")
        settings = {"architecture": options.architecture, "size": options.size, "vocabulary": options.vocabulary}
        random_model(folder, options.cpu, **settings)
    return folder, f"random {options.architecture} of {options.size}"


def _memory(model: Path | None, devices: list[tuple[str, float, float]]) -> list[Figure]:
    size = weights_gib(model) if model else None
    used = sum(used for _, used, _ in devices)
    memory = sum(memory for *_, memory in devices)
    return [
        Figure("weights", f"{size:.2f} GiB" if size is not None else ""),
        Figure("GPU", f"{len(devices)} x {devices[0][0]}" if devices else ""),
        Figure("GPU memory in use", f"{used:.1f} of {memory:.1f} GiB" if devices else ""),
    ]


if __name__ == "__main__":
    try:
        main()
    except ToucheError as error:
        # A wrong model or option: what the server said is in the message, and where in this program does not matter.
        sys.exit(f"error: {error}")
