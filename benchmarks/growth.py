"""How time, memory, disk and tokens grow with the topics and with the passages, and what much more of both would take.

    python -m benchmarks.growth [--topics 1 10 50] [--passages 10000 100000 868655] [--depth 1000]
                                [--keep FOLDER] [--write FOLDER]

Synthetic passages are indexed and searched, and judged by an engine in process that answers at once, each in a process
of its own; a dry run counts requests and tokens. Straight lines through the measured points are followed to
200 million passages and to 1,000 topics, and tokens become GPU hours by a formula for an example model and GPU, whose
numbers stand below by name. With `--write` the tables go to `growth.md` of that folder, and a picture to `growth.svg`.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import judging
from benchmarks.figures import machine, peak_gib
from benchmarks.first_stage import Place, command, indexed, made, stored
from benchmarks.gpu_time import (
    ANSWER_TOKENS,
    AT_A_TIME,
    BANDWIDTH_UTILISATION,
    H100,
    LLAMA,
    NUMBER_BYTES,
    UTILISATION,
    output_seconds,
    prompt_seconds,
)
from benchmarks.lines import Line, draw, memory_gib
from benchmarks.processes import run_alone
from benchmarks.sizes import at_least
from benchmarks.synthetic import PASSAGES, write_passages, write_topics

MANY_PASSAGES, MANY_TOPICS = 200_000_000, 1_000

MODEL = "Llama 3.1 8B in bfloat16"

FORMULA = f"""\
    prompt seconds = prompt tokens x 2 x parameters / (peak FLOP/s x utilisation)
                   = prompt tokens x 2 x {LLAMA.active:.3g} / ({H100.flops:.3g} x {UTILISATION})
    output seconds = output tokens x (bytes of the weights / answers at a time + prompt tokens of a request x bytes of
                     keys and values a token) / (bytes/s x utilisation)
                   = output tokens x ({NUMBER_BYTES} x {LLAMA.active:.3g} / {AT_A_TIME} + prompt tokens of a request \
x {LLAMA.key_value_bytes:,})
                     / ({H100.bandwidth:.3g} x {BANDWIDTH_UTILISATION})
"""
NOTES = f"""\
{LLAMA.active:.3g} parameters and {LLAMA.key_value_bytes:,} bytes of keys and values a token are those of {MODEL}
(arXiv:2407.21783), {H100.flops:.3g} FLOP/s (dense) and {H100.bandwidth:.3g} bytes/s those of an {H100.name} by its \
data sheet.
The utilisations {UTILISATION} and {BANDWIDTH_UTILISATION}, {AT_A_TIME} answers at a time and {ANSWER_TOKENS} tokens \
an answer are assumptions; no GPU was
measured for this (`benchmarks/gpu.py` does that).

Two floating point operations for each parameter and token: arXiv:2001.08361, section 2.1; attention, which comes on
top, is below 2 % of that in prompts of 1,000 tokens. Output is bound by memory bandwidth, since each step reads all
weights once and the keys and values of every answer under way; a server hides part of it behind prompts that it
computes in the same steps. Tokens are estimated at four characters each, without the chat template. Shared tokens are
those with which the request before it, of the same prompt, began too: a prefix cache does not compute them again.
"""
_SEARCHES = 3
_MEASURED = f"""\
Each search is a process of its own, from the command to the written ranking; the fastest of {_SEARCHES}, so that the
index is in the page cache. Memory to index is what the process and those it started held together at most, memory to
search with the mapped pages of the index."""
_ALT = "Time, memory, disk and tokens by passages and by topics, on logarithmic axes; the figures are in the tables"


@dataclass(frozen=True)
class Grid:
    """A table: a head, and rows of cells with their units."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return f"## {self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


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


def lines_of(stages: dict[int, FirstStage], judges: dict[int, Judged]) -> dict[str, Line]:
    """All lines, by short names."""
    most, largest = max(judges), stages[max(stages)]

    def by_passages(what: str, unit: str, values: Iterable[float]) -> Line:
        return Line(what, unit, "passage", list(zip(stages, values, strict=True)), MANY_PASSAGES)

    def by_topics(what: str, unit: str, values: Iterable[float]) -> Line:
        return Line(what, unit, "topic", list(zip(judges, values, strict=True)), MANY_TOPICS)

    at_most, at_largest = f"retrieve, {_counted(most)}", f"retrieve, {max(stages):,} passages"
    return {
        "index": by_passages("store and index", "s", (each.seconds for each in stages.values())),
        "index memory": by_passages("memory to index", "GiB", (each.gib for each in stages.values())),
        "disk": by_passages("store and index on disk", "GB", (each.disk / 1e9 for each in stages.values())),
        "retrieve": by_passages(at_most, "s", (each.searches[most][0] for each in stages.values())),
        "retrieve memory": by_passages(f"memory, {at_most}", "GiB", (s.searches[most][1] for s in stages.values())),
        "topics": by_topics(at_largest, "s", (largest.searches[n][0] for n in judges)),
        "requests": by_topics("requests", "requests", (each.requests for each in judges.values())),
        "tokens": by_topics("prompt tokens", "tokens", (each.prompt_tokens for each in judges.values())),
        "computed": by_topics("prompt tokens not shared", "tokens", (each.computed for each in judges.values())),
        "client": by_topics("client", "s", (each.seconds for each in judges.values())),
        "client memory": by_topics("client memory", "GiB", (each.gib for each in judges.values())),
    }


