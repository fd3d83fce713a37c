"""The judge stage against vLLM, by turns with vLLM's own load generator: requests and tokens a second, prefix cache.

    python -m benchmarks.gpu [--size 8B] [--passages 20000] [--topics 50] [--depth 200] [--rounds 2]
                             [--concurrency 256 512] [--option tensor_parallel_size=2]
    python -m benchmarks.gpu --model FOLDER_OR_NAME [--option …]
    python -m benchmarks.gpu --cpu --depth 20 --rounds 3 --concurrency 64 256

Serves a model of random weights with the sizes of a real one (`benchmarks.random_model`; what it
costs to serve depends on nothing else) and judges synthetic passages for synthetic topics.
`--model` takes a real model instead, a folder or a name that vLLM downloads. Any option of `vllm
serve` goes in with `--option`. Run it with the Python that vLLM is installed for (`pip install -e
'.[vllm]' pandas`).

`--cpu` takes the CPU build in `.venv-vllm` (`make vllm` installs it), the tiny model, and the
comparative task's real topics and passages in `../shared/data`, or the project's sample where they
are not there. Client and server share the cores there.

The judge stage runs once for each value of `--concurrency`. The load generator sends as many
requests at a time as the first value says, and streams the answers. Each turn begins with an empty
prefix cache and an empty answer cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import yaml

from benchmarks.figures import Figure, at_least, format_range, parse_sizes, show
from benchmarks.processes import run_command
from benchmarks.random_model import SHAPES
from benchmarks.synthetic import write_passages, write_topics
from benchmarks.vllm_load import (
    RANDOM_WEIGHTS,
    Body,
    count,
    fetch,
    judge_candidates,
    read_cache_size,
    reset,
    retrieve_candidates,
    run_load_generator,
    served,
    served_model,
    served_tiny,
    vllm_settings,
    write_random_model,
)
from tests.vllm.real_data import input_of
from touche_llm.errors import EngineError, ToucheError

OURS, GENERATOR = "judge stage, --concurrency", "vllm bench serve"
# Enough that what a server does once, as compiling the grammar, is done.
_WARM_UP = 8


def measure(
    work: Path, topics: Path, corpus: Path, url: str, options: argparse.Namespace
) -> list[Figure]:
    """Judge the best passages of each topic, and have the load generator send the same requests.

    Return the rows.
    """
    model, context = served_model(url)
    retrieve_candidates(work, topics, corpus, options.topics, options.depth)
    bodies = export_requests(work, model, context)
    run_load_generator(url, bodies[:_WARM_UP], _WARM_UP, work)
    rates: dict[str, list[float]] = defaultdict(list)
    hits: list[int] = []
    load: list[float] = []
    sent: dict[str, int] = {}

    def judge(concurrency: int) -> float:
        before = count(url)["prefix_cache_hits"]
        stage = judge_candidates(work, url, model, concurrency)
        sent.update(stage["llm"]["counts"])
        if sent["requests"] != len(bodies):
            raise EngineError(
                f"{url}: {sent['requests']} requests, not {len(bodies)}, were sent: {stage['llm']['failures']}"
            )
        hits.append(count(url)["prefix_cache_hits"] - before)
        return float(stage["seconds"])

    clients: list[tuple[str, Callable[[], float]]] = [
        *((f"{OURS} {setting}", partial(judge, setting)) for setting in options.concurrency),
        (GENERATOR, lambda: run_load_generator(url, bodies, options.concurrency[0], work)),
    ]
    for number in range(options.rounds):
        turn = number % len(clients)
        for name, client in clients[turn:] + clients[:turn]:
            reset(url)
            load.append(os.getloadavg()[0])
            rates[name].append(len(bodies) / client())
            print(
                f"  round {number + 1}, {name}: {rates[name][-1]:.1f} requests/s",
                file=sys.stderr,
                flush=True,
            )
    block, capacity = read_cache_size(url)
    possible, prompts = (
        count_possible_hits(list_token_ids(url, bodies), block),
        sent["prompt_tokens"],
    )
    settings = [name for name, _ in clients[:-1]]
    turns = statistics.median(rates[settings[0]]) / len(bodies)  # a second
    return [
        *(Figure(f"{name}, {len(bodies):,} requests", _rate(rates[name])) for name in settings),
        Figure("prompt tokens", f"{prompts * turns:,.0f} tokens/s"),
        Figure("output tokens", f"{sent['completion_tokens'] * turns:,.0f} tokens/s"),
        *(_share(name, rates[name], rates[GENERATOR]) for name in settings),
        # The fewest of all turns.
        Figure(
            "prompt tokens from the prefix cache",
            f"{min(hits) / prompts:.2%}",
            f"possible {possible / prompts:.2%}",
        ),
        Figure("prefix cache holds", f"{capacity:,} tokens"),
        Figure("load average when each turn began", f"{min(load):.1f} to {max(load):.1f}"),
    ]


def _share(client: str, rates: Sequence[float], others: Sequence[float]) -> Figure:
    """The rate of one of our clients as a share of the load generator's in the same round."""
    shares = [mine / its for mine, its in zip(rates, others, strict=True)]
    return Figure(
        f"{client}: share of the rate of `{GENERATOR}`", format_range(shares, ".1%"), _rate(others)
    )


