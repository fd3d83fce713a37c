"""Work that an interrupt ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer

from touche_llm.config.configuration import Config
from touche_llm.llm.cache import describe_resume

ResultT = TypeVar("ResultT")


def run_requests(config: Config, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run work that sends requests.

    Ctrl-C, SIGTERM and SIGHUP end it with exit code 130 and a note on the cache.
    """
    return until_interrupted(work, lambda: describe_resume(config.cache.file, config.cache.mode))


def until_interrupted(work: Coroutine[Any, Any, ResultT], note: Callable[[], str]) -> ResultT:
    """Run a coroutine; Ctrl-C, SIGTERM and SIGHUP end it with exit code 130 and print `note`."""

    def stop(*_: object) -> None:
        # A second Ctrl-C should not interrupt closing.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    ending = [signal.SIGINT, signal.SIGTERM]
    # Under nohup the run survives its terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in ending}
    try:
        return asyncio.run(_quietly(work))
    except KeyboardInterrupt:
        print(f"interrupted; {note()}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _quietly(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await the work without messages of the single tasks that Ctrl-C cancels."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
    return await work
