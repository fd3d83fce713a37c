"""What the command line shows while it works: a live bar on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from touche_llm.errors import printable
from touche_llm.llm.language_model import Counts
from touche_llm.pipeline import Advance

_PLAIN_SECONDS = 10.0


class ConsoleObserver:
    """Shows notices and progress of the stages."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._title, self._total, self._done = "", 0, 0
        self._started = self._told = 0.0
        self._counts: Counts | None = None

    def notify(self, message: str) -> None:
        """Print a line; text from files is not taken for markup."""
        self.console.print(printable(f"note: {message}"), markup=False)

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Advance]:
        """Show a stage of `total` steps; gives what is called after each. Ends the bar whatever happens."""
        self._title, self._total, self._done, self._counts = title, total, 0, None
        self._started = self._told = time.monotonic()
        if not self.console.is_terminal:
            yield self._advance
            self._line()
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
        )
        with Progress(*columns, TimeRemainingColumn(), console=self.console) as progress:
            task = progress.add_task(title, total=total, facts="")

            def advance(counts: Counts | None = None) -> None:
                self._done += 1
                self._counts = counts
                progress.update(task, advance=1, facts=self._facts())

            yield advance

    def _advance(self, counts: Counts | None = None) -> None:
        self._done += 1
        self._counts = counts
        if time.monotonic() - self._told >= _PLAIN_SECONDS:
            self._told = time.monotonic()
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
