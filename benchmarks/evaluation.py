"""Seconds of `touche-llm evaluate` for a run of the largest size that the shared tasks take.

    python -m benchmarks.evaluation [--topics 50] [--depth 1000] [--judged 80]

Run and judgments are random: the figures say what the command costs, the start of Python and its libraries included.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from touche_llm.tasks import get_task

TASK = get_task("comparative")
REPEATS = 3


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


def main() -> None:
    """Measure the run alone, and the folder: the run beside its first stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--judged", type=int, default=80, help="judged documents of each topic")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        qrels = write_input(folder, options.topics, options.depth, options.judged)
        print(f"{options.topics} topics of {options.depth:,} documents, {options.judged} of them judged")
        cases = {
            "run, relevance": [str(folder / "run.txt"), *qrels[:2]],
            "run, relevance, quality and stance": [str(folder / "run.txt"), *qrels],
            "run and first stage, relevance, quality and stance": [str(folder), *qrels],
        }
        for title, arguments in cases.items():
            command = [sys.executable, "-m", "touche_llm", "evaluate", *arguments, "--task", TASK.name]
            seconds = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                seconds.append(time.perf_counter() - started)
            print(f"  {title:52} {min(seconds):6.2f} s (of {REPEATS} the fastest; the slowest {max(seconds):.2f} s)")


if __name__ == "__main__":
    main()
