"""Compare the checked-out commit with another revision: the same results, and the time of three commands, by turns.

    python -m benchmarks.against dbfba99 [--rounds 5]

Results: `demo` gives the same bytes of every `run.txt` from the same answer keys, both checkouts
    hold the same recorded runs and answers, and replay them, and `evaluate` gives the same values
    (it may give more).
Times: the processor seconds of `retrieve` (index and search of synthetic passages), `run` (2,000
    judgments by a server that answers at once) and `evaluate`, in both checkouts by turns, in as
    many rounds; a ratio above 1 means that this commit is slower. The server and the inputs are
    those of this checkout.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from benchmarks.figures import parse_sizes
from benchmarks.processes import ROOT, run_command
from benchmarks.synthetic import write_passages, write_topics
from tests.fake_server import FakeServer

DATA = ROOT.parent / "shared" / "data" / "comparative"
_TOPICS, _DOCUMENTS = range(1, 11), range(1000)


def list_results(tree: Path, folder: Path) -> dict[str, Any]:
    """Return the results of a checkout by name.

    Args:
        tree: Checkout.
        folder: New folder for the runs of the demo.
    """
    recorded = tree / "tests" / "regress"
    return {
        **list_demo_results(tree, folder),
        **list_recorded_files(recorded),
        **list_replay_results(tree, recorded),
        **list_measures(tree),
    }


def list_demo_results(tree: Path, folder: Path) -> dict[str, Any]:
    """Return the runs of the demo, and the answer keys of their records."""
    run_command("demo", "--out", folder, folder=tree, tree=tree)

    results: dict[str, Any] = {}
    for run in sorted(folder.glob("*/run.txt")):
        task = run.parent.name
        results[f"demo, {task}: run.txt"] = run.read_bytes()
        for file in sorted(run.parent.glob("*.jsonl")):
            records = [json.loads(line) for line in file.read_text().splitlines()]
            keys = [record.get("key", record.get("keys")) for record in records]
            results[f"demo, {task}: keys of {file.stem}"] = keys
    return results


def list_recorded_files(recorded: Path) -> dict[str, Any]:
    """Return the run and the answers of each recorded run.

    Each checkout replays its own recordings, since their format may differ; with the same runs and
    answers, both replay the same.
    """
    results: dict[str, Any] = {}
    for run in sorted(recorded.glob("*/run.txt")):
        name = run.parent.name
        results[f"recorded, {name}: run.txt"] = run.read_bytes()
        results[f"recorded, {name}: answers"] = (run.parent / "cassette.jsonl").read_bytes()
    return results


def list_replay_results(tree: Path, recorded: Path) -> dict[str, Any]:
    """Return for each recorded run whether its replay gives the same run."""
    output = run_command(
        "regress", "check", "--dir", recorded, folder=tree, tree=tree, codes=(0, 1)
    )

    results: dict[str, Any] = {}
    for line in output.splitlines():
        # Indented lines are details of the difference above.
        is_verdict = bool(line) and not line.startswith(" ")
        if is_verdict:
            name = line.split(": ")[0]
            results[f"regress check, {name}"] = line
    return results


def list_measures(tree: Path) -> dict[str, Any]:
    """Return the measures of the shared first stage, or none where its data are missing."""
    if not DATA.is_dir():
        return {}

    output = run_command(
        "evaluate",
        DATA / "candidates.run.txt",
        "--task",
        "comparative",
        "--relevance",
        DATA / "qrels-relevance.txt",
        "--quality",
        DATA / "qrels-quality.txt",
        "--format",
        "json",
        folder=tree,
        tree=tree,
    )

    results: dict[str, Any] = {}
    for row in json.loads(output):
        measure = row["measure"]
        results[f"evaluate: {measure}"] = [row["value"], row["n"], row["topics"]]
        results[f"evaluate: interval of {measure}"] = [row["low"], row["high"]]
    return results


def write_commands(folder: Path, url: str) -> dict[str, list[Any]]:
    """Return the commands that are timed, over inputs in a folder; write the inputs."""
    topics, passages, qrels, run = (
        folder / name for name in ("topics.xml", "passages.jsonl.gz", "qrels", "run")
    )
    write_topics(topics, len(_TOPICS))
    write_passages(passages, 5000)
    qrels.write_text(
        "".join(
            f"{topic} 0 passage-{each} {each % 3}\n" for topic in _TOPICS for each in _DOCUMENTS
        )
    )
    ranks = (
        f"{topic} Q0 passage-{each} {each + 1} {1000 - each} timed\n"
        for topic in _TOPICS
        for each in _DOCUMENTS
    )
    run.write_text("".join(ranks))
    data = ["--topics", topics, "--corpus", passages, "--depth", 200, "--index", "index"]
    server = [
        "--base-url",
        url,
        "--cache",
        "answers.sqlite",
        "--stance-depth",
        0,
        "--rank",
        "judge",
    ]
    return {
        "retrieve": ["retrieve", *data, "--out", "first"],
        "run": ["run", *data, *server, "--out", "second"],
        "evaluate": ["evaluate", run, "--task", "comparative", "--relevance", qrels],
    }


def time_commands(trees: Sequence[Path], folder: Path, rounds: int) -> dict[str, list[list[float]]]:
    """Return the processor seconds of each command by round and checkout, which take turns to begin."""
    seconds: dict[str, list[list[float]]] = {}
    with FakeServer().in_thread() as server:
        commands = write_commands(folder, server.url)
        for number in range(rounds):
            for name in commands:
                seconds.setdefault(name, []).append([0.0] * len(trees))
            for place in sorted(range(len(trees)), reverse=number % 2 == 0):
                with tempfile.TemporaryDirectory(dir=folder) as work:
                    for name, words in commands.items():
                        before = os.times()
                        run_command(*words, folder=Path(work), tree=trees[place])
                        after = os.times()
                        taken = after.children_user + after.children_system
                        seconds[name][-1][place] = (
                            taken - before.children_user - before.children_system
                        )
    return seconds


def describe_ratios(name: str, seconds: Sequence[Sequence[float]]) -> str:
    """Return one line: medians of both checkouts, and the mean ratio with its 95 % interval by Student's t."""
    old, new = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratios = np.array([mine / theirs for theirs, mine in seconds])
    interval = ttest_1samp(ratios, 1).confidence_interval()
    ratio = f"{np.mean(ratios):.3f} ({interval.low:.3f} to {interval.high:.3f})"
    return f"{name:<12} {old:7.2f} s {new:7.2f} s   ratio {ratio}"


def show_results(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Print which results differ; return whether one does."""
    differing = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    for key in sorted(old.keys() | new.keys()):
        print(f"{'DIFFERS' if key in differing else 'same':<8} {key}")
    return bool(differing)


def main() -> None:
    """Compare results, then times; exit with 1 if a result differs."""
    parser = parse_sizes(__doc__, rounds=(3, 5))
    parser.add_argument("revision", help="commit, branch or tag to compare with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = (folder / "other", folder / "mine")
        for tree, revision in zip(trees, (options.revision, "HEAD"), strict=True):
            subprocess.run(
                ["git", "worktree", "add", "--detach", "-q", tree, revision], cwd=ROOT, check=True
            )
        try:
            old, new = (list_results(tree, folder / f"demo-{tree.name}") for tree in trees)
            differs = show_results(old, new)
            print(
                f"\nprocessor seconds, medians of {options.rounds} rounds: {options.revision}, this commit"
            )
            for each, rounds in time_commands(trees, folder, options.rounds).items():
                print(describe_ratios(each, rounds))
        finally:
            for tree in trees:
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    sys.exit(1 if differs else 0)


if __name__ == "__main__":
    main()
