"""Detection of a dead server, and its restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from touche_llm.data.records import JsonModel
from touche_llm.data.transport import TransientFailure
from touche_llm.llm.answers import FailureKind, Token
from touche_llm.llm.request import Message, Request


class EngineInfo(JsonModel):
    """Description of an engine.

    Attributes:
        revision: The user's name for the version of the weights.
        context: Context in tokens.
        overhead: Tokens that the chat template adds to two messages.
        serving: What the server reports of how it serves the model, by name.
    """

    model: str
    revision: str
    context: int
    overhead: int
    engine: str
    serving: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Completion:
    """Unchecked result of one request.

    Attributes:
        completion_tokens: Tokens of the completion, including reasoning.
        tokens: Tokens of the answer, if requested.
        refusal: Text with which the model refused, if it did.
        fingerprint: Fingerprint of the software, if reported.
        cached_tokens: Prompt tokens taken from the prefix cache, None if not reported.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    tokens: list[Token] = field(default_factory=list)
    refusal: str | None = None
    reasoning: str | None = None
    fingerprint: str | None = None
    cached_tokens: int | None = None


class Transient(TransientFailure):
    """Transient failure of an engine.

    Attributes:
        is_overload: Whether fewer concurrent requests would help.
        is_busy: Whether a server that did not reply in time answers other requests.
    """

    def __init__(
        self,
        kind: FailureKind,
        reason: str,
        retry_after: float | None = None,
        max_tries: int | None = None,
        is_overload: bool = False,
    ) -> None:
        super().__init__(reason, retry_after, max_tries)
        self.kind: FailureKind = kind
        self.is_overload = is_overload
        self.is_busy = False


class BrokenReply(Transient):
    """Complete but malformed reply. At an address that a server does not know, it may be a page."""


class EngineDeath(Exception):
    """The engine has died and answers no request any more, so that the run stops instead of failing every request."""


class MissingLogprobs(Transient):
    """Answer without the log-probabilities requested; not stored, so that no replay uses it."""


class Rejected(Exception):
    """The engine rejects the request, so that a retry would not help; `status` is the HTTP status.

    Stored as a failure of the request unless `is_fatal`.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_fatal(self) -> bool:
        """Whether every other request would be rejected too: a redirect, an invalid key, an unknown path."""
        return self.status < 400 or self.status in (401, 403, 404)


class CountingEngine(Protocol):
    """Access to a model's tokenizer. Methods raise Transient, Rejected or EngineDeath."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        ...

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        ...


class Engine(CountingEngine, Protocol):
    """Access to a model. Methods raise Transient, Rejected or EngineDeath."""

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request."""
        ...


class PoolingEngine(CountingEngine, Protocol):
    """Access to an embedding model or a cross-encoder. Methods raise as those of `Engine`."""

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return the vector of each text as little-endian float32; `dimensions` None requests the model's own."""
        ...

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to the query."""
        ...


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
