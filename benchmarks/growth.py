"""How time, memory, disk and tokens grow with the topics and with the passages, and what much more of both would take.

    python -m benchmarks.growth [--topics 1 10 50] [--passages 10000 100000 868655] [--depth 1000]

Synthetic passages are indexed and searched, and judged by an engine in process that answers at
once, each in a process of its own; a dry run counts requests and tokens. Straight lines through the
measured points are followed to 200 million passages and to 1,000 topics, and tokens become GPU
hours by the formula of `benchmarks.gpu_time`. Prints the tables of `docs/explanation/growth.md`.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import judging
from benchmarks.figures import at_least, machine, parse_sizes, peak_gib
from benchmarks.first_stage import Place, command, indexed, stored
from benchmarks.gpu_time import ANSWER_TOKENS, H100, output_seconds, prompt_seconds
from benchmarks.processes import run_alone, run_command
from benchmarks.synthetic import PASSAGES, write_passages, write_topics

MANY_PASSAGES, MANY_TOPICS = 200_000_000, 1_000

MODEL = "Llama 3.1 8B in bfloat16"
_SEARCHES = 3


# What a corpus or a number of topics took, by name.
Row = dict[str, float]


def prepared(place: Place) -> float:
    """Seconds to store and index the corpus, as `touche-llm index` does, without the start of Python."""
    return stored(place) + indexed(place)


def retrieved(place: Place) -> tuple[float, float]:
    """Seconds of `touche-llm retrieve`, and the GiB that its process held at most, pages of the index among them."""
    # The first one may have to read the index from the disk.
    seconds = min(command(place)[0] for _ in range(_SEARCHES))
    return seconds, peak_gib()


def judged(topics: int, depth: int, passages: int) -> tuple[int, float, float]:
    """Judge so many documents with the engine of `benchmarks.judging` that answers at once.

    Requests, seconds, GiB.
    """
    with tempfile.TemporaryDirectory() as name:
        # Writing the corpus takes more memory than judging.
        run_alone(judging.prepare, Path(name), topics, depth, passages)
        (found, gib), _ = run_alone(_judge, Path(name), depth)
    return int(found["requests"]), found["seconds"], gib


def _judge(folder: Path, depth: int) -> tuple[dict[str, float], float]:
    return judging.judge("in process", folder, depth), peak_gib(resource.RUSAGE_SELF)


def count_requests(place: Place) -> dict[str, int]:
    """What `touche-llm run --dry-run` counts for the topics, all prompts together."""
    flags = {
        "task": place.task,
        "topics": place.topics,
        "corpus": place.corpus,
        "index": place.index,
    }
    flags |= {"out": place.folder / "none", "cache": place.folder / "none.sqlite"}
    given = [each for name, value in flags.items() for each in (f"--{name}", value)]
    rows = json.loads(
        run_command("run", *given, "--depth", place.depth, "--dry-run", "--format", "json")
    )
    return {
        name: sum(row[name] for row in rows)
        for name in ("requests", "prompt_tokens", "shared_tokens")
    }


def measured(folder: Path, options: argparse.Namespace) -> tuple[dict[int, Row], dict[int, Row]]:
    """Measure every number of passages, and every number of topics."""
    stages: dict[int, Row] = {}
    judges: dict[int, Row] = {}
    for size in options.passages:
        place = Place("comparative", folder / f"passages-{size}", options.depth)
        place.folder.mkdir()
        run_alone(write_passages, place.corpus, size)
        seconds, used = run_alone(prepared, place)
        disk = sum(file.stat().st_size for file in place.index.rglob("*") if file.is_file())
        stages[size] = {
            "index": seconds,
            "cores": used.cpu,
            "memory": used.peak,
            "disk": disk / 1e9,
        }
        for count in options.topics:
            run_alone(write_topics, place.topics, count)
            (seconds, gib), _ = run_alone(retrieved, place)
            stages[size] |= {f"retrieve {count}": seconds, f"memory {count}": gib}
            if size == options.passages[-1]:
                judges[count] = {"retrieve": seconds, **count_requests(place)}
    for count in options.topics:
        judgments, seconds, gib = judged(count, options.depth, options.passages[0])
        judges[count] |= {"judgments": judgments, "client": seconds, "memory": gib}
    return stages, judges


def show_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"## {title}\n")
    for cells in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(cells)} |")
    print()


def show_measured(stages: Mapping[int, Row], judges: Mapping[int, Row], depth: int) -> None:
    """Print what was measured of both stages."""
    rows = []
    for size, of in stages.items():
        searches = (
            f"{of[f'retrieve {count}']:.2f} s, {of[f'memory {count}']:.2f} GiB" for count in judges
        )
        taken = f"{of['index']:.1f} s ({of['cores']:.1f} s of the cores)"
        rows.append(
            [
                f"{size:,}",
                taken,
                f"{of['memory']:.2f} GiB",
                f"{1000 * of['disk']:,.0f} MB",
                *searches,
            ]
        )
    head = ["passages", "store and index", "memory to index", "on disk"]
    head += [f"retrieve, {count:,} topics" for count in judges]
    show_table(f"First stage: {depth:,} passages for each topic", head, rows)
    rows = []
    for count, of in judges.items():
        shared = f"{of['shared_tokens']:,} ({of['shared_tokens'] / of['prompt_tokens']:.0%})"
        client = f"{of['judgments']:,} judgments in {of['client']:.2f} s"
        sent = [f"{of['requests']:,} requests", f"{of['prompt_tokens']:,}", shared]
        rows.append([f"{count:,}", *sent, client, f"{of['memory']:.2f} GiB"])
    head = [
        "topics",
        "of a run",
        "prompt tokens, about",
        "of them shared",
        "through the client",
        "its memory",
    ]
    show_table(
        f"Judge stage: {depth:,} documents for each topic, an engine that answers at once",
        head,
        rows,
    )


def show_lines(stages: Mapping[int, Row], judges: Mapping[int, Row]) -> None:
    """Print straight lines by least squares through the measured points, followed to many passages and topics."""
    most = max(judges)
    for of in judges.values():
        of["computed"] = of["prompt_tokens"] - of["shared_tokens"]
    by_passages = {
        "store and index": ("s", "index"),
        "memory to index": ("GiB", "memory"),
        "store and index on disk": ("GB", "disk"),
        f"retrieve, {most:,} topics": ("s", f"retrieve {most}"),
        f"memory, retrieve, {most:,} topics": ("GiB", f"memory {most}"),
    }
    by_topics = {
        f"retrieve, {max(stages):,} passages": ("s", "retrieve"),
        "requests": ("requests", "requests"),
        "prompt tokens": ("tokens", "prompt_tokens"),
        "prompt tokens not shared": ("tokens", "computed"),
        "client": ("s", "client"),
        "client memory": ("GiB", "memory"),
    }
    rows, ends = [], {}
    for lines, points, name, goal in (
        (by_passages, stages, "passage", MANY_PASSAGES),
        (by_topics, judges, "topic", MANY_TOPICS),
    ):
        for what, (unit, key) in lines.items():
            values = [of[key] for of in points.values()]
            slope, intercept = map(float, np.polyfit(list(points), values, 1))
            end = ends[what] = slope * goal + intercept
            off = max(
                abs(slope * x + intercept - y) / y for x, y in zip(points, values, strict=True)
            )
            comes_to = f"{end:,.{0 if end >= 100 else 3}f} {unit} at {goal:,} {name}s"
            rows.append(
                [
                    what,
                    comes_to,
                    f"{slope:.4g} {unit} a {name}",
                    f"{intercept:.4g} {unit}",
                    f"{off:.0%}",
                ]
            )
    head = ["", "comes to", "slope", "intercept", "off a measured point at most"]
    show_table(
        f"Straight lines to {MANY_PASSAGES:,} passages and {MANY_TOPICS:,} topics", head, rows
    )
    requests, tokens, computed = (
        ends[name] for name in ("requests", "prompt tokens", "prompt tokens not shared")
    )
    output = output_seconds(requests, tokens)
    kinds = {
        f"{computed:,.0f} prompt tokens that are not shared": prompt_seconds(computed),
        f"{requests * ANSWER_TOKENS:,.0f} output tokens": output,
        "both": prompt_seconds(computed) + output,
        f"both without a prefix cache: all {tokens:,.0f} prompt tokens": prompt_seconds(tokens)
        + output,
    }
    title = f"{MANY_TOPICS:,} topics in GPU hours, {MODEL} on an {H100.name}"
    show_table(
        title,
        ["", "GPU hours"],
        [[what, f"{seconds / 3600:,.2f}"] for what, seconds in kinds.items()],
    )


def main() -> None:
    """Measure, fit and print."""
    parser = parse_sizes(__doc__, depth=(1, 1000))
    ascending = "two or more, in ascending order"
    parser.add_argument(
        "--topics", type=at_least(1), nargs="+", default=[1, 10, 50], help=ascending
    )
    parser.add_argument(
        "--passages",
        type=at_least(1),
        nargs="+",
        default=[10_000, 100_000, PASSAGES],
        help=ascending,
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        stages, judges = measured(Path(name), options)
    print(f"Machine: {machine()}.\n")
    show_measured(stages, judges, options.depth)
    show_lines(stages, judges)


if __name__ == "__main__":
    main()
