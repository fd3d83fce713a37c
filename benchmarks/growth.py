"""How time, memory, disk and tokens grow with the topics and with the passages, and what much more of both would take.

    python -m benchmarks.growth [--topics 1 10 50] [--passages 10000 100000 868655] [--depth 1000] [--keep FOLDER]

Synthetic passages are indexed and searched, and judged by an engine in process that answers at once, each in a process
of its own; a dry run counts requests and tokens. Straight lines through the measured points are followed to
200 million passages and to 1,000 topics, and tokens become GPU hours by the formula of `benchmarks.gpu_time`. Prints
the tables of `docs/explanation/growth.md`.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import judging
from benchmarks.figures import machine, peak_gib
from benchmarks.first_stage import Place, command, indexed, made, stored
from benchmarks.gpu_time import ANSWER_TOKENS, H100, output_seconds, prompt_seconds
from benchmarks.processes import run_alone
from benchmarks.sizes import at_least
from benchmarks.synthetic import PASSAGES, write_passages, write_topics

MANY_PASSAGES, MANY_TOPICS = 200_000_000, 1_000

MODEL = "Llama 3.1 8B in bfloat16"
_SEARCHES = 3


@dataclass(frozen=True)
class FirstStage:
    """What a corpus took: seconds, GiB and bytes; `searches` has seconds and GiB by the number of topics."""

    seconds: float
    of_cores: float
    gib: float
    disk: int
    searches: dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Judged:
    """What topics took: requests and tokens of a whole run, and seconds and GiB of so many judgments."""

    requests: int
    prompt_tokens: int
    shared_tokens: int
    judgments: int
    seconds: float
    gib: float

    @property
    def computed(self) -> int:
        """Prompt tokens that are not shared."""
        return self.prompt_tokens - self.shared_tokens


def prepared(place: Place) -> float:
    """Seconds to store and index the corpus, as `touche-llm index` does, without the start of Python."""
    return stored(place) + indexed(place)


def retrieved(place: Place) -> tuple[float, float]:
    """Seconds of `touche-llm retrieve`, and the GiB that its process held at most, pages of the index among them."""
    # The first one may have to read the index from the disk.
    seconds = min(command(place)[0] for _ in range(_SEARCHES))
    return seconds, peak_gib()


def judged(topics: int, depth: int, passages: int) -> tuple[int, float, float]:
    """Judge so many documents with the engine of `benchmarks.judging` that answers at once; requests, seconds, GiB."""
    with tempfile.TemporaryDirectory() as name:
        # Writing the corpus takes more memory than judging.
        run_alone(judging.prepare, Path(name), topics, depth, passages)
        (found, gib), _ = run_alone(_judge, Path(name), depth)
    return int(found["requests"]), found["seconds"], gib


def _judge(folder: Path, depth: int) -> tuple[dict[str, float], float]:
    return judging.judge("in process", folder, depth, None), peak_gib(resource.RUSAGE_SELF)


def count_requests(place: Place) -> dict[str, int]:
    """What `touche-llm run --dry-run` counts for the topics, all prompts together."""
    flags = {"task": place.task, "topics": place.topics, "corpus": place.corpus, "index": place.index}
    flags |= {"out": place.folder / "none", "cache": place.folder / "none.sqlite"}
    given = [str(each) for name, value in flags.items() for each in (f"--{name}", value)]
    given += ["--depth", str(place.depth), "--dry-run", "--format", "json"]
    done = subprocess.run([sys.executable, "-m", "touche_llm", "run", *given], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr + done.stdout)
    rows = json.loads(done.stdout)
    return {name: sum(row[f"{name}_most"] for row in rows) for name in ("requests", "prompt_tokens", "shared_tokens")}


def measured(folder: Path, options: argparse.Namespace) -> tuple[dict[int, FirstStage], dict[int, Judged]]:
    """Measure every number of passages, and every number of topics."""
    folder.mkdir(parents=True, exist_ok=True)
    for count in options.topics:
        run_alone(write_topics, folder / f"topics-{count}.xml", count)
    stages, counted = {}, {}
    for size in options.passages:
        place = Place("comparative", made(folder / f"passages-{size}"), options.depth)
        if not place.corpus.exists():
            run_alone(write_passages, place.corpus, size)
        seconds, used = run_alone(prepared, place)
        disk = sum(each.stat().st_size for each in place.index.rglob("*") if each.is_file())
        searches = {}
        for count in options.topics:
            shutil.copyfile(folder / f"topics-{count}.xml", place.topics)
            (took, gib), _ = run_alone(retrieved, place)
            searches[count] = (took, gib)
            if size == options.passages[-1]:
                counted[count] = count_requests(place)
        stages[size] = FirstStage(seconds, used.cpu, used.peak, disk, searches)
    judges = {}
    for count in options.topics:
        judgments, seconds, gib = judged(count, options.depth, options.passages[0])
        judges[count] = Judged(**counted[count], judgments=judgments, seconds=seconds, gib=gib)
    return stages, judges


def show_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"## {title}\n")
    for cells in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(cells)} |")
    print()


def show_measured(stages: dict[int, FirstStage], judges: dict[int, Judged], depth: int) -> None:
    """Print what was measured of both stages."""
    show_table(
        f"First stage: {depth:,} passages for each topic",
        ["passages", "store and index", "memory to index", "on disk", *(f"retrieve, {n:,} topics" for n in judges)],
        [
            [
                f"{size:,}",
                f"{each.seconds:.1f} s ({each.of_cores:.1f} s of the cores)",
                f"{each.gib:.2f} GiB",
                f"{each.disk / 1e6:,.0f} MB",
                *(f"{seconds:.2f} s, {gib:.2f} GiB" for seconds, gib in each.searches.values()),
            ]
            for size, each in stages.items()
        ],
    )
    show_table(
        f"Judge stage: {depth:,} documents for each topic, an engine that answers at once",
        ["topics", "of a run", "prompt tokens, about", "of them shared", "through the client", "memory of the client"],
        [
            [
                f"{count:,}",
                f"{each.requests:,} requests",
                f"{each.prompt_tokens:,}",
                f"{each.shared_tokens:,} ({each.shared_tokens / each.prompt_tokens:.0%})",
                f"{each.judgments:,} judgments in {each.seconds:.2f} s",
                f"{each.gib:.2f} GiB",
            ]
            for count, each in judges.items()
        ],
    )


def show_lines(stages: dict[int, FirstStage], judges: dict[int, Judged]) -> None:
    """Print straight lines by least squares through the measured points, followed to many passages and topics."""
    most, largest = max(judges), stages[max(stages)]
    first, judge = stages.values(), judges.values()
    lines: list[tuple[str, str, Mapping[int, object], list[float]]] = [
        ("store and index", "s", stages, [each.seconds for each in first]),
        ("memory to index", "GiB", stages, [each.gib for each in first]),
        ("store and index on disk", "GB", stages, [each.disk / 1e9 for each in first]),
        (f"retrieve, {most:,} topics", "s", stages, [each.searches[most][0] for each in first]),
        (f"memory, retrieve, {most:,} topics", "GiB", stages, [each.searches[most][1] for each in first]),
        (f"retrieve, {max(stages):,} passages", "s", judges, [largest.searches[n][0] for n in judges]),
        ("requests", "requests", judges, [each.requests for each in judge]),
        ("prompt tokens", "tokens", judges, [each.prompt_tokens for each in judge]),
        ("prompt tokens not shared", "tokens", judges, [each.computed for each in judge]),
        ("client", "s", judges, [each.seconds for each in judge]),
        ("client memory", "GiB", judges, [each.gib for each in judge]),
    ]
    rows, ends = [], {}
    for what, unit, by, values in lines:
        name, goal = ("passage", MANY_PASSAGES) if by is stages else ("topic", MANY_TOPICS)
        slope, intercept = map(float, np.polyfit(list(by), values, 1))
        ends[what] = slope * goal + intercept
        off = max(abs(slope * x + intercept - y) / y for x, y in zip(by, values, strict=True))
        rows.append(
            [
                what,
                f"{ends[what]:,.{0 if ends[what] >= 100 else 3}f} {unit} at {goal:,} {name}s",
                f"{slope:.4g} {unit} a {name}",
                f"{intercept:.4g} {unit}",
                f"{off:.0%}",
            ]
        )
    head = ["", "comes to", "slope", "intercept", "off a measured point at most"]
    show_table(f"Straight lines to {MANY_PASSAGES:,} passages and {MANY_TOPICS:,} topics", head, rows)
    requests, tokens, computed = (ends[name] for name in ("requests", "prompt tokens", "prompt tokens not shared"))
    output = output_seconds(requests, tokens)
    kinds = {
        f"{computed:,.0f} prompt tokens that are not shared": prompt_seconds(computed),
        f"{requests * ANSWER_TOKENS:,.0f} output tokens": output,
        "both": prompt_seconds(computed) + output,
        f"both without a prefix cache: all {tokens:,.0f} prompt tokens": prompt_seconds(tokens) + output,
    }
    title = f"{MANY_TOPICS:,} topics in GPU hours, {MODEL} on an {H100.name}"
    show_table(title, ["", "GPU hours"], [[what, f"{seconds / 3600:,.2f}"] for what, seconds in kinds.items()])


def main() -> None:
    """Measure, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=at_least(1), nargs="+", default=[1, 10, 50])
    parser.add_argument("--passages", type=at_least(1), nargs="+", default=[10_000, 100_000, PASSAGES])
    parser.add_argument("--depth", type=at_least(1), default=1000)
    parser.add_argument("--keep", type=Path, help="Leave corpora and indexes in this folder, and use corpora there.")
    options = parser.parse_args()
    options.topics, options.passages = sorted(set(options.topics)), sorted(set(options.passages))
    if min(len(options.topics), len(options.passages)) < 2:
        parser.error("--topics, --passages: a line needs two different numbers")
    if options.depth > options.passages[0]:
        parser.error(f"--depth {options.depth}: there are {options.passages[0]} --passages to draw that many from")
    with tempfile.TemporaryDirectory() as name:
        stages, judges = measured((options.keep or Path(name)).resolve(), options)
    print(f"Machine: {machine()}.\n")
    show_measured(stages, judges, options.depth)
    show_lines(stages, judges)


if __name__ == "__main__":
    main()
