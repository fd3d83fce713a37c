"""The same pairs through touche-llm and RankLLM on one real vLLM on the CPU, by turns.

    python -m benchmarks.peers --rank-llm-python FOLDER/bin/python [--topics 25] [--depth 20]
    [--rounds 3]

The comparative task's real topics and passages in `../shared/data`, or the project's sample where
they are not there, are judged one by one over HTTP by a tiny random model. Both programs send as
many requests at a time, with their own prompts, in a process of their own, with an empty prefix
cache and without stored answers. Requests and tokens are the server's own counts, the start-up
check of touche-llm included; memory is the peak of the process. Needs `.venv-vllm` (`make vllm`
installs it) and an environment with RankLLM: a commit of its repository, since its release 0.25.7
has no pointwise reranker over HTTP. Without one, the error says how to make it.

What differs: RankLLM reads yes or no from one free token, touche-llm grades, position and stance
from an answer whose form is enforced. RankLLM shows at most 300 words of a passage, touche-llm all
of it. Both run at temperature 0: above it a seed is sent, with which vLLM's CPU engine dies if a
prompt is prefilled in chunks ("CPU Generator does not use offset"). Unreadable is an answer of
RankLLM with neither yes nor no among the 20 most probable tokens.

Not raced: llm-rankers (0.0.2; github.com/ielab/llm-rankers). Its pointwise methods run T5 in their
own process; the others know OpenAI's models only, wait for one answer at a time, and call what
`openai` removed in 1.0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, format_range, parse_sizes, show
from benchmarks.processes import Ended, read_stages, run_program
from benchmarks.vllm_load import (
    count,
    reset,
    retrieve_candidates,
    served_tiny,
    server_seconds,
    vllm_settings,
)
from tests.vllm.real_data import input_of
from tests.vllm.server import MODEL_NAME
from touche_llm.corpus.store import DocumentStore
from touche_llm.data.runs.reading import read_candidates
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import EngineError, ToucheError, UsageError
from touche_llm.runs.directory import CANDIDATES

_MAKE = (
    "make an environment with `python3.11 -m venv FOLDER && FOLDER/bin/pip install "
    "'rank-llm[openai,local] @ git+https://github.com/castorini/rank_llm@1b3cabb'`, "
    "and give `--rank-llm-python FOLDER/bin/python`"
)
_DRIVER = Path(__file__).with_name("rank_llm_driver.py")
# Tokens that RankLLM fills at most.
_CONTEXT = 16_000
_CONCURRENCY = 64
# Exit codes of `touche-llm judge` with and without failed documents.
_DONE = (0, 3)
_WALL, _WALL_WITH_START = "wall, s", "wall with the start of the program, s"
# What a program made of the pairs and what the server counted meanwhile, by name.
Turn = dict[str, float]


def run_ours(work: Path, url: str) -> tuple[Ended, Turn]:
    """Judge with touche-llm and an empty answer cache."""
    run = work / "run"
    with tempfile.TemporaryDirectory(dir=work) as cache:
        command = [sys.executable, "-m", "touche_llm", "judge", "--overwrite", "--out", run]
        command += ["--base-url", url, "--model", MODEL_NAME, "--concurrency", _CONCURRENCY]
        command += [
            "--set",
            "sampling.resample_temperature=0",
            "--cache",
            Path(cache) / "answers.sqlite",
        ]
        ended = run_program([str(part) for part in command], work, os.environ)
    if ended.code not in _DONE:
        raise EngineError(
            f"touche-llm judge: exit code {ended.code}: {ended.errors.strip()[-2000:]}"
        )
    facts = read_stages(run)["judge"]
    failures = dict(facts["llm"]["failures"])
    lost = sum(failures.pop(kind, 0) for kind in ("server_error", "timeout"))
    return ended, {
        _WALL: facts["seconds"],
        "answers lost": lost,
        "answers unreadable": sum(failures.values()),
    }


def run_peer(work: Path, url: str, python: Path, requests: Path) -> tuple[Ended, Turn]:
    """Rerank with RankLLM and the tiny model, in RankLLM's environment, without this project's modules."""
    # The model's relative folder, from which the tokenizer comes, is also the name under which it
    # is served.
    options = {"requests_file": str(requests), "model_name": MODEL_NAME, "base_url": f"{url}/v1"}
    given = json.dumps(options | {"context_size": _CONTEXT, "batch_size": _CONCURRENCY})
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = run_program([str(python), "-P", str(_DRIVER), given], work, variables)
    if ended.code:
        raise EngineError(
            f"{python}: exit code {ended.code}: {ended.errors.strip()[-2000:]}; {_MAKE}"
        )
    report = json.loads(ended.output)
    unreadable = report["scores"].count(0.0)
    return ended, {
        _WALL: report["seconds"],
        "answers lost": report["lost"],
        "answers unreadable": unreadable,
    }


def take_turn(url: str, program: Callable[[], tuple[Ended, Turn]]) -> Turn:
    """Run a program with an empty prefix cache."""
    reset(url)
    before, server = count(url), server_seconds()
    ended, turn = program()
    server, counted = server_seconds() - server, count(url) - before
    return {
        _WALL: turn.pop(_WALL),
        _WALL_WITH_START: ended.seconds,
        "processor time of the client, its start included, s": ended.cpu,
        "processor time of the server, s": server,
        "peak memory of the client, MiB": ended.mib,
        "requests": counted["request_success"],
        "prompt tokens": counted["prefix_cache_queries"],
        "output tokens": counted["generation_tokens"],
        **turn,
    }


def compare(ours: Sequence[Turn], peer: Sequence[Turn]) -> list[Figure]:
    """The rows of the table."""
    rows = []
    for what in ours[0]:
        form = ".1f" if what.endswith(", s") else ",.0f"
        mine, its = (format_range([turn[what] for turn in turns], form) for turns in (ours, peer))
        rows.append(Figure(what, mine, peer=its))
    for what in (_WALL, _WALL_WITH_START):
        multiples = [mine[what] / its[what] for mine, its in zip(ours, peer, strict=True)]
        title = f"{what.removesuffix(', s')}, as a multiple of the peer's in the same round"
        rows.append(Figure(title, format_range(multiples, ".2f")))
    return rows


def write_requests(file: Path, candidates: Path, topics: Path, index: Path) -> int:
    """Write candidates as RankLLM reads them, a topic a line with its title as the query.

    Return their number.
    """
    titles = {topic.id: topic.title for topic in read_topics(topics)}
    rankings = read_candidates(candidates)
    with DocumentStore(index) as store, file.open("w") as stream:
        for topic_id, ranking in rankings.items():
            texts = ((item.document_id, store.get(item.document_id).text) for item in ranking)
            found = [
                {"docid": document, "score": 0.0, "doc": {"contents": text}}
                for document, text in texts
            ]
            query = {"text": titles[topic_id], "qid": topic_id}
            stream.write(json.dumps({"query": query, "candidates": found}) + "\n")
    return sum(map(len, rankings.values()))


def race(options: argparse.Namespace, work: Path) -> tuple[str, list[Figure]]:
    """Race with a server of its own; return the title and the rows of the table."""
    given = input_of("comparative", work)
    retrieve_candidates(work, given.topics, given.corpus, options.topics, options.depth)
    requests = work / "requests.jsonl"
    pairs = write_requests(requests, work / "run" / CANDIDATES, given.topics, work / "index")
    turns: dict[str, list[Turn]] = {"touche-llm": [], "RankLLM": []}
    with served_tiny(work) as url:
        programs: dict[str, Callable[[], tuple[Ended, Turn]]] = {
            "touche-llm": partial(run_ours, work, url),
            "RankLLM": partial(run_peer, work, url, options.rank_llm_python, requests),
        }
        for number in range(-1, options.rounds):  # the first only warms the server up
            for name in turns if number % 2 else reversed(turns):
                turn = take_turn(url, programs[name])
                print(f"  round {number + 1}, {name}: {turn[_WALL]:.1f} s", file=sys.stderr)
                if number >= 0:
                    turns[name].append(turn)
    source = "real passages" if given.is_real else "the sample"
    title = f"touche-llm (measured) and RankLLM (peer): {pairs:,} pairs, {source}, {_CONCURRENCY} requests"
    title += f" at a time, {options.rounds} rounds, median (range)"
    return title, [
        *compare(*turns.values()),
        Figure("load average at the end", f"{os.getloadavg()[0]:.1f}"),
    ]


def main() -> None:
    """Race all rounds and print the table."""
    parser = parse_sizes(__doc__, topics=(1, 25), depth=(1, 20), rounds=(1, 3))
    parser.add_argument(
        "--rank-llm-python", type=Path, help="Python of an environment with RankLLM."
    )
    options = parser.parse_args()
    try:
        if options.rank_llm_python is None or not options.rank_llm_python.is_file():
            raise UsageError(
                f"--rank-llm-python: no such program: {options.rank_llm_python}; {_MAKE}"
            )
        # Not resolved: the link decides on the environment.
        options.rank_llm_python = options.rank_llm_python.absolute()
        with vllm_settings(cpu=True), tempfile.TemporaryDirectory() as name:
            show(*race(options, Path(name)))
    except ToucheError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
