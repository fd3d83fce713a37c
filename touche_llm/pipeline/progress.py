"""Progress of stages, on standard error: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.text import Text

from touche_llm.errors import to_printable
from touche_llm.llm.engine import Counts

_LOG = logging.getLogger(__name__)
_PLAIN_SECONDS = 10.0
_NOTEBOOK_SECONDS = 0.25
# Window of the rate of a stage that is not complete; longer than a server takes for most batches. With fewer steps in
# it the rate jumps as they leave, so that the whole stage counts.
_RATE_SECONDS, _MIN_STEPS = 60.0, 5
# A stage of fewer steps and without a model is a check: no remaining time.
_CHECKS = 100
# Below this width the bar keeps to what matters.
_WIDE = 110


class Progress(Protocol):
    """A display of warnings and of the progress of stages."""

    def warn(self, message: str) -> None:
        """Show a line that the user should read."""
        ...

    def stage(self, title: str, total: int, counts: Counts | None = None) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage of `total` steps while the block runs.

        Args:
            title: What the stage does.
            total: Number of steps.
            counts: Counters of the language model, updated while the stage runs.

        Returns:
            A context manager that yields a function to be called after each step.
        """
        ...


class SilentProgress:
    """Progress that shows nothing."""

    def warn(self, message: str) -> None:
        """Drop the message."""

    @contextmanager
    def stage(self, title: str, total: int, counts: Counts | None = None) -> Iterator[Callable[[], None]]:
        """Show nothing."""
        yield lambda: None


class ForwardedProgress:
    """Stages on another display, under a longer title; warnings are collected instead of shown.

    Attributes:
        messages: Warnings so far.
    """

    def __init__(self, display: Progress, what: str = "") -> None:
        """Forward to a display; `what` stands in parentheses behind each title."""
        self.messages: list[str] = []
        self._display, self._suffix = display, f" ({what})" if what else ""

    def warn(self, message: str) -> None:
        """Collect the message."""
        self.messages.append(message)

    def stage(self, title: str, total: int, counts: Counts | None = None) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage of `total` steps."""
        return self._display.stage(title + self._suffix, total, counts)


class ConsoleProgress:
    """Progress on standard error."""

    def __init__(self, min_seconds: float = 0.0) -> None:
        """Open the console; a stage that ends within `min_seconds` is shown only on a terminal."""
        self._min_seconds = min_seconds
        self.console = Console(stderr=True, highlight=False)
        # A terminal gets lines broken between words; a file gets each note as one line.
        self.console.soft_wrap = not self.console.is_terminal

    def warn(self, message: str) -> None:
        """Print a line; text from files is not taken for markup."""
        self.console.print(to_printable(f"note: {message}"), markup=False)

    @contextmanager
    def stage(self, title: str, total: int, counts: Counts | None = None) -> Iterator[Callable[[], None]]:
        """Show a stage of `total` steps; yields the function to call after each step. Always ends the bar."""
        state = StageState(title, total, counts)
        _LOG.info("%s: %d to do", title, total)
        if self.console.is_terminal:
            facts = _Facts(state, wide=self.console.width >= _WIDE)
            columns = (
                TextColumn("{task.description}"),
                BarColumn(12),
                MofNCompleteColumn(),
                facts,
            )
            with rich.progress.Progress(*columns, console=self.console) as bar:
                task = bar.add_task(title, total=total)

                def step() -> None:
                    state.advance()
                    bar.advance(task)

                yield step
            if state.spent.retries:
                self.warn(f"{title}: {state.spent.retries:,} retries; the last: {state.spent.problem}")
            state.log()
            return

        def show() -> None:
            self.console.print(state.line(), markup=False)

        with _show_regularly(state, _PLAIN_SECONDS, show, self._min_seconds):
            yield state.advance


class NotebookProgress:
    """Progress in the output of a Jupyter cell: one line per stage, updated in place."""

    def warn(self, message: str) -> None:
        """Print a line."""
        print(to_printable(f"note: {message}"))

    @contextmanager
    def stage(self, title: str, total: int, counts: Counts | None = None) -> Iterator[Callable[[], None]]:
        """Show a stage of `total` steps."""
        # Only in Jupyter, which has it.
        from IPython.display import display

        state = StageState(title, total, counts)
        handle = display({"text/plain": state.line()}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        with _show_regularly(state, _NOTEBOOK_SECONDS, lambda: handle.update({"text/plain": state.line()}, raw=True)):
            yield state.advance


def default_progress() -> Progress:
    """Return the display of a program without options: that of its notebook, or lines on standard error."""
    # Programs that start notebooks import `ipykernel` as well; only within one the shell has a kernel.
    ipython = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        return NotebookProgress()
    return ConsoleProgress(min_seconds=_PLAIN_SECONDS)


@contextmanager
def _show_regularly(
    state: StageState, seconds: float, show: Callable[[], None], min_seconds: float = 0.0
) -> Iterator[None]:
    """Show a stage every few seconds while the block runs and, unless it was short, at its end if it succeeds."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            show()

    # A thread, since a line is also due while nothing advances.
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if state.elapsed >= min_seconds:
        show()
    state.log()


