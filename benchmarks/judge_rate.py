"""The judge stage against a vLLM server, by turns with vLLM's own load generator.

Shared by `benchmarks.serving` and `benchmarks.gpu`. Each turn begins with an empty prefix cache and an empty answer
cache; `touche-llm judge` runs in a process of its own, as for users, once for each setting of `--concurrency`. The load
generator sends as many requests at a time as the first setting allows, and has its answers streamed, which costs it and
the server more than a whole reply does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import orjson
import yaml

from benchmarks.figures import Figure
from benchmarks.load import (
    Body,
    load_generator,
    metrics,
    possible_hits,
    reset_prefix_cache,
    token_ids,
)
from tests.vllm.server import OPTIONS, READY_SECONDS, ROOT, VENV, vllm_environment
from touche_llm.errors import UsageError
from touche_llm.llm.managed import serve

OURS = "judge stage, --concurrency"
GENERATOR = "vllm bench serve"
# Enough that what a server does once, as compiling the grammar, is done.
_WARM_UP = 8
_READY_ON_GPU = 3600.0


@dataclass
class Measured:
    """What came of all turns.

    Attributes:
        rates: requests a second of each client, turn by turn.
        requests: of one turn.
        prompt_tokens: of one turn.
        output_tokens: of one turn of the judge stage.
        hits: prompt tokens that the prefix cache served in one turn of the judge stage, the fewest of all its turns.
        possible: those that it could have served.
        capacity: tokens that it holds.
        load: the load averages of the machine at the begin of each turn.
    """

    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    hits: int = sys.maxsize
    possible: int = 0
    capacity: int = 0
    load: list[float] = field(default_factory=list)


@contextmanager
def vllm_settings(cpu: bool) -> Iterator[None]:
    """The environment for vLLM: as it is, or that of the CPU build in `.venv-vllm`; the prefix cache can be emptied."""
    with ExitStack() as stack:
        if cpu:
            stack.enter_context(vllm_environment())
        stack.enter_context(patch.dict(os.environ, {"VLLM_SERVER_DEV_MODE": "1"}))
        yield


@contextmanager
def served(model: Path, options: Mapping[str, Any], log: Path, cpu: bool) -> Iterator[str]:
    """Serve a model with the program's own function, within `vllm_settings`; yields the base URL."""
    asked = (OPTIONS if cpu else {}) | dict(options)
    with asyncio.Runner() as runner:
        serving = serve(model, asked, log, ready_within=READY_SECONDS if cpu else _READY_ON_GPU)
        url = runner.run(serving.__aenter__())
        try:
            yield url
        finally:
            runner.run(serving.__aexit__(None, None, None))


def random_model(folder: Path, cpu: bool, **settings: Any) -> None:
    """Write a model with `benchmarks.random_model`, in the Python that vLLM is installed for."""
    python = VENV / "bin" / "python" if cpu else Path(sys.executable)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    subprocess.run([python, "-m", "benchmarks.random_model", folder, *flags], check=True, cwd=ROOT)


def measure(
    work: Path,
    topics: Path,
    corpus: Path,
    url: str,
    *,
    limit: int,
    depth: int,
    concurrency: Sequence[int],
    rounds: int,
) -> Measured:
    """Judge the best passages of the comparative task's topics, and have the load generator send the same requests.

    Args:
        work: an empty folder.
        topics: of the comparative task.
        corpus: its passages.
        url: of a server; where its prefix cache cannot be emptied, only one round is measured, and only where nothing
            of the kind was sent before are its figures those of a cold cache.
        limit: topics.
        depth: passages for each.
        concurrency: Requests at a time of the judge stage; the load generator sends as many as the first value.
        rounds: how often each client has its turn; the order changes from round to round.

    Raises:
        UsageError: more than one round of a server whose prefix cache cannot be emptied.
    """
    model, context = served_model(url)
    bodies = _prepare(work, topics, corpus, limit, depth, model, context)
    resettable = reset_prefix_cache(url)
    if resettable:
        load_generator(url, bodies[:_WARM_UP], _WARM_UP, uuid4().hex, work)
    elif rounds > 1:
        raise UsageError(
            f"{url}: its prefix cache cannot be emptied: start it with VLLM_SERVER_DEV_MODE=1, or ask for one round"
        )
    found = Measured(requests=len(bodies), capacity=metrics(url).capacity)

    def ours(setting: int) -> float:
        before = metrics(url)
        stage = judge_candidates(work, url, model, setting)
        after = metrics(url)
        sent = stage["requests"]
        if sent["requests"] != len(bodies):
            raise UsageError(
                f"{url}: {sent['requests']} requests were sent instead of {len(bodies)}: {stage['failures']}"
            )
        found.prompt_tokens, found.output_tokens = sent["prompt_tokens"], sent["completion_tokens"]
        found.hits = min(found.hits, after.hits - before.hits)
        return float(stage["seconds"])

    at_once = concurrency[0]
    clients: list[tuple[str, Callable[[], float]]] = [
        *((f"{OURS} {setting}", partial(ours, setting)) for setting in concurrency),
        (GENERATOR, lambda: load_generator(url, bodies, at_once, uuid4().hex, work)),
    ]
    for number in range(rounds):
        turn = number % len(clients)
        for name, client in clients[turn:] + clients[:turn]:
            if resettable:
                reset_prefix_cache(url)
            found.load.append(os.getloadavg()[0])
            found.rates[name].append(len(bodies) / client())
            print(f"  round {number + 1}, {name}: {found.rates[name][-1]:.1f} requests/s", file=sys.stderr, flush=True)
    found.possible = possible_hits(asyncio.run(token_ids(url, bodies)), metrics(url).block)
    return found


