"""The display of progress."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console
from rich.text import Text

from touche_llm.llm.counts import Counts
from touche_llm.pipeline.progress import ConsoleProgress


def test_the_rate_is_that_of_the_last_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    screen = io.StringIO()
    progress = ConsoleProgress()
    progress.console = Console(file=screen, width=200)
    with progress.stage("judging", 106) as done:
        for now, steps in ((10.0, 100), (31.0, 1), (36.0, 5)):  # noqa: B007, the clock reads it
            for _ in range(steps):
                done()
    # 105 steps since the first one at 10 s, which is the oldest within half a minute.
    assert re.findall(r"([\d.]+)/s", screen.getvalue()) == [f"{105 / 26:.1f}"]
    last = screen.getvalue().splitlines()[-1]
    assert "106/106" in last and " left" not in last


def test_numbers_in_a_note_are_not_coloured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    ConsoleProgress().warn("42 of 'these'")
    assert capsys.readouterr().err == "note: 42 of 'these'\n"


def test_facts_that_do_not_fit_into_the_terminal_are_cut_and_not_continued_on_another_line() -> None:
    screen = io.StringIO()
    progress = ConsoleProgress()
    progress.console = Console(file=screen, width=120, height=10, force_terminal=True)
    with progress.stage("judging", 1, counts := Counts()) as done:
        counts.retries, counts.problem = 7, "the server is busy, and will be so for a while, since others use it"
        done()
    (*_, last) = [line for line in Text.from_ansi(screen.getvalue()).plain.splitlines() if "judging" in line]
    assert "failed" in last and last.rstrip().endswith("…")