class _Sample(NamedTuple):
    """State of a stage at a time: steps, requests that have ended, and requests that the cache answered."""

    time: float
    steps: int = 0
    ended: int = 0
    cached: int = 0


class StageState:
    """State of a stage: steps so far, rate and remaining time."""

    def __init__(self, title: str, total: int, counts: Counts | None = None) -> None:
        """Start the clock of a stage of `total` steps."""
        self.title, self.total, self.counts = title, total, counts
        # The counts go on from stage to stage; shown is what is of this one.
        self._before = replace(counts) if counts is not None else Counts()
        self.done = 0
        self._start = _Sample(time.monotonic())
        # The first one is that at the beginning of the window.
        self._recent = deque([self._start])

    @property
    def spent(self) -> Counts:
        """Counts of this stage."""
        return Counts() if self.counts is None else self.counts.since(self._before)

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._start.time

    def advance(self) -> None:
        """Count one step."""
        self.done += 1
        self._recent.append(self._take_sample())

    def rate(self) -> float:
        """Return the requests that end per second, or the steps of a stage without requests.

        The rate is that of the last minute; of a complete stage, and if none has ended of late, that of all of it.
        """
        return self._measure(
            lambda since, now: now.steps - since.steps if self.counts is None else now.ended - since.ended
        )

    def estimate_rest(self) -> float | None:
        """Return the seconds that the remaining steps take if each needs the server; None if that is unknown.

        The few requests of a check differ too much to say anything of the next ones.
        """
        if self.counts is None and self.total < _CHECKS:
            return None
        speed = self._measure(_count_sent)
        return (self.total - self.done) / speed if speed and self.done < self.total else None

    def _take_sample(self) -> _Sample:
        spent = self.spent
        return _Sample(time.monotonic(), self.done, spent.ended, spent.cache_hits + spent.known_failures)

    def _measure(self, count: Callable[[_Sample, _Sample], float]) -> float:
        now = self._take_sample()
        while len(self._recent) > 1 and self._recent[1].time <= now.time - _RATE_SECONDS:
            self._recent.popleft()
        since = self._recent[0]
        if self.done >= self.total or count(since, now) < _MIN_STEPS:
            since = self._start
        return count(since, now) / max(now.time - since.time, 1e-3)

    def facts(self, wide: bool, is_whole: bool = False) -> str:
        """Return what is known beside the number of steps, the most important first, with the error or its kind."""
        parts = [f"{self.elapsed:.1f} s"]
        rest = self.estimate_rest()
        if rest is not None:
            parts.append(f"{rest:,.0f} s left")
        spent = self.spent
        if self.counts is not None:
            parts += [f"{spent.failures:,} failed", f"{spent.cache_hits:,} cached"]
        if spent.retries:
            # The bar has no room for more than the kind.
            problem = spent.problem if is_whole else spent.problem.partition(":")[0]
            parts.append(f"{spent.retries:,} retries" + (f" (last: {problem})" if wide else ""))
        rate = self.rate()
        parts.append(f"{rate:,.1f}" if rate >= 1 else f"{rate:.2g}")
        parts[-1] += "/s" if self.counts is None else " requests/s"
        if self.counts is not None and wide:
            parts.append(f"{spent.prompt_tokens:,}+{spent.completion_tokens:,} tokens")
        return ", ".join(parts)

    def log(self) -> None:
        """Log what the stage took; not its last problem, which may quote a prompt."""
        done = self.title, self.done, self.total, self.elapsed
        _LOG.info("%s: %d of %d in %.1f s, %d failed, %d retries", *done, self.spent.failures, self.spent.retries)

    def line(self) -> str:
        """Return all of it as one line."""
        return to_printable(f"{self.title}: {self.done:,}/{self.total:,} in {self.facts(wide=True, is_whole=True)}")


def _count_sent(since: _Sample, now: _Sample) -> float:
    """Return the steps between two samples that the server answered: of those of the cache, one needs no time."""
    steps, ended, cached = (now.steps - since.steps, now.ended - since.ended, now.cached - since.cached)
    return steps * ended / (ended + cached) if ended + cached else float(steps)


class _Facts(ProgressColumn):
    """The facts of a stage, drawn anew also while nothing advances."""

    def __init__(self, state: StageState, wide: bool) -> None:
        super().__init__()
        self._state, self._wide = state, wide

    def render(self, task: Task) -> Text:
        return Text(to_printable(self._state.facts(self._wide)), overflow="ellipsis", no_wrap=True)
