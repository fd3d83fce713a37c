"""Seconds of `touche-llm evaluate` for a run of the largest size that the shared tasks take.

    python -m benchmarks.evaluation [--topics 50] [--depth 1000] [--judged 80]

Run and judgments are random: the figures say what the command costs, the start of Python and its libraries included.
Targets, which only single runs have, are compared with the median of three times, beside the fastest and the slowest.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, show
from benchmarks.sizes import at_least
from touche_llm.tasks import get_task

TASK = get_task("comparative")
REPEATS = 3
_TOPICS, _DEPTH, _JUDGED = 50, 1000, 80
_TARGET_SECONDS = 3.0


def write_input(folder: Path, topics: int, depth: int, judged: int) -> list[str]:
    """Write a run, its first stage and qrels of three aspects; returns the arguments of the command."""
    generator = random.Random(0)
    names = ("run.txt", "candidates.run.txt", "relevance", "quality", "stance")
    lines: dict[str, list[str]] = {name: [] for name in names}
    for topic in range(topics):
        documents = [f"document-{number:06}___{topic}" for number in range(2 * depth)]
        for name, stances in (("run.txt", TASK.stances), ("candidates.run.txt", ("Q0",))):
            for rank, document in enumerate(generator.sample(documents, depth), start=1):
                lines[name].append(f"{topic} {generator.choice(stances)} {document} {rank} {depth - rank} random\n")
        for document in generator.sample(documents, judged):
            for aspect in ("relevance", "quality"):
                lines[aspect].append(f"{topic} 0 {document} {generator.randint(-2, 3)}\n")
            lines["stance"].append(f"{topic} 0 {document} {generator.choice(TASK.stances)}\n")
    for name, content in lines.items():
        (folder / name).write_text("".join(content))
    return [part for aspect in names[2:] for part in (f"--{aspect}", str(folder / aspect))]


def figure(what: str, seconds: Sequence[float], target: float | None, real_size: bool) -> Figure:
    """Repeated measurements and their target, if any, which is compared with their median."""
    median = statistics.median(seconds)
    value = f"{median:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
    if target is None:
        return Figure(what, value)
    return Figure(what, value, f"< {target:g} s", holds=median < target if real_size else None)


def main() -> None:
    """Measure the run alone, and the folder: the run beside its first stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=at_least(1), default=_TOPICS)
    parser.add_argument("--depth", type=at_least(1), default=_DEPTH)
    parser.add_argument("--judged", type=at_least(1), default=_JUDGED, help="judged documents of each topic")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        qrels = write_input(folder, options.topics, options.depth, options.judged)
        cases = {
            "run, relevance": ([str(folder / "run.txt"), *qrels[:2]], _TARGET_SECONDS),
            "run, relevance, quality and stance": ([str(folder / "run.txt"), *qrels], _TARGET_SECONDS),
            "run and first stage, relevance, quality and stance": ([str(folder), *qrels], None),
        }
        real_size = options.topics >= _TOPICS and options.depth >= _DEPTH and options.judged >= _JUDGED
        rows = []
        for what, (arguments, target) in cases.items():
            command = [sys.executable, "-m", "touche_llm", "evaluate", *arguments, "--task", TASK.name]
            seconds = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                seconds.append(time.perf_counter() - started)
            rows.append(figure(what, seconds, target, real_size))
    size = f"{options.topics} topics of {options.depth:,} documents, {options.judged} of them judged"
    show(f"`touche-llm evaluate`: {size}, median of {REPEATS} (range)", rows)


if __name__ == "__main__":
    main()
