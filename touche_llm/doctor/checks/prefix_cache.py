"""Check of the prefix cache."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from touche_llm.doctor.card import Survey, fail
from touche_llm.doctor.requests import build_request
from touche_llm.engines.identification import ServerCheck


async def check_prefix_cache(survey: Survey) -> list[ServerCheck]:
    """Check whether a second prompt reuses its common beginning with the first."""
    # New in each examination; longer than the blocks of a cache, and short enough for the context.
    name, words = "prefix cache", min(600, (survey.info.context or 2048) // 5)
    beginning = f"Session {uuid4().hex}. " + "word " * words
    for text in ("First passage.", "Second passage."):
        usage = (await survey.server.exchange(build_request(survey, text, beginning))).usage
    if usage.cached_tokens is None:
        return [replace(fail(name, "not reported"), is_ok=None)]
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    return [ServerCheck(name, True, value) if usage.cached_tokens else fail(name, value)]