def figures(found: Measured) -> list[Figure]:
    """The rows of the table."""
    settings = [name for name in found.rates if name.startswith(OURS)]
    turns = statistics.median(found.rates[settings[0]]) / found.requests  # a second
    served, possible = found.hits / found.prompt_tokens, found.possible / found.prompt_tokens
    of_possible = found.hits / found.possible if found.possible else None
    return [
        *(Figure(f"{name}, {found.requests:,} requests", _rate(found.rates[name])) for name in settings),
        Figure("prompt tokens", f"{found.prompt_tokens * turns:,.0f} tokens/s"),
        Figure("output tokens", f"{found.output_tokens * turns:,.0f} tokens/s"),
        *(_share(found, name) for name in settings),
        Figure("prompt tokens from the prefix cache", f"{served:.2%}", f"possible {possible:.2%}"),
        Figure("share of what it could serve", "" if of_possible is None else f"{of_possible:.2%}"),
        Figure("prefix cache holds", f"{found.capacity:,} tokens"),
        Figure("load average when each turn began", f"{min(found.load):.1f} to {max(found.load):.1f}"),
    ]


def _share(found: Measured, client: str) -> Figure:
    """The rate of one of our clients as a share of the load generator's in the same round."""
    rates = found.rates[GENERATOR]
    shares = [mine / its for mine, its in zip(found.rates[client], rates, strict=True)]
    return Figure(f"{client}: share of the rate of `{GENERATOR}`", format_range(shares, ".1%"), _rate(rates))


def _rate(values: Sequence[float]) -> str:
    return f"{format_range(values, '.1f')} requests/s"


def format_range(values: Sequence[float], form: str) -> str:
    """The median and, of several, the extremes."""
    middle = format(statistics.median(values), form)
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


def own_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def served_model(url: str) -> tuple[str, int]:
    """Name and context of the one model that is served."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
        (model,) = orjson.loads(response.read())["data"]
    return str(model["id"]), int(model["max_model_len"])


def retrieve_candidates(work: Path, topics: Path, corpus: Path, limit: int, depth: int) -> None:
    """Make the candidates of `work/run`."""
    where = ["--task", "comparative", "--topics", topics, "--corpus", corpus, "--index", work / "index"]
    _call("retrieve", *where, "--limit-topics", limit, "--depth", depth, "--out", work / "run")


def _prepare(work: Path, topics: Path, corpus: Path, limit: int, depth: int, model: str, context: int) -> list[Body]:
    """Make the candidates, and write what the judge stage will ask."""
    retrieve_candidates(work, topics, corpus, limit, depth)
    requests = work / "requests.jsonl"
    asked = ["--model", model, "--context", context, "--cache", work / "export.sqlite"]
    _call("batch", "export", "judge", *asked, "--out", work / "run", "-o", requests)
    return [orjson.loads(line)["body"] for line in requests.read_bytes().splitlines()]


def judge_candidates(work: Path, url: str, model: str, concurrency: int, *options: Any) -> dict[str, Any]:
    """Judge with an empty answer cache and further options; returns what the metadata says of the stage."""
    run = work / "run"
    with tempfile.TemporaryDirectory(dir=work) as name:
        server = ["--base-url", url, "--model", model, "--concurrency", concurrency, *options]
        _call("judge", *server, "--overwrite", "--cache", Path(name) / "answers.sqlite", "--out", run)
    stage: dict[str, Any] = yaml.safe_load((run / "ir-metadata.yml").read_text())["stages"]["judge"]
    return stage


def _call(*arguments: Any) -> None:
    """Run a command of the program in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "touche_llm", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr + done.stdout)
