"""Check of repeated answers."""

from __future__ import annotations

import asyncio

from touche_llm.doctor.card import Survey, fail
from touche_llm.doctor.requests import PASSAGE, build_request
from touche_llm.engines.identification import ServerCheck

# Repeats of one request alone, and as many among others.
_REPEATS = 8


async def check_determinism(survey: Survey) -> list[ServerCheck]:
    """Check whether answers to a request that is repeated alone and among others differ."""
    name, server, request = "determinism", survey.server, build_request(survey, PASSAGE)
    answers = [await server.complete(request) for _ in range(_REPEATS)]
    others = [
        build_request(survey, f"{PASSAGE} " * (1 + number % 3) + str(number))
        for number in range(_REPEATS)
    ]
    sent = [each for other in others for each in (request, other)]
    answers += (await asyncio.gather(*map(server.complete, sent)))[::2]
    flips = sum(answer.text != answers[0].text for answer in answers)
    value = f"{flips} of {len(answers)} repeats differ"
    return [fail(name, value) if flips else ServerCheck(name, True, value)]
