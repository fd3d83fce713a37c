"""What is logged of requests: which, how long, how many tokens; their texts by a logger of its own.

`touche_llm.text` gets prompts, completions and what a server says of a failure, which may quote both. It stays silent
until its level is set.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar, cast

from touche_llm.llm.answers import Answer
from touche_llm.llm.engines.base import Transient
from touche_llm.llm.request import Request

_LOG = logging.getLogger(__name__)
_TEXT = logging.getLogger("touche_llm.text")

SendT = TypeVar("SendT", bound=Callable[..., Awaitable[Any]])


def log_requests(send: SendT) -> SendT:
    """Log what becomes of each request that a method sends: an answer, an unusable answer or a failure."""

    @wraps(send)
    async def logged(owner: Any, engine: Any, request: Request, *rest: Any) -> Any:
        if not _LOG.isEnabledFor(logging.DEBUG):
            return await send(owner, engine, request, *rest)
        name, started = _name(request), time.monotonic()
        _TEXT.debug("%s: prompt %r", name, [message.content for message in request.messages])
        try:
            found = await send(owner, engine, request, *rest)
        except Transient as problem:
            _LOG.warning("%s: %s after %.3f s", name, problem.kind, time.monotonic() - started)
            _TEXT.warning("%s: %s", name, problem.reason)
            raise
        seconds = time.monotonic() - started
        if isinstance(found, Answer):
            spent = found.prompt_tokens, found.completion_tokens
            _LOG.debug("%s: answer in %.3f s, %d + %d tokens", name, seconds, *spent)
        else:
            _LOG.warning("%s: %s in %.3f s", name, found.kind, seconds)
        _TEXT.debug("%s: %r", name, found)
        return found

    return cast(SendT, logged)


def log_retry(problem: Transient) -> None:
    """Log a failure after which a call is made again."""
    # What follows the colon may be the server's text, which may quote the prompt.
    _LOG.info("retry: %s: %s", problem.kind, problem.reason.partition(":")[0][:100])
    _TEXT.info("retry: %s", problem.reason)


def _name(request: Request) -> str:
    origin = request.origin
    document = "" if origin.document_id is None else f", document {origin.document_id}"
    return f"{origin.prompt}, topic {origin.topic_id}{document}, sample {request.sample}"
