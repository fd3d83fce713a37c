"""Requests a second of the judge stage, from template to stored judgment, where the engine costs nothing.

    python -m benchmarks.judging [--topics 50] [--depth 1000] [--passages 50000]

Synthetic passages are judged for synthetic topics by engines that answer at once: one in process,
with one core for all, and a server on a core of its own, over HTTP; their answers have the size of
a vLLM's, with twenty alternatives for each token. The engine in process gives completions that were
read beforehand, so that what reading a reply costs is in the figures of HTTP alone; 64 requests are
under way at a time. Then the same again from the cache. Memory is looked at after a tenth of the
requests and at the end.

The figures say what this program costs, and nothing about a model.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import random
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from benchmarks.figures import Figure, parse_sizes, peak_gib, show
from benchmarks.processes import run_alone, run_command
from benchmarks.synthetic import write_passages, write_topics
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.corpus.store import DocumentStore
from touche_llm.data.records import Candidate, decode_json
from touche_llm.data.runs.writing import write_candidates
from touche_llm.data.topics.reading import read_topics
from touche_llm.engines.chat import ChatReply, ChatServer, read_completion
from touche_llm.engines.dialects import make_vllm_dialect
from touche_llm.llm.answer_schema import AnswerForm, Layout
from touche_llm.llm.cache import Cache
from touche_llm.llm.counts import Counts
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import Completion, Counter, EngineInfo
from touche_llm.llm.request import Request
from touche_llm.llm.settings import SamplingConfig
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import CANDIDATES, RunDirectory
from touche_llm.runs.stages import judge_stage

_FACTS = EngineInfo(model="none", revision="", context=32768, overhead=32, engine="answers at once")
_ALTERNATIVES = 8
# So many different answers, and words from which most of their alternatives are drawn, as from a
# vocabulary.
_ANSWERS, _WORDS = 512, 50_000
PARTS = ("in process", "HTTP", "cache")


def replies() -> list[bytes]:
    """Chat completions as a vLLM sends them for the judge prompt: a token for each word and sign."""
    generator = random.Random(0)
    found = []
    for _ in range(_ANSWERS):
        pieces = ["[", str(generator.randrange(4)), ",", str(generator.randrange(4))]
        pieces += [',"', generator.choice("YN"), '","', generator.choice("FSN"), '"]', ""]
        tokens = [_sent(piece, generator) for piece in pieces]
        body = {
            "id": f"chatcmpl-{generator.randrange(2**64):016x}",
            "object": "chat.completion",
            "created": 1_800_000_000,
            "model": _FACTS.model,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "".join(pieces),
                        "refusal": None,
                        "tool_calls": [],
                    },
                    "logprobs": {"content": tokens},
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
            "usage": {"prompt_tokens": 900, "total_tokens": 912, "completion_tokens": len(pieces)},
        }
        found.append(orjson.dumps(body))
    return found


def _sent(piece: str, generator: random.Random) -> dict[str, Any]:
    # What may stand at its place: other grades or labels, and words that the grammar rules out.
    others = [other for other in "0123YNFS" if other != piece]
    others += [f"word{generator.randrange(_WORDS)}" for _ in range(_ALTERNATIVES)]
    weights = [math.exp(-place * generator.uniform(0.5, 2.0)) for place in range(_ALTERNATIVES)]
    top = [
        {"token": text, "logprob": math.log(weight / sum(weights)), "bytes": list(text.encode())}
        for text, weight in zip([piece, *others], weights, strict=False)
    ]
    return {**top[0], "top_logprobs": top}


_LAYOUT = Layout(AnswerForm.LETTERS, ("relevance", "quality", "position", "stance"))


class _AtOnce:
    """An engine in process that has its answers ready."""

    def __init__(self) -> None:
        found = [read_completion(decode_json(each, ChatReply), _LAYOUT) for each in replies()]
        self._answers: Iterator[Completion] = cycle(found)

    async def complete(self, request: Request) -> Completion:
        return next(self._answers)

    @property
    def counter(self) -> Counter:
        raise AssertionError("no document is too long here")


def serve(port: multiprocessing.Queue[int]) -> None:
    """A server with prepared answers; reports its port."""
    answers = cycle(replies())

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        return web.Response(body=next(answers), content_type="application/json")

    async def run() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


class _Watch:
    """Progress that samples time and memory."""

    def __init__(self) -> None:
        self.done = 0
        self.mib: list[float] = []

    def warn(self, message: str) -> None:
        pass

    @contextmanager
    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> Iterator[Callable[[], None]]:
        marks = {total // 10, total}

        def step() -> None:
            self.done += 1
            if self.done in marks:
                self.mib.append(_resident_mib())

        yield step


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def prepare(folder: Path, topics: int, depth: int, passages: int) -> None:
    """Write corpus, topics, configuration and candidates into the folder, and store the corpus."""
    write_passages(folder / "passages.jsonl", passages)
    write_topics(folder / "topics.xml", topics)
    config = _config(folder, folder / "cold.sqlite", depth)
    run_command("index", "--corpus", config.corpus, "--index", config.index)
    generator = random.Random(0)
    with DocumentStore(folder / "index") as store:
        rankings = []
        for topic in read_topics(folder / "topics.xml"):
            rows = generator.sample(range(len(store)), depth)
            ids = store.get_ids(rows)
            rankings.append(
                [
                    Candidate(topic.id, each, rank, -float(rank))
                    for rank, each in enumerate(ids, start=1)
                ]
            )
    for part in PARTS:
        (folder / part).mkdir()
        write_candidates(folder / part / CANDIDATES, rankings, "benchmark")


def _config(folder: Path, cache: Path, depth: int) -> Config:
    given: dict[str, Any] = {
        "topics": folder / "topics.xml",
        "corpus": folder / "passages.jsonl",
        "depth": depth,
    }
    given |= {
        "index": folder / "index",
        "cache.file": cache,
        "stance.depth": 0,
        "engine.concurrency": 64,
    }
    return load_config(None, given)


def judge(part: str, folder: Path, depth: int) -> dict[str, Any]:
    """Judge all candidates in this process; returns the seconds, requests and memory."""
    config = _config(folder, folder / ("HTTP.sqlite" if part == "HTTP" else "cold.sqlite"), depth)
    watch, cores = _Watch(), os.sched_getaffinity(0)
    engine: _AtOnce | ChatServer = _AtOnce()
    if part == "HTTP":
        context = multiprocessing.get_context("spawn")
        port: multiprocessing.Queue[int] = context.Queue()
        server = context.Process(target=serve, args=(port,), daemon=True)
        server.start()
        assert server.pid is not None
        url, concurrency = f"http://127.0.0.1:{port.get(timeout=60)}", config.engine.concurrency
        engine = ChatServer(
            url, concurrency=concurrency, request_timeout=60, chat_template_kwargs={}
        )
        engine.dialect = make_vllm_dialect(engine, _FACTS.model)
        os.sched_setaffinity(server.pid, {max(cores)})
    os.sched_setaffinity(0, {min(cores)})

    async def run() -> Counts:
        async with AsyncExitStack() as stack:
            if isinstance(engine, ChatServer):
                await stack.enter_async_context(engine)
            cache = stack.enter_context(Cache(config.cache.file))
            model = ModelClient(
                engine_info=_FACTS, engine=engine, cache=cache, sampling=SamplingConfig()
            )
            run_context = stack.enter_context(RunContext(config, watch, model))
            await judge_stage(run_context, RunDirectory(folder / part))
            return model.counts

    started, processor = time.perf_counter(), time.process_time()
    counts = asyncio.run(run())
    return {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - processor,
        "done": watch.done,
        "requests": counts.requests,
        "hits": counts.cache_hits,
        "mib": watch.mib,
    }


def main() -> None:
    """Measure each part in a process of its own."""
    options = parse_sizes(
        __doc__, topics=(1, 50), depth=(1, 1000), passages=(1, 50_000)
    ).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options.topics, options.depth, options.passages)
        found = {part: run_alone(judge, part, folder, options.depth)[0] for part in PARTS}
    figures = []
    for part in ("in process", "HTTP"):
        rate = found[part]["requests"] / found[part]["seconds"]
        where = (
            "engine in process, all on one core"
            if part == "in process"
            else "engine behind HTTP on another core"
        )
        figures.append(Figure(where, f"{rate:,.0f} requests/s"))
        spent = found[part]["processor"] / found[part]["requests"]
        figures.append(Figure("  processor time of a request", f"{spent * 1e6:,.0f} µs"))
        early, late = found[part]["mib"]
        figures.append(
            Figure("  memory after a tenth, at the end", f"{early:,.0f} MiB, {late:,.0f} MiB")
        )
    warm = found["cache"]
    assert warm["requests"] == 0 and warm["hits"] == warm["done"]
    figures.append(Figure(f"{warm['hits']:,} judgments from the cache", f"{warm['seconds']:.1f} s"))
    figures.append(Figure("most memory of a process", f"{peak_gib():.2f} GiB"))
    # What machines are worth at the moment differs by a factor of two.
    seconds = min(timeit.repeat(partial(orjson.loads, replies()[0]), number=100, repeat=20)) / 100
    figures.append(
        Figure("for the machine's speed now: orjson reads one reply", f"{seconds * 1e6:,.0f} µs")
    )
    show(f"The judge stage: {options.topics} topics of {options.depth:,} documents", figures)


if __name__ == "__main__":
    main()
