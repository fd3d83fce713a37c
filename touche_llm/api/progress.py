"""Progress of stages, on standard error: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from touche_llm.api.stage_state import StageState
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
        """Show a stage while the block runs; yield the function to call after each step.

        Args:
            title: Title of the stage.
            total: Number of steps.
            counts: Counters of the language model, which are updated while the stage runs.
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
        self._display = display
        self._suffix = f" ({what})" if what else ""

    def warn(self, message: str) -> None:
        """Collect the message."""
        self.messages.append(message)

    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage of `total` steps."""
        return self._display.stage(title + self._suffix, total, counts)


class ConsoleProgress:
    """Progress on standard error.

    Attributes:
        console: Console of standard error.
    """

    def __init__(self, min_seconds: float = 0.0) -> None:
        """Open the console; a stage that ends within `min_seconds` is shown only on a terminal."""
        # 30 ms, which the completion of an option does without.
        from rich.console import Console

        self._min_seconds = min_seconds
        self.console = Console(stderr=True, highlight=False, force_jupyter=False)
        # A terminal gets lines broken between words; a file gets each note as one line.
        self.console.soft_wrap = not self.console.is_terminal

    def warn(self, message: str) -> None:
        """Print a line; text from files is not taken for markup."""
        self._print(f"note: {message}")

    @contextmanager
    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> Iterator[Callable[[], None]]:
        """Show a stage while the block runs; yield the function to call after each step."""
        state = StageState(title, total, counts, self.console.get_time)
        _LOG.info("%s: %d to do", title, total)

        if self.console.is_terminal:
            with self._show_bar(state) as advance:
                yield advance
        else:
            with self._print_lines(state) as advance:
                yield advance

        _log(state)

    @contextmanager
    def _show_bar(self, state: StageState) -> Iterator[Callable[[], None]]:
        """Show a bar while the block runs, and its last retry afterwards."""
        from touche_llm.api.progress_bar import open_bar

        with open_bar(state, self.console) as advance:
            yield advance

        spent = state.spent
        if spent.retries:
            self.warn(f"{state.title}: {spent.retries:,} retries; the last: {spent.problem}")

    @contextmanager
    def _print_lines(self, state: StageState) -> Iterator[Callable[[], None]]:
        """Print a line every few seconds while the block runs, and one at its end."""

        def print_line() -> None:
            self._print(state.describe())

        with _repeat(print_line):
            yield state.advance

        if state.elapsed >= self._min_seconds:
            print_line()

    def _print(self, line: str) -> None:
        self.console.print(to_printable(line), markup=False)


def default_progress() -> Progress:
    """Return the display of a program without options.

    A stage that is short is shown only on a terminal.
    """
    return ConsoleProgress(min_seconds=_PLAIN_SECONDS)


def _log(state: StageState) -> None:
    """Log what a stage took, without its last problem, which may quote a prompt."""
    spent = state.spent
    _LOG.info(
        "%s: %d of %d in %.1f s, %d failed, %d retries",
        state.title,
        state.completed,
        state.total,
        state.elapsed,
        spent.failures,
        spent.retries,
    )


@contextmanager
def _repeat(function: Callable[[], None]) -> Iterator[None]:
    """Call a function every few seconds while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_PLAIN_SECONDS):
            function()

    # A thread, since a line is also due while nothing advances.
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