def grids(stages: dict[int, FirstStage], judges: dict[int, Judged], lines: dict[str, Line], depth: int) -> list[Grid]:
    """All tables."""
    searched = [
        [f"{seconds:.2f} s, {gib:.2f} GiB" for seconds, gib in stage.searches.values()] for stage in stages.values()
    ]
    first = Grid(
        f"First stage: {depth:,} passages for each topic",
        ["passages", "store and index", "memory to index", "on disk", *(f"retrieve, {_counted(n)}" for n in judges)],
        [
            [
                f"{size:,}",
                f"{each.seconds:.1f} s ({each.of_cores:.1f} s of the cores)",
                f"{each.gib:.2f} GiB",
                f"{each.disk / 1e6:,.0f} MB",
                *cells,
            ]
            for (size, each), cells in zip(stages.items(), searched, strict=True)
        ],
    )
    second = Grid(
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
    followed = Grid(
        f"Straight lines to {MANY_PASSAGES:,} passages and {MANY_TOPICS:,} topics",
        ["", "comes to", "slope", "intercept", "off a measured point at most"],
        [
            [
                line.what,
                line.describe(),
                f"{line.slope_and_intercept[0]:.4g} {line.unit} a {line.by}",
                f"{line.slope_and_intercept[1]:.4g} {line.unit}",
                f"{line.off:.0%}",
            ]
            for line in lines.values()
        ],
    )
    requests, tokens, computed = (lines[name].at(MANY_TOPICS) for name in ("requests", "tokens", "computed"))
    output = output_seconds(requests, tokens)
    kinds = [
        (f"{computed:,.0f} prompt tokens that are not shared", prompt_seconds(computed)),
        (f"{requests * ANSWER_TOKENS:,.0f} output tokens", output),
        ("both", prompt_seconds(computed) + output),
        (f"both without a prefix cache: all {tokens:,.0f} prompt tokens", prompt_seconds(tokens) + output),
    ]
    hours = Grid(
        f"{MANY_TOPICS:,} topics of {depth:,} documents in GPU hours, {MODEL} on an {H100.name}",
        ["", "GPU hours"],
        [[what, f"{seconds / 3600:,.2f}"] for what, seconds in kinds],
    )
    return [first, second, followed, hours]


def end_of_one_machine(lines: dict[str, Line]) -> str:
    """Where the memory of this machine ends, in words."""
    gib = memory_gib()
    index, search = (lines[name].reaches(gib) for name in ("index memory", "retrieve memory"))
    return (
        f"One machine ends where its memory does: by these lines, {gib:.0f} GiB are full with an index of "
        f"{_passages(index)} while it is made, and of {_passages(search)} while it is searched, mapped pages of the "
        "index counted, which the system can drop. Beyond that the figures for 200 million passages say how far away "
        "it is and no more: the way there is `--retriever elasticsearch` on as many machines as hold the index, or "
        "ChatNoir. A passage has 110 indexed terms here; a web page of k times as many takes about k times as much of "
        "the first stage, and of prompt tokens until it is cut to the context."
    )


def _passages(count: float) -> str:
    return f"{count / 1e6:,.1f} million passages" if np.isfinite(count) else "no number of passages"


def _counted(topics: int) -> str:
    return f"{topics:,} topic" + "s" * (topics != 1)


def page(options: argparse.Namespace, tables: list[Grid], end: str) -> str:
    """The page of the documentation."""
    sizes = [f"--{name} {' '.join(map(str, getattr(options, name)))}" for name in ("topics", "passages")]
    made_by = " ".join(["python -m benchmarks.growth", *sizes, f"--depth {options.depth} --write {options.write}"])
    first, second, followed, hours = (each.markdown() for each in tables)
    texts = [
        "# Growth",
        f"Written by `{made_by}`, not by hand. Machine: {machine()}.",
        f"![{_ALT}](growth.svg)",
        first + f"\n{_MEASURED}",
        second + "\nJudgments alone go through the client here, on one core; a run asks about stances as well.",
        followed + f"\n{end}",
        hours + f"\n{FORMULA}\n{NOTES}",
    ]
    return "\n\n".join(each.strip("\n") for each in texts) + "\n"


def _sizes(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    for name in ("topics", "passages"):
        values = sorted(set(getattr(options, name)))
        if len(values) < 2 or values[0] < 1:
            parser.error(f"--{name}: a line needs two different numbers, of 1 or more")
        setattr(options, name, values)
    if options.depth > options.passages[0]:
        parser.error(f"--depth {options.depth}: there are {options.passages[0]} --passages to draw that many from")


def main() -> None:
    """Measure, fit, print, and write if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--passages", type=int, nargs="+", default=[10_000, 100_000, PASSAGES])
    parser.add_argument("--depth", type=at_least(1), default=1000)
    parser.add_argument("--keep", type=Path, help="Leave corpora and indexes in this folder, and use corpora there.")
    parser.add_argument("--write", type=Path, help="Write growth.md and growth.svg to this folder.")
    options = parser.parse_args()
    _sizes(options, parser)
    with tempfile.TemporaryDirectory() as name:
        stages, judges = measured((options.keep or Path(name)).resolve(), options)
    lines = lines_of(stages, judges)
    tables, end = grids(stages, judges, lines, options.depth), end_of_one_machine(lines)
    text = page(options, tables, end)
    print(text)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "growth.md").write_text(text, encoding="utf-8")
        draw(options.write / "growth.svg", lines)


if __name__ == "__main__":
    main()
