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
    word_count = min(600, (survey.info.context or 2048) // 5)
    beginning = f"Session {uuid4().hex}. " + "word " * word_count
    await survey.server.exchange(build_request(survey, "First passage.", beginning))
    second = await survey.server.exchange(build_request(survey, "Second passage.", beginning))

    usage = second.usage
    if usage.cached_tokens is None:
        return [replace(fail("prefix cache", "not reported"), is_ok=None)]
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    if not usage.cached_tokens:
        return [fail("prefix cache", value)]
    return [ServerCheck("prefix cache", True, value)]
