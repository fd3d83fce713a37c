"""The display of progress."""

from __future__ import annotations

import io
import sys
import time

import pytest
from rich.console import Console
from rich.text import Text

from touche_llm.api import progress as progress_module
from touche_llm.api.progress import ConsoleProgress, default_progress
from touche_llm.llm.counts import Counts

PROBLEM = "ClientOSError [Errno 32] Cannot write to closing transport, since the server left without an answer"


def test_facts_that_do_not_fit_into_the_terminal_are_cut_and_not_continued_on_another_line() -> (
    None
):
    screen = io.StringIO()
    progress = ConsoleProgress()
    progress.console = Console(file=screen, width=120, height=10, force_terminal=True)
    with progress.stage("judging", 1, counts := Counts()) as done:
        counts.retries, counts.problem = 7, f"{PROBLEM}: {PROBLEM}"
        done()
    (*_, last, note) = [
        line for line in Text.from_ansi(screen.getvalue()).plain.splitlines() if "judging" in line
    ]
    assert "retries" in last and last.rstrip().endswith("…")
    assert "note: judging: 7 retries" in note and screen.getvalue().split().count("Cannot") == 3


def test_a_script_shows_a_stage_that_takes_long_with_the_whole_error_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    with default_progress().stage("judging", 1) as done:
        done()
    assert screen.getvalue() == ""
    with ConsoleProgress().stage("ranking", 2, counts := Counts(cache_hits=4)) as done:
        counts.cache_hits, counts.retries, counts.problem = 5, 2, f"the connection broke: {PROBLEM}"
        done()
    assert screen.getvalue().startswith("ranking: 1/2 in 0.")
    assert (
        "1 cached" in screen.getvalue()
        and f"2 retries (last: the connection broke: {PROBLEM})" in screen.getvalue()
    )


def test_the_remaining_time_is_that_of_requests_and_not_of_cached_answers() -> None:
    screen, seconds = io.StringIO(), [0.0]
    progress = ConsoleProgress()
    progress.console = Console(
        file=screen, width=200, force_terminal=True, get_time=lambda: seconds[0]
    )
    with progress.stage("judging", 20, counts := Counts()) as done:
        for _ in range(10):
            counts.cache_hits += 1
            done()
        for _ in range(4):
            seconds[0] += 5.0
            counts.ended += 1
            done()
    last = Text.from_ansi(screen.getvalue()).plain.splitlines()[-1]
    # Six steps are left, at five seconds each.
    assert "14/20" in last and "30 s left" in last and "0.2 requests/s" in last


def test_a_script_shows_a_line_regularly_while_a_stage_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_module, "_PLAIN_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    with default_progress().stage("judging", 2) as done:
        while "0/2" not in screen.getvalue():
            time.sleep(0.01)
        done()
        while "1/2" not in screen.getvalue():
            time.sleep(0.01)
