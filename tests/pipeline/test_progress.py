"""The display of progress."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console
from rich.text import Text

from touche_llm.llm.engine import Counts
from touche_llm.pipeline import progress as progress_module
from touche_llm.pipeline.progress import ConsoleProgress, StageState, default_progress

PROBLEM = "ClientOSError [Errno 32] Cannot write to closing transport, since the server left without an answer"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    now = 0.0

    def move(to: float) -> None:
        nonlocal now
        now = to

    monkeypatch.setattr(time, "monotonic", lambda: now)
    yield move


def test_the_rate_of_a_complete_stage_is_that_of_all_of_its_requests(clock: Callable[[float], None]) -> None:
    stage = StageState("judging", 16, counts := Counts())
    for second in range(16):
        clock(40.7 + second / 8)
        counts.ended += 1
        stage.advance()
    clock(42.7)
    assert stage.rate() == pytest.approx(16 / 42.7)
    assert "0.37 requests/s" in stage.line() and stage.estimate_rest() is None


def test_the_remaining_time_is_that_of_requests_and_not_of_cached_answers(clock: Callable[[float], None]) -> None:
    stage = StageState("judging", 210, counts := Counts())
    for _ in range(100):
        counts.cache_hits += 1
        stage.advance()
    assert stage.estimate_rest() is None
    for number in range(1, 101):
        clock(3.0 * number)
        counts.ended += 1
        stage.advance()
        assert stage.rate() == pytest.approx(1 / 3)
        assert stage.estimate_rest() == pytest.approx(3.0 * (110 - number))


def test_the_rate_is_that_of_the_last_minute(clock: Callable[[float], None]) -> None:
    stage = StageState("retrieving", 200)
    for second in range(1, 101):
        clock(float(second))
        stage.advance()
    for number in range(1, 10):
        clock(100.0 + 10.0 * number)
        stage.advance()
    assert stage.rate() == pytest.approx(0.1)
    assert stage.estimate_rest() == pytest.approx(910.0)


def test_facts_that_do_not_fit_into_the_terminal_are_cut_and_not_continued_on_another_line() -> None:
    screen = io.StringIO()
    progress = ConsoleProgress()
    progress.console = Console(file=screen, width=120, height=10, force_terminal=True)
    with progress.stage("judging", 1, counts := Counts()) as done:
        counts.retries, counts.problem = 7, f"{PROBLEM}: {PROBLEM}"
        done()
    (*_, last, note) = [line for line in Text.from_ansi(screen.getvalue()).plain.splitlines() if "judging" in line]
    assert "failed" in last and last.rstrip().endswith("…")
    assert "note: judging: 7 retries" in note and screen.getvalue().split().count("Cannot") == 3


def test_a_line_has_the_last_error_whole_and_the_bar_its_kind() -> None:
    stage = StageState("judging", 1, counts := Counts())
    counts.retries, counts.problem = 2, f"the connection broke: {PROBLEM}"
    assert f"2 retries (last: the connection broke: {PROBLEM})" in stage.line()
    assert "2 retries (last: the connection broke)" in stage.facts(wide=True)


def test_a_script_shows_a_stage_that_takes_long_and_no_other(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    shown = default_progress()
    with shown.stage("judging", 1) as done:
        done()
    assert screen.getvalue() == ""
    with shown.stage("ranking", 1) as done:
        clock(12.0)
        done()
    assert screen.getvalue().startswith("ranking: 1/1 in 12.0 s")


def test_a_script_shows_a_line_regularly_while_a_stage_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_PLAIN_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    with default_progress().stage("judging", 2) as done:
        while "0/2" not in screen.getvalue():
            time.sleep(0.01)
        done()
        while "1/2" not in screen.getvalue():
            time.sleep(0.01)
