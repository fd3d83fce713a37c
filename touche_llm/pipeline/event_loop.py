"""The event loop of the library, in a thread of its own, so that its functions work where another loop runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


@cache
def _get_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # A daemon: a program that leaves a model open must not hang at its end.
    threading.Thread(target=loop.run_forever, name="touche_llm", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine and wait for its result; Ctrl-C, or stopping the notebook's cell, cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def run_async(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine and await its result in the caller's event loop; cancelling the caller cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _get_loop()))
