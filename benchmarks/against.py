"""Compare the checked-out commit with another revision: the same results, and the time of three commands, by turns.

    python -m benchmarks.against dbfba99 [--rounds 5] [--inputs]
    python -m benchmarks.against dbfba99 --inputs --replace prompts/comparative/task.yaml \
        "quality: 0.5, first_stage: 0.2" "quality: 0.5, first_stage: 0.05"

Results: `demo` gives the same bytes of every `run.txt` from the same answer keys, the recorded runs of the other
revision replay, and `evaluate` gives the same values (it may give more). Prompts, answers and defaults changed on
purpose: with `--inputs` this commit takes the prompts and answers of the other, with `--replace` its defaults.
Times: the processor seconds of `retrieve` (index and search of synthetic passages), `run` (2,000 judgments by a server
that answers at once) and `evaluate`, in both checkouts by turns, in as many rounds; a ratio above 1 means that this
commit is slower. The server and the inputs are those of this checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from benchmarks.synthetic import write_passages, write_topics
from tests.fake_server import FakeServer

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data" / "comparative"


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


def take_inputs(tree: Path, other: Path, replacements: Sequence[tuple[str, str, str]]) -> None:
    """Give a checkout the prompts and recorded answers of another one, and replace defaults in its files."""
    for file in [*other.glob("prompts/*/*.jinja"), *other.glob("touche_llm/samples/*/cassette.jsonl")]:
        shutil.copy(file, tree / file.relative_to(other))
    for name, old, new in replacements:
        text = (tree / name).read_text()
        if old not in text:
            sys.exit(f"{name}: does not contain {old!r}")
        (tree / name).write_text(text.replace(old, new))


def replay_results(tree: Path, recorded: Path) -> dict[str, Any]:
    """Return what `regress check` says of each recorded run."""
    command = [sys.executable, "-m", "touche_llm", "regress", "check", "--dir", str(recorded)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{tree}: regress check ended with {done.returncode}: {done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    return {f"regress check, {line.split(': ')[0]}": line for line in lines}


def evaluate_results(tree: Path) -> dict[str, Any]:
    """Return the values of `evaluate` for the run and qrels of the shared data, if they are there, by measure."""
    if not DATA.is_dir():
        return {}
    qrels = ["--relevance", str(DATA / "qrels-relevance.txt"), "--quality", str(DATA / "qrels-quality.txt")]
    command = ["touche_llm", "evaluate", str(DATA / "candidates.run.txt"), "--task", "comparative", *qrels]
    rows = json.loads(run_module(tree, [*command, "--format", "json"], tree))
    # Renamed since.
    names = [row.pop("measure").replace("official_ndcg", "touche_nDCG") for row in rows]
    fields = ("value", "low", "high", "n", "topics", "missing", "judged_topics")
    return {f"evaluate: {name}": [row[field] for field in fields] for name, row in zip(names, rows, strict=True)}


def list_commands(folder: Path, url: str) -> dict[str, list[str]]:
    """Return the commands that are timed, over inputs in a folder; write the inputs."""
    topics, passages, qrels = folder / "topics.xml", folder / "passages.jsonl.gz", folder / "qrels.txt"
    write_topics(topics, 10)
    write_passages(passages, 5000)
    grades = (f"{topic} 0 passage-{document} {document % 4}" for topic in range(1, 11) for document in range(1000))
    qrels.write_text("\n".join(grades) + "\n")
    ranks = (
        f"{topic} Q0 passage-{document} {document + 1} {1000 - document} timed"
        for topic in range(1, 11)
        for document in range(1000)
    )
    run = folder / "run.txt"
    run.write_text("\n".join(ranks) + "\n")
    data = ["--topics", str(topics), "--corpus", str(passages), "--depth", "200", "--index", "index"]
    server = ["--base-url", url, "--cache", "answers.sqlite", "--stance-depth", "0", "--rank", "judge"]
    return {
        "retrieve": ["retrieve", *data, "--out", "first"],
        "run": ["run", *data, *server, "--out", "second"],
        "evaluate": ["evaluate", str(run), "--task", "comparative", "--relevance", str(qrels)],
    }


def time_command(tree: Path, arguments: Sequence[str], folder: Path) -> float:
    """Return the processor seconds that a command takes in a checkout, its children included."""
    before = os.times()
    run_module(tree, ["touche_llm", *arguments], folder)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def time_commands(trees: Sequence[Path], folder: Path, rounds: int) -> dict[str, list[tuple[float, ...]]]:
    """Return the seconds of each command by round and checkout; a round begins with the other one each time."""
    seconds: dict[str, list[tuple[float, ...]]] = {}
    with FakeServer().in_thread() as server:
        commands = list_commands(folder, server.url)
        for number in range(rounds):
            taken: dict[tuple[str, Path], float] = {}
            for tree in trees if number % 2 else trees[::-1]:
                place = folder / "place"
                place.mkdir()
                taken |= {(name, tree): time_command(tree, words, place) for name, words in commands.items()}
                shutil.rmtree(place)
            for name in commands:
                seconds.setdefault(name, []).append(tuple(taken[name, tree] for tree in trees))
    return seconds


def describe_ratios(name: str, seconds: Sequence[tuple[float, ...]]) -> str:
    """Return one line: medians of both checkouts, and the mean ratio with its 95 % interval by Student's t."""
    old, new = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratios = np.array([mine / theirs for theirs, mine in seconds])
    line = f"{name:<12} {old:7.2f} s {new:7.2f} s   ratio {np.mean(ratios):.3f}"
    if len(ratios) < 3:
        return line
    interval = ttest_1samp(ratios, 1).confidence_interval()
    return f"{line} ({interval.low:.3f} to {interval.high:.3f})"


def main() -> None:
    """Compare results, then times; exit with 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="commit, branch or tag to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="0 leaves the times out (default: 5)")
    parser.add_argument("--inputs", action="store_true", help="take the revision's prompts and recorded answers")
    parser.add_argument("--replace", nargs=3, action="append", default=[], metavar=("FILE", "OLD", "NEW"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other, mine = folder / "other" / ROOT.name, folder / "mine" / ROOT.name
        for tree, revision in ((other, options.revision), (mine, "HEAD")):
            # A sibling named `shared` is where the benchmarks look for real data.
            tree.parent.mkdir()
            if (ROOT.parent / "shared").exists():
                (tree.parent / "shared").symlink_to(ROOT.parent / "shared")
            subprocess.run(["git", "worktree", "add", "--detach", "-q", tree, revision], cwd=ROOT, check=True)
        try:
            if options.inputs:
                take_inputs(mine, other, options.replace)
            recorded = shutil.copytree(other / "tests" / "regress", folder / "recorded")
            old, new = (
                demo_results(tree, folder / f"demo-{number}") | replay_results(tree, recorded) | evaluate_results(tree)
                for number, tree in enumerate((other, mine))
            )
            differing = sorted(key for key in old | new if old.get(key) != new.get(key))
            for key in sorted(old | new):
                print(f"{'DIFFERS' if key in differing else 'same':<8} {key}")
            if options.rounds:
                print(f"\nprocessor seconds, medians of {options.rounds} rounds: {options.revision}, this commit")
                for each, rounds in time_commands((other, mine), folder, options.rounds).items():
                    print(describe_ratios(each, rounds))
        finally:
            for tree in (other, mine):
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
