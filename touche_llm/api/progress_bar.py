"""Progress bar of a stage on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from touche_llm.api.stage_state import StageState
from touche_llm.errors import to_printable

_BAR_WIDTH = 12


@contextmanager
def open_bar(state: StageState, console: Console) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs; yield the function to call after each step."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(_BAR_WIDTH),
        MofNCompleteColumn(),
        _FactsColumn(state),
        console=console,
    )
    task = bar.add_task(state.title, total=state.total)

    def advance() -> None:
        state.advance()
        bar.advance(task)

    with bar:
        yield advance


class _FactsColumn(ProgressColumn):
    """Facts beside the bar."""

    def __init__(self, state: StageState) -> None:
        super().__init__()
        self._state = state

    def render(self, task: Task) -> Text:
        """Return the facts as far as they fit, with no more of the last error than its kind."""
        kind_of_problem = self._state.spent.problem.partition(":")[0]
        facts = self._state.describe_facts(kind_of_problem)
        return Text(to_printable(facts), overflow="ellipsis", no_wrap=True)
