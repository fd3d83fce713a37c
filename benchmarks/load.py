"""A vLLM server under load: its own load generator, its metrics, its prefix cache.

Everything here asks the server for what `touche-llm batch export` has written: the bodies of our own requests.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from touche_llm.errors import DataError, EngineError
from touche_llm.llm.chat import CHAT_PATH
from touche_llm.llm.http import API_KEY_VARIABLE

Body = dict[str, Any]
_SECONDS = 3600.0
_SAMPLE = re.compile(r"^vllm:(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Metrics:
    """What a server counts, over all its engines.

    Attributes:
        queried: prompt tokens that were looked up in the prefix cache, which are all.
        hits: those of them that were found there.
        block: tokens in a block of the cache; only whole blocks are found.
        capacity: tokens that the cache holds.
        requests: finished requests.
        generated: tokens of the answers.
    """

    queried: int
    hits: int
    block: int
    capacity: int
    requests: int
    generated: int


def read_metrics(text: str) -> Metrics:
    """Read the `/metrics` of vLLM; raises DataError where the prefix cache is not among them."""
    sums: dict[str, float] = {}
    blocks: set[int] = set()
    capacity = 0
    for sample in _SAMPLE.finditer(text):
        name = sample["name"]
        if name == "cache_config_info":
            labels = dict(_LABEL.findall(sample["labels"]))
            blocks.add(int(labels["block_size"]))
            # With several engines each row has the blocks of all of them.
            capacity = max(capacity, int(labels["block_size"]) * int(labels["num_gpu_blocks"]))
        else:
            sums[name] = sums.get(name, 0.0) + float(sample["value"])
    try:
        (block,) = blocks
        counters = ("prefix_cache_queries", "prefix_cache_hits", "request_success", "generation_tokens")
        queried, hits, requests, generated = (round(sums[f"{name}_total"]) for name in counters)
    except (KeyError, ValueError) as error:
        raise DataError(
            "/metrics: nothing of one prefix cache in it; is it vLLM, and are its statistics on?"
        ) from error
    return Metrics(queried, hits, block, capacity, requests, generated)


def metrics(url: str) -> Metrics:
    """The metrics of the server at `url`."""
    with urllib.request.urlopen(_request(f"{url}/metrics"), timeout=30) as response:
        return read_metrics(response.read().decode())


def reset_prefix_cache(url: str) -> bool:
    """Empty the server's prefix cache; False where the server does not offer that (VLLM_SERVER_DEV_MODE=1 does)."""
    try:
        with urllib.request.urlopen(_request(f"{url}/reset_prefix_cache", b""), timeout=60) as response:
            content = response.read()
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return False
        raise
    if content and orjson.loads(content).get("success") is False:
        raise EngineError(f"{url}: the prefix cache could not be emptied: requests are under way")
    return True


