"""Check of white space in answers."""

from __future__ import annotations

import re
from dataclasses import replace

from touche_llm.doctor.card import Survey, fail
from touche_llm.doctor.requests import PASSAGE, build_request
from touche_llm.engines.identification import ServerCheck

# Logarithm of a probability below which a token counts as forbidden; vLLM sends -9999 for those.
_MIN_LOGPROB = -100.0
# White space that no compact grammar allows; it may require one space after `,` and `:`, as
# Python's json writes it.
_FREE_WHITE_SPACE = re.compile(r"[\n\r\t]|\s\s|[\[{]\s|\s[:,\]}]")


async def check_white_space(survey: Survey) -> list[ServerCheck]:
    """Check whether a schema allows white space between the tokens of an answer."""
    name, choice = (
        "white space",
        (await survey.server.exchange(build_request(survey, PASSAGE))).choices[0],
    )
    if _FREE_WHITE_SPACE.search(choice.message.content or ""):
        return [fail(name, "written between tokens")]
    if not survey.is_renormalised:
        return [
            replace(
                fail(name, "none in one answer; raw log-probabilities show no more"), is_ok=None
            )
        ]
    alternatives = (pair for token in choice.tokens for pair in token.alternatives)
    if any(
        logprob > _MIN_LOGPROB and _FREE_WHITE_SPACE.search(text) for text, logprob in alternatives
    ):
        return [fail(name, "allowed between tokens")]
    return [ServerCheck(name, True, "not allowed between tokens")]
