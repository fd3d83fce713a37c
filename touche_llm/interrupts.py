"""Interrupts: Ctrl-C, SIGTERM and SIGHUP end a command with one line and exit code 130.

The first signal cancels the coroutine that runs, so that it closes what it has opened. If none
runs, or the event loop is blocked, the process ends at once, without its temporary folders. The
second signal ends the process as the system does by default.

The handler raises no exception: it would arise between any two lines of any library, and some of
them swallow it.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Coroutine

# Type checkers take it for true; `typing` would take longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    ResultT = TypeVar("ResultT")

EXIT_CODE = 130
# Functions that remove temporary files before an interrupt ends the process. They raise nothing.
removals: list[Callable[[], None]] = []

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds in which the event loop has to respond; while it builds an index, for example, it does not.
_RESPONSE_SECONDS = 1.0
_SHOW_CURSOR = "\x1b[?25h"


class _State:
    """State of this process.

    Attributes:
        is_interrupted: Whether a signal has come.
        cancel: Function that cancels the coroutine that runs; None if none does.
        note: What the line at the end adds to "interrupted"; may be empty.
    """

    def __init__(self) -> None:
        self.is_interrupted = False
        self.cancel: Callable[[], object] | None = None
        self.note = ""


_state = _State()


def handle_signals() -> None:
    """Handle the signals until the program is done, except those that are ignored.

    The parent process decides what is ignored, as nohup does for SIGHUP.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    # Called last, since it is registered first: only the interpreter has to end then.
    atexit.register(_replace_handlers, signal.SIG_IGN)


def _replace_handlers(handler: signal.Handlers) -> None:
    """Replace the handlers of the signals that are handled here."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _stop:
            signal.signal(number, handler)


def run_until_interrupted(work: Coroutine[Any, Any, ResultT], note: str = "") -> ResultT:
    """Run a coroutine, which an interrupt cancels.

    Args:
        work: Coroutine to run.
        note: What the user should know after an interrupt, such as how to resume.

    Raises:
        SystemExit: The coroutine was interrupted.
    """
    import asyncio  # slow to load

    _state.note = note
    try:
        with asyncio.Runner() as runner:
            return runner.run(_run_cancellable(work))
    finally:
        # Work that is cancelled may raise any exception, or return after all.
        if _state.is_interrupted:
            raise SystemExit(EXIT_CODE)
        _state.note = ""


async def _run_cancellable(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await a coroutine, which the handler can cancel meanwhile."""
    import asyncio

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        _limit_time(0.0)
        task.cancel()

    _state.cancel = lambda: loop.call_soon_threadsafe(cancel)
    try:
        return await work
    finally:
        _state.cancel = None
        # The loop still waits for its threads, which may compute forever.
        if _state.is_interrupted:
            _limit_time(_RESPONSE_SECONDS)


def end_if_interrupted() -> None:
    """End the process if a signal has come."""
    if _state.is_interrupted:
        _end()


def _stop(*_: object) -> None:
    """Cancel the coroutine that runs, or end the process."""
    _replace_handlers(signal.SIG_DFL)
    _state.is_interrupted = True
    if _state.cancel is None:
        _end()
    else:
        _limit_time(_RESPONSE_SECONDS)
        _state.cancel()


def _limit_time(seconds: float) -> None:
    """End the process after some seconds; 0 removes the limit."""
    signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _end(*_: object) -> None:
    """Remove temporary files, print a line, and end the process."""
    for remove in removals:
        remove()

    line = f"interrupted; {_state.note}" if _state.note else "interrupted"
    if os.isatty(2):
        # The terminal shows `^C` in the current line, and a bar of progress hides the cursor.
        line = f"{_SHOW_CURSOR}\n{line}"
    try:
        os.write(2, f"{line}\n".encode())
    except OSError:
        pass  # the terminal is gone
    os._exit(EXIT_CODE)
