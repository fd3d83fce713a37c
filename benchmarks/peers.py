"""The same pairs through touche-llm and RankLLM on one real vLLM on the CPU, by turns.

    python -m benchmarks.peers --rank-llm-python FOLDER/bin/python [--topics 25] [--depth 20] [--rounds 3]
        [--concurrency 64] [--windows 20:10 10:5 5:2] [--form letters]

The comparative task's real topics and passages in `../shared/data`, or the project's sample where they are not there,
are reranked over HTTP by a tiny random model, pointwise and in listwise windows (`WINDOW:STRIDE`). Both programs send
as many requests at a time, with their own prompts, in a process of their own, with an empty prefix cache and without
stored answers. Requests and tokens are the server's own counts, the start-up check of touche-llm included; memory is
the peak of the process. Needs `.venv-vllm` (`make vllm` installs it) and an environment with RankLLM: a commit of its
repository, since its release 0.25.7 has no pointwise reranker over HTTP. Without one, the error says how to make it.

What differs: pointwise, RankLLM reads yes or no from one free token, touche-llm grades, position and stance from an
answer whose form is enforced. RankLLM shows at most 300 words of a passage; touche-llm all of it, and in a window 512
tokens. An order of RankLLM is free text, from which it takes the numbers it finds; touche-llm requests an order that
repeats a document up to twice more. A random model gives hardly another one where the schema does not forbid that, in
windows of more than six, so these cost three answers. They are all at temperature 0 here: above it a seed is sent, with
which vLLM's CPU engine dies if a prompt is prefilled in chunks ("CPU Generator does not use offset").

Unreadable is an answer of RankLLM with neither yes nor no among the 20 most probable tokens, which it scores 0, or one
that is no order of all documents of the window. How often a real model gives such answers a random one cannot show.

Not raced: pairwise reranking of RankLLM, which is DuoT5 in its own process (`rerank/pairwise`), and llm-rankers (0.0.2;
github.com/ielab/llm-rankers), which cannot use such a server without changes. Its pointwise methods run T5 in their own
process (`llmrankers/pointwise.py`). Its setwise, pairwise and listwise methods for OpenAI wait for one answer at a
time, take their tokenizer from `tiktoken.encoding_for_model`, which knows OpenAI's models only, and call
`openai.ChatCompletion`, which `openai` removed in 1.0 (`llmrankers/setwise.py`).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.answer_forms import write_variants
from benchmarks.figures import Figure, show
from benchmarks.judge_rate import (
    format_range,
    random_model,
    retrieve_candidates,
    served,
    vllm_settings,
)
from benchmarks.load import metrics, reset_prefix_cache, server_seconds
from benchmarks.processes import Ended, run_program
from benchmarks.rank_llm_peer import FLAG, check_python, list_windows, read_report, run_driver, write_requests
from benchmarks.sizes import at_least
from tests.vllm.real_data import input_of
from tests.vllm.server import MODEL_NAME
from touche_llm.errors import EngineError, ToucheError, UsageError
from touche_llm.pipeline.run_directory import CANDIDATES
from touche_llm.prompts.purposes import MAX_DOCUMENTS

REQUESTS = "requests.jsonl"
# Tokens that RankLLM fills at most.
_CONTEXT = 16_000
# Of `touche-llm`: some answers are missing.
_INCOMPLETE = 3


@dataclass(frozen=True)
class Outcome:
    """What a program made of the pairs.

    Attributes:
        ended: Its process.
        seconds: Wall time without its start.
        lost: Answers that never came.
        unreadable: Answers that came and could not be used as they were meant.
    """

    ended: Ended
    seconds: float
    lost: int
    unreadable: int


@dataclass(frozen=True)
class Turn:
    """A turn of a program: its outcome and what the server counted meanwhile."""

    outcome: Outcome
    server: float
    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Course:
    """Where both programs run.

    Attributes:
        work: Folder with the model, the run and the requests.
        url: Of the server.
        concurrency: Requests at a time.
        python: Of RankLLM's environment.
        sizes: Candidates of each topic.
    """

    work: Path
    url: str
    concurrency: int
    python: Path
    sizes: Sequence[int]

    def run_ours(self, stage: str, *options: Any) -> Outcome:
        """Run a stage of touche-llm with an empty answer cache."""
        run = self.work / "run"
        with tempfile.TemporaryDirectory(dir=self.work) as cache:
            server = ["--base-url", self.url, "--model", MODEL_NAME, "--concurrency", self.concurrency]
            command = [sys.executable, "-m", "touche_llm", stage, *server, *options]
            command += ["--cache", Path(cache) / "answers.sqlite", "--out", run]
            ended = run_program([str(part) for part in command], self.work, os.environ)
        if ended.code not in (0, _INCOMPLETE):
            raise EngineError(f"touche-llm {stage}: exit code {ended.code}: {ended.errors.strip()[-2000:]}")
        facts = yaml.safe_load((run / "ir-metadata.yml").read_text())["stages"][stage]
        failures = dict(facts["failures"])
        lost = sum(failures.pop(kind, 0) for kind in ("server_error", "timeout"))
        return Outcome(ended, facts["seconds"], lost, sum(failures.values()))

    def run_peer(self, window: tuple[int, int] | None = None) -> Outcome:
        """Run RankLLM, pointwise or with windows of a size and a stride."""
        # The model's relative folder, from which the tokenizer comes, is also the name under which it is served.
        options = {"requests": REQUESTS, "model": MODEL_NAME, "url": self.url, "context": _CONTEXT}
        options["concurrency"] = self.concurrency
        orders = None
        if window is not None:
            options |= {"window": window[0], "stride": window[1]}
            orders = [documents for size in self.sizes for documents in list_windows(size, *window)]
        ended = run_driver(self.python, self.work, options)
        if ended.code:
            raise EngineError(f"{self.python}: exit code {ended.code}: {ended.errors.strip()[-2000:]}")
        candidates = sum(self.sizes)
        report = read_report(ended.output, candidates if orders is None else len(orders), candidates)
        return Outcome(ended, report.seconds, report.count_lost(), report.count_unreadable(orders))

    def take_turn(self, program: Callable[[], Outcome]) -> Turn:
        """Run a program with an empty prefix cache."""
        if not reset_prefix_cache(self.url):
            raise UsageError(f"{self.url}: its prefix cache cannot be emptied")
        before, server = metrics(self.url), server_seconds()
        outcome = program()
        server, after = server_seconds() - server, metrics(self.url)
        requests, tokens = after.requests - before.requests, after.generated - before.generated
        return Turn(outcome, server, requests, after.queried - before.queried, tokens)


def measure(course: Course, judge_options: Sequence[Any], windows: Sequence[tuple[int, int]], rounds: int) -> Races:
    """Race pointwise and with each size and stride of a window; the first round only warms the server up."""
    # Set in the run's folder, from where `rank` takes it.
    greedy = ["--set", "sampling.resample_temperature=0"]
    races: dict[str, tuple[Callable[[], Outcome], Callable[[], Outcome]]] = {
        _POINTWISE: (partial(course.run_ours, "judge", "--overwrite", *greedy, *judge_options), course.run_peer)
    }
    for size, stride in windows:
        steps = ["--rank", f"listwise:{max(course.sizes)}"]
        steps += ["--set", f"ranking.listwise.window={size}", "--set", f"ranking.listwise.stride={stride}"]
        ours = partial(course.run_ours, "rank", *steps)
        races[f"listwise {size}:{stride}"] = (ours, partial(course.run_peer, (size, stride)))
    found: Races = {name: ([], []) for name in races}
    for number in range(-1, rounds):
        for name, programs in races.items():
            for place in (0, 1) if number % 2 else (1, 0):
                turn = course.take_turn(programs[place])
                if number >= 0:
                    found[name][place].append(turn)
                print(f"  round {number + 1}, {name}, {_NAMES[place]}: {turn.outcome.seconds:.1f} s", file=sys.stderr)
    return found


_NAMES = ("touche-llm", "RankLLM")
_POINTWISE = "pointwise"
_WALL, _WALL_WITH_START = "wall, s", "wall with the start of the program, s"
# Of each race the turns of touche-llm and those of RankLLM.
Races = dict[str, tuple[list[Turn], list[Turn]]]
# Form of its values, and the value of a turn.
_ROWS: dict[str, tuple[str, Callable[[Turn], float]]] = {
    _WALL: (".1f", lambda turn: turn.outcome.seconds),
    _WALL_WITH_START: (".1f", lambda turn: turn.outcome.ended.seconds),
    "processor time of the client, its start included, s": (".1f", lambda turn: turn.outcome.ended.cpu),
    "processor time of the server, s": (".1f", lambda turn: turn.server),
    "peak memory of the client, MiB": (",.0f", lambda turn: turn.outcome.ended.mib),
    "requests": (",.0f", lambda turn: turn.requests),
    "prompt tokens": (",.0f", lambda turn: turn.prompt_tokens),
    "output tokens": (",.0f", lambda turn: turn.output_tokens),
    "answers lost": (",.0f", lambda turn: turn.outcome.lost),
    "answers unreadable": (",.0f", lambda turn: turn.outcome.unreadable),
}


def compare(name: str, ours: Sequence[Turn], peer: Sequence[Turn]) -> list[Figure]:
    """The rows of a race."""
    values = [
        Figure(f"{name}: {what}", format_range([*map(value, ours)], form), peer=format_range([*map(value, peer)], form))
        for what, (form, value) in _ROWS.items()
    ]
    return [*values, *(_compare_rounds(name, what, ours, peer) for what in (_WALL, _WALL_WITH_START))]


def _compare_rounds(name: str, what: str, ours: Sequence[Turn], peer: Sequence[Turn]) -> Figure:
    value = _ROWS[what][1]
    multiples = [value(mine) / value(its) for mine, its in zip(ours, peer, strict=True)]
    title = f"{name}: {what.removesuffix(', s')}, as a multiple of the peer's in the same round"
    return Figure(title, format_range(multiples, ".2f"))


def parse_window(text: str) -> tuple[int, int]:
    """A `type` of argparse: the size of a window and its stride."""
    found = re.fullmatch(r"(\d{1,2}):(\d{1,2})", text, re.ASCII)
    window, stride = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < stride < window <= MAX_DOCUMENTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no WINDOW:STRIDE with a stride below the window, as 20:10")
    return window, stride


def main() -> None:
    """Race all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(FLAG, type=Path, help="Python of an environment with RankLLM.")
    parser.add_argument("--topics", type=at_least(1), default=25)
    parser.add_argument("--depth", type=at_least(1), default=20)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--concurrency", type=at_least(1), default=64)
    parser.add_argument("--windows", type=parse_window, nargs="*", default=[(20, 10), (10, 5), (5, 2)])
    forms = ["letters", "array", "object"]
    parser.add_argument("--form", choices=forms, default=forms[0], help="Of our judge answer.")
    options = parser.parse_args()
    try:
        with vllm_settings(cpu=True), tempfile.TemporaryDirectory() as name:
            show(*race(options, check_python(options.rank_llm_python), Path(name)))
    except ToucheError as error:
        sys.exit(f"error: {error}")


def race(options: argparse.Namespace, python: Path, work: Path) -> tuple[str, list[Figure]]:
    """Race with a server of its own; return the title and the rows of the table."""
    given = input_of("comparative", work)
    random_model(work / MODEL_NAME, cpu=True, size="tiny", vocabulary=4096)
    retrieve_candidates(work, given.topics, given.corpus, options.topics, options.depth)
    sizes = write_requests(work / REQUESTS, work / "run" / CANDIDATES, given.topics, work / "index")
    form = ["--prompt", write_variants(work)[options.form]]
    with served(work / MODEL_NAME, {}, work / "server.log", cpu=True) as url:
        course = Course(work, url, options.concurrency, python, sizes)
        found = measure(course, form, options.windows, options.rounds)
    rows = [row for name, turns in found.items() for row in compare(name, *turns)]
    source = "real passages" if given.is_real else "the sample"
    title = f"touche-llm (measured) and RankLLM (peer): {sum(sizes):,} pairs, {source}, {options.concurrency} requests"
    title += f" at a time, {options.rounds} rounds, median (range)"
    return title, [*rows, Figure("load average at the end", f"{os.getloadavg()[0]:.1f}")]


if __name__ == "__main__":
    main()
