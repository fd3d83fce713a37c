"""What every benchmark prints: figures beside those of their peers, and the machine that they are of."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

_GIB = 2**30


@dataclass(frozen=True)
class Figure:
    """A row of a table: what was measured, the value with its unit, and another program's in the same run."""

    what: str
    value: str
    peer: str = ""


def show(title: str, figures: Iterable[Figure]) -> None:
    """Print a table of figures; the machine stands below it."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("what", "measured", "peer"):
        table.add_column(column, overflow="fold")
    for each in figures:
        table.add_row(each.what, each.value, each.peer)
    console = Console(highlight=False, markup=False, width=140)
    console.print(table)
    console.print(f"{machine()}", end="\n\n")


def format_range(values: Sequence[float], form: str) -> str:
    """The median and, of several, the extremes."""
    middle = format(statistics.median(values), form)
    return (
        middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"
    )


def machine() -> str:
    """The machine, in a line: processor, cores that may be used, memory, versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return f"{_processor()}, {cores} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def peak_gib(of: int = resource.RUSAGE_CHILDREN) -> float:
    """The most memory that a process of the given kind held, in GiB: `RUSAGE_SELF` or the largest of the children."""
    return resource.getrusage(of).ru_maxrss * 1024 / _GIB


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def parse_sizes(description: str | None, **sizes: tuple[int, int]) -> argparse.ArgumentParser:
    """Return the parser of a command line with options for sizes, each with its minimum and its default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (least, default) in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=at_least(least), default=default)
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """A `type` of argparse: integers that are no less than `least`."""

    def size(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no integer of {least} or more")
        return int(text)

    return size