def possible_hits(prompts: Iterable[Sequence[int]], block: int) -> int:
    """Prompt tokens that a prefix cache without an end serves when the prompts come one after the other.

    Of each prompt that is the longest beginning, in whole blocks, that an earlier prompt had too, without the prompt's
    last token, which vLLM always computes (vllm/v1/core/kv_cache_manager.py, get_computed_blocks).

    Args:
        prompts: the token ids of each, in the order of sending.
        block: tokens in a block.
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


async def token_ids(url: str, bodies: Sequence[Body], concurrency: int = 16) -> list[list[int]]:
    """The token ids of each prompt, chat template included, as the server makes them."""
    kept = ("model", "messages", "chat_template_kwargs")
    requests = [orjson.dumps({name: body[name] for name in kept}) for body in bodies]
    return [orjson.loads(reply)["tokens"] for reply in await _posted(f"{url}/tokenize", requests, concurrency)]


def load_generator(url: str, bodies: Sequence[Body], concurrency: int, salt: str, folder: Path) -> float:
    """Seconds that `vllm bench serve` takes for the same requests in the same order, as it measures them itself.

    Messages, sampling, schema and log-probabilities are those of the bodies. One thing differs: the generator has the
    answers streamed, which costs the server a reply for each token, and the generator the reading of each.

    Args:
        url: the server's.
        bodies: Bodies of the requests, which differ only in their messages.
        concurrency: requests at a time.
        salt: no block of the prefix cache is shared with requests of another salt.
        folder: for its input and its result.
    """
    same = _without_messages(bodies[0])
    if any(_without_messages(body) != same for body in bodies):
        raise DataError("the load generator sends one schema and one sampling with all requests; these have several")
    prompts, result = folder / "prompts.jsonl", folder / "result.json"
    lines = (orjson.dumps({"prompt": body["messages"]}, option=orjson.OPT_APPEND_NEWLINE) for body in bodies)
    prompts.write_bytes(b"".join(lines))
    result.unlink(missing_ok=True)
    model, most = same.pop("model"), same.pop("max_tokens")
    extra = {**same, "max_completion_tokens": most, "cache_salt": salt}
    command = [vllm_command(), "bench", "serve", "--backend", "openai-chat", "--endpoint", CHAT_PATH]
    command += ["--base-url", url, "--model", model, "--served-model-name", model, "--skip-tokenizer-init"]
    command += ["--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template", "--disable-shuffle"]
    command += ["--num-prompts", str(len(bodies)), "--max-concurrency", str(concurrency), "--disable-tqdm"]
    command += ["--ready-check-timeout-sec", "0", "--extra-body", orjson.dumps(extra).decode()]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", result.name]
    key = os.environ.get(API_KEY_VARIABLE)
    environment = os.environ | ({"OPENAI_API_KEY": key} if key else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode or not result.exists():
        raise EngineError(f"`vllm bench serve` ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return read_result(result, len(bodies))


def read_result(file: Path, requests: int) -> float:
    """Seconds in the result file of `vllm bench serve`; raises EngineError unless all requests were answered."""
    try:
        result = orjson.loads(file.read_bytes())
        completed, seconds = int(result["completed"]), float(result["duration"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: not the result of `vllm bench serve`: {error!r}") from error
    if completed != requests or seconds <= 0.0:
        raise EngineError(f"{file}: the load generator had {completed} of {requests} requests answered")
    return seconds


def server_seconds() -> float:
    """Processor seconds of the servers that this process has started, with all their descendants (Linux)."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    servers = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which may hold anything: state, parent, group, session, … (proc(5)).
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        number, parent, session = int(stat.parent.name), int(fields[1]), int(fields[3])
        ticks[number] = int(fields[11]) + int(fields[12])
        children[parent].append(number)
        # A server begins a session of its own; its engine may begin another one.
        if parent == os.getpid() and session == number:
            servers.append(number)
    total = 0
    while servers:
        number = servers.pop()
        total += ticks.get(number, 0)
        servers += children[number]
    return total / os.sysconf("SC_CLK_TCK")


def vllm_command() -> str:
    """The path of `vllm`: beside this Python or on PATH, as the program itself looks for it."""
    found = shutil.which("vllm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise EngineError("no `vllm` beside this Python or on PATH: pip install 'vllm[bench]>=0.32'")
    return found


def _without_messages(body: Mapping[str, Any]) -> Body:
    return {name: value for name, value in body.items() if name != "messages"}


def _headers() -> dict[str, str]:
    key = os.environ.get(API_KEY_VARIABLE)
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def _request(address: str, data: bytes | None = None) -> urllib.request.Request:
    return urllib.request.Request(address, data, _headers())


async def _posted(address: str, bodies: Sequence[bytes], concurrency: int) -> list[bytes]:
    """The replies, in order. Raises EngineError for one that is no answer."""
    replies = [b""] * len(bodies)
    waiting = enumerate(bodies)

    async def work(session: aiohttp.ClientSession) -> None:
        for number, body in waiting:
            async with session.post(address, data=body) as response:
                content = await response.read()
                if response.status != 200:
                    raise EngineError(f"{address}: HTTP {response.status}: {content[:300].decode(errors='replace')}")
                replies[number] = content

    connector, timeout = aiohttp.TCPConnector(limit=concurrency), aiohttp.ClientTimeout(total=_SECONDS)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, headers=_headers()) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(concurrency):
            group.create_task(work(session))
    return replies
