"""Tables on a real terminal of 80 and of 100 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.report.reports import sample_run

pytestmark = pytest.mark.slow
WIDTHS = (80, 100)
FIRST, SECOND = "runs/qwen3-4b-instruct-2507-pairwise", "runs/qwen3-4b-instruct-2507-judge-only"
QRELS = "--relevance relevance --quality quality --stance stance"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the sample in folders with long names, and qrels for them."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "runs").mkdir()
    for name, grade in ((FIRST, 5), (SECOND, 7)):
        sample_run("comparative", folder).rename(folder / name)
        lines = [line.split() for line in (folder / name / "run.txt").read_text().splitlines()]
        for aspect in ("relevance", "quality"):
            judged = (f"{line[0]} 0 {line[2]} {len(line[2] + aspect) % grade % 4}\n" for line in lines)
            (folder / aspect).write_text("".join(judged))
        (folder / "stance").write_text("".join(f"{line[0]} 0 {line[2]} {line[1]}\n" for line in lines))
    return folder


def run_on_terminal(command: str, width: int, folder: Path) -> list[str]:
    """Run a command whose standard streams are a terminal of this width; return the lines that it printed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    # Python and rich would take the width from these.
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2])}
    call = [sys.executable, "-m", "touche_llm", *command.split()]
    with subprocess.Popen(call, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment):
        os.close(slave)
        output = b""
        # Reading fails once the last writer is gone.
        try:
            while part := os.read(master, 65536):
                output += part
        except OSError:
            pass
    os.close(master)
    # A progress bar is drawn over itself.
    lines = _ESCAPE.sub("", output.decode()).replace("\r\n", "\n").split("\n")
    return [line.split("\r")[-1] for line in lines]


@pytest.fixture(scope="module")
def on_terminal(place: Path) -> Callable[[str, int], list[str]]:
    return lambda command, width: run_on_terminal(command, width, place)


COMMANDS = {
    "evaluate": (f"evaluate {FIRST} {SECOND} {QRELS}", ["nDCG@5", "nDCG@10", "official_ndcg@5", "macro-F1@5"]),
    "evaluate --per-topic": (f"evaluate {FIRST} {SECOND} {QRELS} --per-topic", ["3", "7"]),
    "evaluate --leaderboard": (f"evaluate {FIRST} {SECOND} {QRELS} --leaderboard", ["1"]),
    "evaluate --confusion": (f"evaluate {FIRST} {SECOND} {QRELS} --confusion", ["FIRST", "NEUTRAL"]),
    "compare": (f"compare {SECOND} --baseline {FIRST} {QRELS}", ["nDCG@10", "official_ndcg@5", "macro-F1@5"]),
    "validate": (f"validate {FIRST}", []),
    "show": (f"show {FIRST}", ["retrieve", "judge", "rank", "1"]),
    "show --topic": (f"show {FIRST} --topic 3", ["1", "20"]),
    "runs": ("runs", ["qwen3-4b-instruct-2507-pairwise", "qwen3-4b-instruct-2507-judge-only"]),
    "run --dry-run": (
        f"run --config {FIRST}/config.yaml --cache none --cache-mode reuse --out o --dry-run",
        ["judge", "rank"],
    ),
    "calibrate": (
        f"calibrate --run {FIRST} --stance stance --out t.yaml --overwrite --folds 2",
        ["fold 1", "all folds"],
    ),
    "regress record": (f"regress record {FIRST} --dir kept-{{width}}", []),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal_and_first_columns_are_whole(
    on_terminal: Callable[[str, int], list[str]], name: str, width: int
) -> None:
    command, first_cells = COMMANDS[name]
    lines = on_terminal(command.format(width=width), width)
    assert lines and not any("error" in line for line in lines), lines
    assert [line for line in lines if cell_len(line) > width] == []
    for cell in first_cells:
        assert any(re.match(rf"\s*{re.escape(cell)}(  |$)", line) for line in lines), (cell, lines)


def test_a_narrow_terminal_drops_the_least_important_columns_and_names_them(
    on_terminal: Callable[[str, int], list[str]],
) -> None:
    command, _ = COMMANDS["compare"]
    narrow, wide = on_terminal(command, 60), on_terminal(command, 140)
    (head, *_) = (line for line in narrow if line.startswith("measure"))
    assert head.split() == ["measure", "run", "change", "95", "%", "interval", "p", "Holm"]
    assert any(line.startswith("(not shown in 60 columns: value, baseline, +") for line in narrow)
    assert not any("not shown" in line for line in wide)


def test_runs_with_long_names_get_letters_and_a_legend(on_terminal: Callable[[str, int], list[str]]) -> None:
    lines = on_terminal(COMMANDS["evaluate"][0], 80)
    assert lines.count(f"A: {FIRST}") == lines.count(f"B: {SECOND}") == 1
    assert not any(FIRST in line for line in lines if not line.startswith("A: "))
