"""What the command line shows while it works: a live bar on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from touche_llm.errors import printable
from touche_llm.llm.language_model import Counts

_PLAIN_SECONDS = 10.0


class ConsoleObserver:
    """Shows notices and progress of the stages."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._title, self._total, self._done = "", 0, 0
        self._started = self._told = 0.0
        self._counts: Counts | None = None

    def notify(self, message: str) -> None:
        """Print a line; text from files is not taken for markup."""
        self.console.print(printable(f"note: {message}"), markup=False)

    def start(self, title: str, total: int) -> None:
        """Begin a stage."""
        self._title, self._total, self._done, self._counts = title, total, 0, None
        self._started = self._told = time.monotonic()
        if self.console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._progress.start()
            self._task = self._progress.add_task(title, total=total, facts="")

    def advance(self, counts: Counts | None = None) -> None:
        """Count one step."""
        self._done += 1
        self._counts = counts
        if self._progress is not None:
            self._progress.update(self._task, advance=1, facts=self._facts())
        elif time.monotonic() - self._told >= _PLAIN_SECONDS:
            self._told = time.monotonic()
            self._line()

    def finish(self) -> None:
        """End the stage with a line that stays."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        else:
            self._line()

    def _line(self) -> None:
        left = ""
        elapsed = time.monotonic() - self._started
        if 0 < self._done < self._total:
            left = f", {elapsed / self._done * (self._total - self._done):.0f} s left"
        text = f"{self._title}: {self._done}/{self._total} in {elapsed:.1f} s{left}, {self._facts()}"
        self.console.print(text.rstrip(", "), markup=False)

    def _facts(self) -> str:
        rate = self._done / max(time.monotonic() - self._started, 1e-6)
        facts = f"{rate:.1f}/s"
        if (counts := self._counts) is not None:
            facts += f", {counts.prompt_tokens:,}+{counts.completion_tokens:,} tokens, {counts.cache_hits:,} cached"
            facts += f", {counts.failures} failed"
        return facts
