"""Progress of stages, on standard error: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.text import Text

from touche_llm.errors import to_printable
from touche_llm.llm.counts import Counts

_LOG = logging.getLogger(__name__)
_PLAIN_SECONDS = 10.0


class Progress(Protocol):
    """A display of warnings and of the progress of stages."""

    def warn(self, message: str) -> None:
        """Show a line that the user should read."""
        ...

    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage of `total` steps while the block runs.

        The function is to be called after each.

        `counts` are counters of the language model that are updated while the stage runs.
        """
        ...


class SilentProgress:
    """Progress that shows nothing."""

    def warn(self, message: str) -> None:
        """Drop the message."""

    @contextmanager
    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> Iterator[Callable[[], None]]:
        """Show nothing."""
        yield lambda: None


class ForwardedProgress:
    """Stages on another display, under a longer title; warnings are collected instead of shown."""

    def __init__(self, display: Progress, what: str = "") -> None:
        """Forward to a display; `what` stands in parentheses behind each title."""
        self.messages: list[str] = []
        self._display, self._suffix = display, f" ({what})" if what else ""

    def warn(self, message: str) -> None:
        """Collect the message."""
        self.messages.append(message)

    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage of `total` steps."""
        return self._display.stage(title + self._suffix, total, counts)


class ConsoleProgress:
    """Progress on standard error."""

    def __init__(self, min_seconds: float = 0.0) -> None:
        """Open the console; a stage that ends within `min_seconds` is shown only on a terminal."""
        self._min_seconds = min_seconds
        self.console = Console(stderr=True, highlight=False, force_jupyter=False)
        # A terminal gets lines broken between words; a file gets each note as one line.
        self.console.soft_wrap = not self.console.is_terminal

    def warn(self, message: str) -> None:
        """Print a line; text from files is not taken for markup."""
        self.console.print(to_printable(f"note: {message}"), markup=False)

    @contextmanager
    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> Iterator[Callable[[], None]]:
        """Show a stage of `total` steps; yields the function to call after each step.

        Always ends the bar.
        """
        stage = _Stage(title, total, counts, self.console)
        _LOG.info("%s: %d to do", title, total)
        if self.console.is_terminal:
            with stage.bar:
                yield stage.step
            if stage.spent.retries:
                self.warn(
                    f"{title}: {stage.spent.retries:,} retries; the last: {stage.spent.problem}"
                )
        else:
            with _repeat(lambda: self.console.print(stage.line(), markup=False)) as show:
                yield stage.step
            if stage.elapsed >= self._min_seconds:
                show()
        stage.log()


def default_progress() -> Progress:
    """Return the display of a program without options.

    A stage that is short is shown only on a terminal.
    """
    return ConsoleProgress(min_seconds=_PLAIN_SECONDS)


@contextmanager
def _repeat(show: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Call a function every few seconds while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_PLAIN_SECONDS):
            show()

    # A thread, since a line is also due while nothing advances.
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        ended.set()
        thread.join()


class _Stage(ProgressColumn):
    """State of a stage, kept by a bar that only a terminal shows.

    As a column, the facts beside the bar.
    """

    def __init__(
        self, title: str, total: int, counts: Counts | None = None, console: Console | None = None
    ) -> None:
        """Start the clock of a stage of `total` steps."""
        super().__init__()
        self.counts = counts
        # The counts grow from stage to stage; only those of this one are shown.
        self._before = replace(counts) if counts is not None else Counts()
        columns = (TextColumn("{task.description}"), BarColumn(12), MofNCompleteColumn(), self)
        self.bar = rich.progress.Progress(*columns, console=console)
        self.bar.add_task(title, total=total)
        (self._task,) = self.bar.tasks

    @property
    def spent(self) -> Counts:
        """Counts of this stage."""
        return Counts() if self.counts is None else self.counts.since(self._before)

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return self._task.elapsed or 0.0

    def step(self) -> None:
        """Count one step."""
        self.bar.advance(self._task.id)

    def render(self, task: Task) -> Text:
        """Return the facts as far as they fit, with no more of the last error than its kind."""
        problem = self.spent.problem.partition(":")[0]
        return Text(to_printable(self._describe(problem)), overflow="ellipsis", no_wrap=True)

    def line(self) -> str:
        """Return all of it as one line."""
        done, total = int(self._task.completed), int(self._task.total or 0)
        return to_printable(
            f"{self._task.description}: {done:,}/{total:,} in {self._describe(self.spent.problem)}"
        )

    def log(self) -> None:
        """Log what the stage took; not its last problem, which may quote a prompt."""
        task, spent = self._task, self.spent
        done = task.description, task.completed, task.total, self.elapsed
        _LOG.info(
            "%s: %d of %d in %.1f s, %d failed, %d retries", *done, spent.failures, spent.retries
        )

    def _describe(self, problem: str) -> str:
        """Return what is known beside the number of steps, the most important first."""
        spent, parts = self.spent, [f"{self.elapsed:.1f} s"]
        # A step that the cache answers needs no time.
        known = spent.cache_hits + spent.known_failures
        sent = self._task.completed * (
            spent.ended / (spent.ended + known) if spent.ended else not known
        )
        if sent and self._task.remaining:
            parts.append(f"{self._task.remaining * self.elapsed / sent:,.0f} s left")
        parts += [f"{spent.failures:,} failed"] * bool(spent.failures)
        parts += [f"{spent.cache_hits:,} cached"] * bool(spent.cache_hits)
        if spent.retries:
            parts.append(f"{spent.retries:,} retries (last: {problem})")
        rate = (self._task.completed if self.counts is None else spent.ended) / max(
            self.elapsed, 1e-3
        )
        if rate:
            unit = "/s" if self.counts is None else " requests/s"
            parts.append((f"{rate:,.1f}" if rate >= 1 else f"{rate:.2g}") + unit)
        if spent.prompt_tokens:
            parts.append(f"{spent.prompt_tokens:,}+{spent.completion_tokens:,} tokens")
        elif self.counts is not None and not self._task.completed:
            parts.append("waiting for the first answers")
        return ", ".join(parts)
