"""Detection of a dead server, and its restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from touche_llm.llm.engines.base import EngineDeath, Transient

# Seconds after which a server without a sign of life is dead, and seconds between two looks at it. A proxy that
# reloads its configuration is back sooner.
_DEAD_AFTER, _INTERVAL = 8.0, 1.0
_RESTARTING = "the server died and is being restarted"


class HealthMonitor:
    """Monitor that is consulted after failures and finds out whether the server is dead.

    All requests that fail at the same time share one check.
    """

    def __init__(
        self, is_alive: Callable[[], Awaitable[bool]], restart: Callable[[], Coroutine[Any, Any, None]] | None
    ) -> None:
        """Initialise the monitor.

        Args:
            is_alive: Whether the server shows a sign of life.
            restart: Starts a dead server again, which is done once; None if the program does not manage it.
        """
        self._is_alive, self._restart = is_alive, restart
        self._is_dead = False
        self._check: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Wait for a restart that is under way; raise EngineError if it failed."""
        if self._restarting is not None:
            await asyncio.shield(self._restarting)

    async def check(self, failure: Transient) -> None:
        """Return if the server is alive after a failure.

        Raises:
            Transient: The server is dead and is being restarted; see `wait`.
            EngineDeath: The server is dead; raised at once from then on.
        """
        if self._restarting is not None and not self._restarting.done():
            raise Transient("server_error", _RESTARTING)
        if self._check is None or (self._check.done() and not self._is_dead):
            self._check = asyncio.create_task(self._find_out(failure.reason))
        await asyncio.shield(self._check)

    async def close(self) -> None:
        """End a check or a restart that is under way."""
        tasks = [task for task in (self._check, self._restarting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_out(self, reason: str) -> None:
        clock = asyncio.get_running_loop()
        end = clock.time() + _DEAD_AFTER
        while not await self._is_alive():
            if clock.time() >= end:
                break
            await asyncio.sleep(_INTERVAL)
        else:
            return
        if self._restart is None or self._restarting is not None:
            self._is_dead = True
            again = " again, after a restart" if self._restarting is not None else ""
            raise EngineDeath(f"the server answered before and is dead now{again} ({reason}); see its log")
        self._restarting = asyncio.create_task(self._restart())
        raise Transient("server_error", f"{_RESTARTING} ({reason})")
