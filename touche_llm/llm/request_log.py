"""Log of requests: subject, time and tokens; their texts in a logger of their own.

The logger `touche_llm.text` receives prompts, completions and error messages of the server, which may quote either. It
is silent until its level is set.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable

from touche_llm.llm.answers import Answer, UnusableAnswer
from touche_llm.llm.engines.base import Transient
from touche_llm.llm.request import Request

_LOG = logging.getLogger(__name__)
_TEXT = logging.getLogger("touche_llm.text")


async def log_result(request: Request, sending: Awaitable[Answer | UnusableAnswer]) -> Answer | UnusableAnswer:
    """Await the result of a request that is sent, log it and return it.

    Raises:
        Transient: From `sending`; logged too.
    """
    if not _LOG.isEnabledFor(logging.DEBUG):
        return await sending
    name, started = f"{request.origin.prompt}, {request.origin.subject}, sample {request.sample}", time.monotonic()
    _TEXT.debug("%s: prompt %r", name, [message.content for message in request.messages])
    try:
        result = await sending
    except Transient as problem:
        _LOG.warning("%s: %s after %.1f s", name, problem.kind, time.monotonic() - started)
        _TEXT.warning("%s: %s", name, problem.reason)
        raise
    seconds = time.monotonic() - started
    if isinstance(result, Answer):
        tokens = result.prompt_tokens, result.completion_tokens
        _LOG.debug("%s: answer in %.1f s, %d + %d tokens", name, seconds, *tokens)
    else:
        _LOG.warning("%s: %s in %.1f s", name, result.kind, seconds)
    _TEXT.debug("%s: %r", name, result)
    return result


def log_retry(problem: Transient) -> None:
    """Log a failure that is retried."""
    # The text after the colon may be the server's and may quote the prompt.
    _LOG.info("retry: %s: %s", problem.kind, problem.reason.partition(":")[0][:100])
    _TEXT.info("retry: %s", problem.reason)
