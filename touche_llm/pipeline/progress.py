"""Progress of stages, on standard error: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from touche_llm.errors import to_printable
from touche_llm.llm.counts import Counts

_LOG = logging.getLogger(__name__)
_PLAIN_SECONDS = 10.0
_NOTEBOOK_SECONDS = 0.25
# The rate is that of the last half minute, so that answers from the cache do not promise what the engine cannot hold.
_RATE_SECONDS = 30.0
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


class ConsoleProgress:
    """Progress on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        # A terminal gets lines broken between words; a file gets each note as one line.
        self.console.soft_wrap = not self.console.is_terminal

    def warn(self, message: str) -> None:
        """Print a line; text from files is not taken for markup."""
        self.console.print(to_printable(f"note: {message}"), markup=False)

    @contextmanager
    def stage(self, title: str, total: int, counts: Counts | None = None) -> Iterator[Callable[[], None]]:
        """Show a stage of `total` steps; yields the function to call after each step. Always ends the bar."""
        state = _Stage(title, total, counts)
        _LOG.info("%s: %d to do", title, total)
        if self.console.is_terminal:
            facts = _Facts(state, wide=self.console.width >= _WIDE)
            columns = (
                TextColumn("{task.description}"),
                BarColumn(12),
                MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                facts,
            )
            with rich.progress.Progress(*columns, console=self.console) as bar:
                task = bar.add_task(title, total=total)

                def step() -> None:
                    state.advance()
                    bar.advance(task)

                yield step
            state.log()
            return
        with _show_regularly(state, _PLAIN_SECONDS, lambda: self.console.print(state.line(), markup=False)):
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

        state = _Stage(title, total, counts)
        handle = display({"text/plain": state.line()}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        with _show_regularly(state, _NOTEBOOK_SECONDS, lambda: handle.update({"text/plain": state.line()}, raw=True)):
            yield state.advance


@contextmanager
def _show_regularly(state: _Stage, seconds: float, show: Callable[[], None]) -> Iterator[None]:
    """Show a stage every few seconds while the block runs, and at its end if it succeeds."""
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
    show()
    state.log()


class _Stage:
    """How far a stage is."""

    def __init__(self, title: str, total: int, counts: Counts | None) -> None:
        self.title, self.total, self.counts = title, total, counts
        # The counts go on from stage to stage; shown is what is of this one.
        self._before = replace(counts) if counts is not None else Counts()
        self.done = 0
        self._started = time.monotonic()
        self._recent = deque([(self._started, 0)])

    def advance(self) -> None:
        """Count one step."""
        self.done += 1
        now = time.monotonic()
        self._recent.append((now, self.done))
        while now - self._recent[0][0] > _RATE_SECONDS:
            self._recent.popleft()

    def rate(self) -> float:
        """Steps a second of late."""
        since, done = self._recent[0]
        return (self.done - done) / max(time.monotonic() - since, 1e-3)

    def facts(self, wide: bool) -> str:
        """What is known beside the number of steps, the most important first."""
        parts = []
        spent = None if self.counts is None else self.counts.since(self._before)
        if spent is not None:
            parts += [f"{spent.failures:,} failed", f"{spent.cache_hits:,} cached"]
            if spent.retries:
                parts.append(f"{spent.retries:,} retries" + (f" (last: {spent.problem:.60})" if wide else ""))
        parts.append(f"{self.rate():,.1f}/s")
        if spent is not None and wide:
            parts.append(f"{spent.prompt_tokens:,}+{spent.completion_tokens:,} tokens")
        return ", ".join(parts)

    def log(self) -> None:
        """Log what the stage took; not its last problem, which may quote a prompt."""
        seconds = time.monotonic() - self._started
        spent = Counts() if self.counts is None else self.counts.since(self._before)
        done = self.title, self.done, self.total, seconds
        _LOG.info("%s: %d of %d in %.1f s, %d failed, %d retries", *done, spent.failures, spent.retries)

    def line(self) -> str:
        """All of it as one line."""
        rate = self.rate()
        left = f", {(self.total - self.done) / rate:,.0f} s left" if self.done < self.total and rate > 0 else ""
        elapsed = time.monotonic() - self._started
        return to_printable(
            f"{self.title}: {self.done:,}/{self.total:,} in {elapsed:.1f} s{left}, {self.facts(wide=True)}"
        )


class _Facts(ProgressColumn):
    """The facts of a stage, drawn anew also while nothing advances."""

    def __init__(self, state: _Stage, wide: bool) -> None:
        super().__init__()
        self._state, self._wide = state, wide

    def render(self, task: Task) -> Text:
        return Text(to_printable(self._state.facts(self._wide)), overflow="ellipsis", no_wrap=True)