def _rate(values: Sequence[float]) -> str:
    return f"{format_range(values, '.1f')} requests/s"


def export_requests(work: Path, model: str, context: int) -> list[Body]:
    """Return the bodies of the requests that the judge stage sends about the candidates of `work/run`."""
    run = work / "run"
    options = ["--model", model, "--context", context, "--cache", work / "export.sqlite"]
    run_command("batch", "export", "judge", *options, "--out", run)
    return [
        orjson.loads(line)["body"] for line in (run / "requests.jsonl").read_bytes().splitlines()
    ]


def list_token_ids(url: str, bodies: Sequence[Body]) -> list[list[int]]:
    """The token ids of each prompt, chat template included, as the server makes them."""

    def tokenize(body: Body) -> list[int]:
        kept = {name: body[name] for name in ("model", "messages", "chat_template_kwargs")}
        ids: list[int] = orjson.loads(fetch(f"{url}/tokenize", orjson.dumps(kept)))["tokens"]
        return ids

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(tokenize, bodies))


def count_possible_hits(prompts: Iterable[Sequence[int]], block: int) -> int:
    """Prompt tokens that a prefix cache without an end serves when the prompts come one after the other.

    Of each prompt that is the longest beginning, in whole blocks, that an earlier prompt had too,
    without the prompt's last token, which vLLM always computes (vllm/v1/core/kv_cache_manager.py,
    get_computed_blocks).
    """
    known: set[int] = set()
    hits = 0
    for prompt in prompts:
        beginning, found = 0, True
        for end in range(block, len(prompt) + 1, block):
            beginning = hash((beginning, tuple(prompt[end - block : end])))
            found = found and beginning in known and end < len(prompt)
            hits += block * found
            known.add(beginning)
    return hits


def list_gpus() -> Iterator[Figure]:
    """Yield the memory in use of each GPU, from nvidia-smi; nothing if it is not installed."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,memory.used,memory.total", "--format=csv,noheader"]
        for line in subprocess.run(
            query, check=True, capture_output=True, text=True
        ).stdout.splitlines():
            name, used, memory = line.split(", ")
            yield Figure(f"memory in use of {name}", f"{used} of {memory}")


def parse_option(text: str) -> tuple[str, Any]:
    """An option of vLLM, as `tensor_parallel_size=2`; the value is read as YAML."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(
            f"{text!r}: name=value is expected, as tensor_parallel_size=2"
        )
    return name, yaml.safe_load(value)


@contextmanager
def serving(options: argparse.Namespace, work: Path) -> Iterator[tuple[str, str]]:
    """Serve the model of the options; yields the URL and what to call the model."""
    if options.cpu:
        with served_tiny(work) as url:
            yield url, "tiny random model on the CPU"
    else:
        given, model, title = dict(options.option), options.model, str(options.model)
        if model is None:
            model, title = work / "random", f"random Llama of {options.size}"
            write_random_model(model, options.size, cpu=False)
            given = RANDOM_WEIGHTS | given
        with served(model, given, work / "server.log", cpu=False) as url:
            yield url, title + "".join(f", {name}={value}" for name, value in options.option)


def main() -> None:
    """Make or take a model, serve it, measure all rounds and print the table."""
    parser = parse_sizes(
        __doc__, topics=(1, 50), depth=(1, 200), passages=(1, 20_000), rounds=(1, 2)
    )
    parser.add_argument("--size", choices=list(SHAPES), default="8B")
    parser.add_argument(
        "--model", type=Path, help="a real model: a folder, or a name for vLLM to download"
    )
    parser.add_argument(
        "--option", type=parse_option, action="append", default=[], help="of vllm serve; repeatable"
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="the tiny model and real passages on the CPU build of vLLM",
    )
    parser.add_argument("--concurrency", type=at_least(1), nargs="+", default=[256])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, vllm_settings(options.cpu):
        work = Path(name)
        topics, corpus, source = (
            work / "topics.xml",
            work / "passages.jsonl.gz",
            "synthetic passages",
        )
        if options.cpu:
            given = input_of("comparative", work)
            topics, corpus = given.topics, given.corpus
            source = "real passages" if given.is_real else "the sample"
        else:
            write_topics(topics, options.topics)
            write_passages(corpus, options.passages)
        with serving(options, work) as (url, title):
            rows = [*measure(work, topics, corpus, url, options), *list_gpus()]
    how = f"{source}, depth {options.depth}, {options.rounds} rounds, median (range)"
    show(f"Judge stage against vLLM: {title}, {how}", rows)


if __name__ == "__main__":
    try:
        main()
    except ToucheError as error:
        sys.exit(f"error: {error}")
