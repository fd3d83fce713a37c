"""Compare this checkout with another revision: the same results, and the time of the benchmarks, by turns.

    python -m benchmarks.against dbfba99 [--rounds 5]

Results: `demo` gives the same bytes of every `run.txt` from the same answer keys, `evaluate` the same values. Times:
each benchmark runs in both checkouts, one after the other, in as many rounds; a ratio above 1 means that this one is
slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data" / "comparative"
# Sizes that take seconds, so that rounds are many rather than long.
BENCHMARKS = {
    "judging": ["--topics", "10", "--depth", "200", "--passages", "5000"],
    "first_stage": ["--passages", "20000", "--sentences", "0", "--topics", "20", "--peer-topics", "0"],
    "evaluation": [],
}


def run_module(tree: Path, arguments: Sequence[str], folder: Path) -> str:
    """Run `python -m` with the package of a checkout; return standard output, raise CalledProcessError on failure."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def demo_results(tree: Path, folder: Path) -> dict[str, Any]:
    """Return the bytes of each `run.txt` of the demo and the answer keys in its files of records."""
    run_module(tree, ["touche_llm", "demo", "--out", str(folder)], tree)
    results: dict[str, Any] = {}
    for run in sorted(folder.glob("*/run.txt")):
        task = run.parent.name
        results[f"demo, {task}: run.txt"] = run.read_bytes()
        for file in sorted(run.parent.glob("*.jsonl")):
            records = [json.loads(line) for line in file.read_text().splitlines()]
            results[f"demo, {task}: keys of {file.stem}"] = [each.get("key", each.get("keys")) for each in records]
    return results


def evaluate_results(tree: Path) -> dict[str, Any]:
    """Return the values of `evaluate` for the run and qrels of the shared data, if they are there."""
    if not DATA.is_dir():
        return {}
    qrels = ["--relevance", str(DATA / "qrels-relevance.txt"), "--quality", str(DATA / "qrels-quality.txt")]
    command = ["touche_llm", "evaluate", str(DATA / "candidates.run.txt"), "--task", "comparative", *qrels]
    return {"evaluate": json.loads(run_module(tree, [*command, "--format", "json"], tree))}


def time_benchmark(tree: Path, name: str) -> float:
    """Return the processor seconds that a benchmark takes in a checkout, its children included."""
    before = os.times()
    run_module(tree, [f"benchmarks.{name}", *BENCHMARKS[name]], tree)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def describe_ratios(name: str, seconds: Sequence[tuple[float, float]]) -> str:
    """Return one line: medians of both checkouts, and the median ratio with its 95 % interval."""
    old, new = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratios = np.array([mine / theirs for theirs, mine in seconds])
    line = f"{name:<12} {old:7.2f} s {new:7.2f} s   ratio {np.median(ratios):.3f}"
    if len(ratios) < 3:
        return line
    interval = bootstrap((ratios,), np.median, method="percentile", random_state=0).confidence_interval
    return f"{line} ({interval.low:.3f} to {interval.high:.3f})"


def main() -> None:
    """Compare results, then times; exit with 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="commit, branch or tag to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="0 leaves the times out (default: 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other = folder / "other" / ROOT.name
        # A sibling named `shared` is where the benchmarks look for real data.
        if (ROOT.parent / "shared").exists():
            other.parent.mkdir()
            (other.parent / "shared").symlink_to(ROOT.parent / "shared")
        subprocess.run(["git", "worktree", "add", "--detach", "-q", other, options.revision], cwd=ROOT, check=True)
        try:
            old, new = (
                demo_results(tree, folder / place) | evaluate_results(tree)
                for tree, place in ((other, "demo-old"), (ROOT, "demo-new"))
            )
            differing = sorted(key for key in old | new if old.get(key) != new.get(key))
            for key in sorted(old | new):
                print(f"{'DIFFERS' if key in differing else 'same':<8} {key}")
            seconds: dict[str, list[tuple[float, float]]] = {each: [] for each in BENCHMARKS}
            for round_number in range(options.rounds):
                for each, rounds in seconds.items():
                    trees = (other, ROOT) if round_number % 2 else (ROOT, other)
                    taken = {tree: time_benchmark(tree, each) for tree in trees}
                    rounds.append((taken[other], taken[ROOT]))
            if options.rounds:
                print(f"\nprocessor seconds, medians of {options.rounds} rounds: {options.revision}, this checkout")
                for each, rounds in seconds.items():
                    print(describe_ratios(each, rounds))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
