"""Compare the checked-out commit with another revision: are the results the same?

    python -m benchmarks.against dbfba99 [--inputs]
    python -m benchmarks.against dbfba99 --inputs --replace prompts/comparative/task.yaml \
        "quality: 0.5, first_stage: 0.2" "quality: 0.5, first_stage: 0.05"

`demo` gives the same bytes of every `run.txt` from the same answer keys, the recorded runs of the other revision
replay, and `evaluate` gives the same values (it may give more). Prompts, answers and defaults changed on purpose: with
`--inputs` this commit takes the prompts and answers of the other, with `--replace` its defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data" / "comparative"


def run_module(tree: Path, *arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Run the program of a checkout; return standard output, exit unless it ends with one of the codes."""
    command = [sys.executable, "-m", "touche_llm", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{tree}: {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def demo_results(tree: Path, folder: Path) -> dict[str, Any]:
    """Return the bytes of each `run.txt` of the demo and the answer keys in its files of records."""
    run_module(tree, "demo", "--out", str(folder))
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
    output = run_module(tree, "regress", "check", "--dir", str(recorded), codes=(0, 1))
    lines = [line for line in output.splitlines() if line and not line.startswith(" ")]
    return {f"regress check, {line.split(': ')[0]}": line for line in lines}


def evaluate_results(tree: Path) -> dict[str, Any]:
    """Return the values of `evaluate` for the run and qrels of the shared data, if they are there, by measure."""
    if not DATA.is_dir():
        return {}
    qrels = ["--relevance", str(DATA / "qrels-relevance.txt"), "--quality", str(DATA / "qrels-quality.txt")]
    command = ["evaluate", str(DATA / "candidates.run.txt"), "--task", "comparative", *qrels]
    rows = json.loads(run_module(tree, *command, "--format", "json"))
    # Renamed since.
    names = [row.pop("measure").replace("official_ndcg", "touche_nDCG") for row in rows]
    fields = ("value", "low", "high", "n", "topics", "missing", "judged_topics")
    return {f"evaluate: {name}": [row[field] for field in fields] for name, row in zip(names, rows, strict=True)}


def main() -> None:
    """Compare results; exit with 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="commit, branch or tag to compare with")
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
        finally:
            for tree in (other, mine):
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
