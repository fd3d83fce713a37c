"""Time and memory of commands that do little: the help, completions, the check of a run.

    python -m benchmarks.start_up [--rounds 10] [--against REVISION]

Each command runs in processes of its own, once untimed and then once a round. With `--against`, the
commands of that revision run by turns with those of this checkout. The values are medians, of the
seconds with the extremes; the peak of memory is that of the process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
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
    """Command of the program, called in a folder with the run of a sample.

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
    """Checkout of the project.

    Attributes:
        name: Name in the table.
        tree: Root of the checkout.
        work: Folder with the run of a sample, made by the program of the checkout.
    """

    name: str
    tree: Path
    work: Path


def complete(name: str, words: str) -> TimedCommand:
    """Return the request of bash to complete the last word."""
    variables = {
        "_TOUCHE_LLM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    return TimedCommand(name, [], variables)


COMMANDS = (
    TimedCommand("--help", ["--help"]),
    TimedCommand("prompts --help", ["prompts", "--help"]),
    TimedCommand("run --help", ["run", "--help"]),
    TimedCommand("evaluate --help", ["evaluate", "--help"]),
    complete("completion of a command", "touche-llm r"),
    complete("completion of a command of prompts", "touche-llm prompts c"),
    complete("completion of an option of run", "touche-llm run --cache-m"),
    complete("completion of an option of evaluate", "touche-llm evaluate --per"),
    TimedCommand("validate", ["validate", _TASK]),
    TimedCommand("show", ["show", _TASK]),
)


def prepare(name: str, tree: Path, work: Path) -> Checkout:
    """Make the run of a sample with the program of a checkout."""
    run_command("demo", "--task", _TASK, "--out", work, folder=tree, tree=tree)
    return Checkout(name, tree, work)


def run_timed(command: TimedCommand, checkout: Checkout) -> Ended:
    """Run a command of a checkout; exit if it fails or prints nothing."""
    variables = {**os.environ, "PYTHONPATH": str(checkout.tree), **command.variables}
    # Without bytecode, which an installed program has, each process would compile all modules.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = run_program(
        [sys.executable, "-m", "touche_llm", *command.arguments],
        checkout.work,
        variables,
        poll_seconds=_POLL_SECONDS,
    )
    if ended.code != 0 or not ended.output:
        raise SystemExit(f"{command.name}: failed with exit code {ended.code}: {ended.errors}")
    return ended


def measure(checkouts: Sequence[Checkout], rounds: int) -> dict[tuple[str, str], list[Ended]]:
    """Return the processes by the name of the command and that of the checkout."""
    processes: dict[tuple[str, str], list[Ended]] = defaultdict(list)
    # The first round writes the bytecode, and is not counted.
    for number in range(rounds + 1):
        in_turn = checkouts if number % 2 == 0 else checkouts[::-1]
        for command in COMMANDS:
            for checkout in in_turn:
                ended = run_timed(command, checkout)
                if number > 0:
                    processes[command.name, checkout.name].append(ended)
    return processes


def describe(processes: Sequence[Ended]) -> str:
    """Return the time and memory of the processes of a command."""
    seconds = format_range([process.seconds for process in processes], ".2f")
    cpu = statistics.median(process.cpu for process in processes)
    mib = statistics.median(process.mib for process in processes)
    return f"{seconds} s, {cpu:.2f} s of a core, {mib:.0f} MiB"


def measure_and_show(checkouts: Sequence[Checkout], rounds: int) -> None:
    """Measure the commands, and print a table with the load of the machine."""
    load_before = os.getloadavg()[0]
    processes = measure(checkouts, rounds)
    load_after = os.getloadavg()[0]

    figures = []
    for command in COMMANDS:
        values = [describe(processes[command.name, checkout.name]) for checkout in checkouts]
        figures.append(Figure(command.name, *values))
    names = " and ".join(checkout.name for checkout in checkouts)
    show(f"Start of commands, {rounds} rounds: {names}", figures)
    print(f"load over a minute: {load_before:.1f} before, {load_after:.1f} after")


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


def main() -> None:
    """Measure the commands here and, if a revision is named, in a checkout of it."""
    parser = parse_sizes(__doc__, rounds=(1, 10))
    parser.add_argument("--against", metavar="REVISION", help="revision to compare with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mine = prepare("this checkout", ROOT, folder / "mine")
        if options.against is None:
            measure_and_show([mine], options.rounds)
            return

        tree = folder / "tree"
        with check_out(options.against, tree):
            other = prepare(options.against, tree, folder / "other")
            measure_and_show([mine, other], options.rounds)


if __name__ == "__main__":
    main()
