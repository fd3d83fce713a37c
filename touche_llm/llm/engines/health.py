"""Detection of a dead server, and its restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from touche_llm.llm.engines.base import EngineDeath, Transient

# Seconds after which a server without a sign of life is dead, and seconds between two looks at it. A proxy that
# reloads its configuration is back sooner.
_DEAD_AFTER, _INTERVAL = 8.0, 1.0


class HealthMonitor:
    """Monitor that is consulted after failures and finds out whether the server is dead.

    All requests that fail at the same time share one check.
    """

    def __init__(self, is_alive: Callable[[], Awaitable[bool]], restart: Callable[[], Awaitable[None]] | None) -> None:
        """Initialise the monitor.

        Args:
            is_alive: Whether the server shows a sign of life.
            restart: Starts a dead server again, which is done once; None if the program does not manage it.
        """
        self._is_alive, self._restart = is_alive, restart
        self._has_restarted = self._is_dead = False
        self._check: asyncio.Task[None] | None = None

    async def check(self, failure: Transient) -> None:
        """Return if the server is alive after a failure.

        Raises:
            Transient: The server was dead and has been restarted.
            EngineDeath: The server is dead; raised at once from then on.
        """
        if self._check is None or (self._check.done() and not self._is_dead):
            self._check = asyncio.create_task(self._find_out(failure.reason))
        await asyncio.shield(self._check)

    async def close(self) -> None:
        """End a check that is running."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)

    async def _find_out(self, reason: str) -> None:
        clock = asyncio.get_running_loop()
        end = clock.time() + _DEAD_AFTER
        while not await self._is_alive():
            if clock.time() >= end:
                break
            await asyncio.sleep(_INTERVAL)
        else:
            return
        if self._restart is None or self._has_restarted:
            self._is_dead = True
            again = " again, after a restart" if self._has_restarted else ""
            raise EngineDeath(f"the server answered before and is dead now{again} ({reason}); see its log")
        self._has_restarted = True
        await self._restart()
        raise Transient("server_error", f"the server died and was restarted ({reason})")
