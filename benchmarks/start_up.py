"""Time and memory of commands that do little: the help, completions, the check of a run.

    python -m benchmarks.start_up [--rounds 10] [--against REVISION]

Each command runs in processes of its own, once untimed and then once a round. With `--against`,
each also runs in a checkout of that revision, and the two checkouts take turns to begin. The values
are medians, of the seconds with the extremes; the peak of memory is that of the process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Figure, format_range, parse_sizes, show
from benchmarks.processes import ROOT, Ended, run_command, run_program

_TASK = "comparative"
# The shortest of the processes ends after about 100 ms.
_POLL_SECONDS = 0.002


@dataclass(frozen=True)
class TimedCommand:
    """Command of the program.

    Attributes:
        name: Name in the table.
        arguments: Arguments of the command line.
        variables: Additional environment variables.
    """

    name: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkout:
    """Checkout of the project, with a run that it made."""

    tree: Path
    run: Path


def list_commands(run: Path) -> list[TimedCommand]:
    """Return the commands that are timed; some of them read a run."""
    return [
        TimedCommand("--help", ["--help"]),
        TimedCommand("prompts --help", ["prompts", "--help"]),
        TimedCommand("run --help", ["run", "--help"]),
        TimedCommand("evaluate --help", ["evaluate", "--help"]),
        complete("completion of a command", "touche-llm r"),
        complete("completion of a command of prompts", "touche-llm prompts c"),
        complete("completion of an option of run", "touche-llm run --cache-m"),
        complete("completion of an option of evaluate", "touche-llm evaluate --per"),
        TimedCommand("validate", ["validate", str(run)]),
        TimedCommand("show", ["show", str(run)]),
    ]


def complete(name: str, words: str) -> TimedCommand:
    """Return the request of bash to complete the last word."""
    variables = {
        "_TOUCHE_LLM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    return TimedCommand(name, [], variables)


def run_timed(command: TimedCommand, tree: Path, folder: Path) -> Ended:
    """Run a command of a checkout in a folder; exit if it fails."""
    variables = {**os.environ, "PYTHONPATH": str(tree), **command.variables}
    # Without bytecode, which an installed program has, each process would compile all modules.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = run_program(
        [sys.executable, "-m", "touche_llm", *command.arguments],
        folder,
        variables,
        poll_seconds=_POLL_SECONDS,
    )
    if ended.code != 0 or not ended.output:
        raise SystemExit(f"{command.name}: failed with exit code {ended.code}: {ended.errors}")
    return ended


def measure(
    checkouts: Sequence[Checkout], folder: Path, rounds: int
) -> dict[str, list[list[Ended]]]:
    """Return the processes of each command, a list for each checkout."""
    processes: dict[str, list[list[Ended]]] = {}
    # The first round writes the bytecode, and is not counted.
    for number in range(rounds + 1):
        places = list(range(len(checkouts)))
        if number % 2:
            places.reverse()
        for place in places:
            checkout = checkouts[place]
            for command in list_commands(checkout.run):
                ended = run_timed(command, checkout.tree, folder)
                of_command = processes.setdefault(command.name, [[] for _ in checkouts])
                if number > 0:
                    of_command[place].append(ended)
    return processes


def describe(processes: Sequence[Ended]) -> str:
    """Return the time and memory of the processes of a command."""
    seconds = format_range([process.seconds for process in processes], ".2f")
    cpu = statistics.median(process.cpu for process in processes)
    mib = statistics.median(process.mib for process in processes)
    return f"{seconds} s, {cpu:.2f} s of a core, {mib:.0f} MiB"


def prepare(tree: Path, folder: Path) -> Checkout:
    """Make a run of the sample with the program of a checkout."""
    run_command("demo", "--task", _TASK, "--out", folder, folder=tree, tree=tree)
    return Checkout(tree=tree, run=folder / _TASK)


@contextmanager
def check_out(revision: str, tree: Path) -> Iterator[None]:
    """Check out a revision in a new folder, and remove it afterwards."""
    add = ["git", "worktree", "add", "--detach", "-q", str(tree), revision]
    subprocess.run(add, cwd=ROOT, check=True)
    try:
        yield
    finally:
        remove = ["git", "worktree", "remove", "--force", str(tree)]
        subprocess.run(remove, cwd=ROOT, check=True)


def measure_and_show(trees: Mapping[str, Path], folder: Path, rounds: int) -> None:
    """Measure the commands in checkouts, the first of which is this one, and print the table."""
    checkouts = [prepare(tree, folder / f"demo-{name}") for name, tree in trees.items()]
    load_before = os.getloadavg()
    processes = measure(checkouts, folder, rounds)

    figures = []
    for name, by_checkout in processes.items():
        described = [describe(of_checkout) for of_checkout in by_checkout]
        figures.append(Figure(name, *described))
    show(f"Start of commands, {rounds} rounds: {', '.join(trees)}", figures)
    print(f"load of the last minute: {load_before[0]:.1f} before, {os.getloadavg()[0]:.1f} after")


def main() -> None:
    """Measure the commands here and, if a revision is named, in a checkout of it."""
    parser = parse_sizes(__doc__, rounds=(1, 10))
    parser.add_argument("--against", metavar="REVISION", help="revision to compare with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.against is None:
            measure_and_show({"this checkout": ROOT}, folder, options.rounds)
            return
        other = folder / "other"
        with check_out(options.against, other):
            trees = {"this checkout": ROOT, options.against: other}
            measure_and_show(trees, folder, options.rounds)


if __name__ == "__main__":
    main()
