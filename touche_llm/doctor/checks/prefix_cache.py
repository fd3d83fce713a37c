"""Check of the prefix cache."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import build_request
from touche_llm.doctor.survey import Survey
from touche_llm.engines.identification import ServerCheck


async def check_prefix_cache(survey: Survey) -> list[ServerCheck]:
    """Check whether a second prompt reuses its common beginning with the first."""
    # New in each examination; longer than the blocks of a cache, and short enough for the context.
    word_count = min(600, (survey.info.context or 2048) // 5)
    beginning = f"Session {uuid4().hex}. " + "word " * word_count
    await survey.exchange(build_request(survey, "First passage.", beginning))
    second = await survey.exchange(build_request(survey, "Second passage.", beginning))

    usage = second.usage
    if usage.cached_tokens is None:
        return [replace(CHECK.fail("not reported"), is_ok=None)]
    value = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused from the request before"
    if not usage.cached_tokens:
        return [CHECK.fail(value)]
    return [ServerCheck(CHECK.name, True, value)]


CHECK = register(
    Check(
        name="prefix cache",
        remedy=(
            "instructions and topic are computed for each document; vLLM: --enable-prefix-caching "
            "--enable-prompt-tokens-details; SGLang: --enable-cache-report, without --disable-radix-cache; llama.cpp: "
            "--cache-prompt"
        ),
        run=check_prefix_cache,
        occasion=Occasion.DOCTOR,
        order=20,
    )
)
