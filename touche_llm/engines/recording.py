"""Engines that send nothing, but record the requests that wait for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from touche_llm.llm.protocol import Completion, Counter
from touche_llm.llm.request import Request


class RecordingEngine:
    """Engine that answers nothing: it records requests, and cancels the tasks that wait for them.

    Await the work that uses it with `run_until_pending`.

    Attributes:
        pending: Requests without an answer, by key.
        needs_tokenizer: Whether tokens had to be counted without a tokenizer.
    """

    def __init__(self, tokenizer: Counter | None = None) -> None:
        """Initialise the engine.

        Args:
            tokenizer: Counter of tokens; if None, a task that needs a count is cancelled.
        """
        self.pending: dict[str, Request] = {}
        self.needs_tokenizer = False
        self._tokenizer = tokenizer

    @property
    def counter(self) -> Counter:
        """Counter of tokens; cancels the task if there is none."""
        if self._tokenizer is None:
            self.needs_tokenizer = True
            raise asyncio.CancelledError
        return self._tokenizer

    async def complete(self, request: Request) -> Completion:
        """Record a request, and cancel the task that waits for its answer."""
        self.pending[request.key] = request
        raise asyncio.CancelledError


class ReplayingEngine(RecordingEngine):
    """Engine that answers from completions received before, and records the other requests."""

    def __init__(self, find_completion: Callable[[Request], Completion | None]) -> None:
        """Initialise the engine; it counts no tokens.

        Args:
            find_completion: Returns the completion of a request, or None if there is none yet; it
                may raise as an engine.
        """
        super().__init__()
        self._find_completion = find_completion

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request; cancel the task if there is none yet."""
        completion = self._find_completion(request)
        if completion is None:
            return await super().complete(request)
        return completion


async def run_until_pending(work: Awaitable[object]) -> bool:
    """Await work that uses a recording engine, which cancels it at a request without an answer.

    Returns:
        Whether the work ended, rather than being cancelled by such a request.
    """
    task = asyncio.current_task()
    assert task is not None, "an awaited coroutine runs in a task"
    earlier_cancellations = task.cancelling()
    try:
        await work
    except asyncio.CancelledError:
        # Two things raise this error. A caller that wants this task to end calls `task.cancel`,
        # which `cancelling` counts; the error must reach it. The engine only raises the error.
        is_cancelled_by_caller = task.cancelling() > earlier_cancellations
        if is_cancelled_by_caller:
            raise
        return False
    return True
