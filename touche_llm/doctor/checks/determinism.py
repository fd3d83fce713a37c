"""Check of repeated answers."""

from __future__ import annotations

import asyncio

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import PASSAGE, build_request
from touche_llm.doctor.survey import Survey
from touche_llm.engines.identification import ServerCheck
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import Request

# Repeats of one request alone, and as many among others.
_REPEATS = 8


async def check_determinism(survey: Survey) -> list[ServerCheck]:
    """Check whether answers to a request that is repeated alone and among others differ."""
    request = build_request(survey, PASSAGE)
    answers_alone = [await survey.complete(request) for _ in range(_REPEATS)]
    answers_among_others = await _repeat_among_others(survey, request)
    answers = [*answers_alone, *answers_among_others]

    first_text = answers[0].text
    differing = sum(answer.text != first_text for answer in answers)
    value = f"{differing} of {len(answers)} repeats differ"
    if differing:
        return [CHECK.fail(value)]
    return [ServerCheck(CHECK.name, True, value)]


async def _repeat_among_others(survey: Survey, request: Request) -> list[Completion]:
    """Return the answers to a request that is sent at the same time as other ones."""
    sent: list[Request] = []
    for number in range(_REPEATS):
        passages = f"{PASSAGE} " * (1 + number % 3)
        sent.append(request)
        sent.append(build_request(survey, passages + str(number)))
    completions = await asyncio.gather(*map(survey.complete, sent))
    return completions[::2]


CHECK = register(
    Check(
        name="determinism",
        remedy=(
            "without the answer cache a run is not repeatable; vLLM: --dtype float32, or VLLM_BATCH_INVARIANT=1 "
            "in its environment; SGLang: --enable-deterministic-inference"
        ),
        run=check_determinism,
        occasion=Occasion.THOROUGH,
        order=10,
    )
)
