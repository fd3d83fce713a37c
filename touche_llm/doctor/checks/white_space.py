"""Check of white space in answers."""

from __future__ import annotations

import re
from dataclasses import replace

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import PASSAGE, build_request
from touche_llm.doctor.survey import Survey
from touche_llm.engines.identification import ServerCheck

# Logarithm of a probability below which a token counts as forbidden; vLLM sends -9999 for those.
_MIN_LOGPROB = -100.0
# White space that no compact grammar allows; it may require one space after `,` and `:`, as
# Python's json writes it.
_FREE_WHITE_SPACE = re.compile(r"[\n\r\t]|\s\s|[\[{]\s|\s[:,\]}]")


async def check_white_space(survey: Survey) -> list[ServerCheck]:
    """Check whether a schema allows white space between the tokens of an answer."""
    reply = await survey.exchange(build_request(survey, PASSAGE))
    choice = reply.select_choice()
    if _FREE_WHITE_SPACE.search(choice.message.content or ""):
        return [CHECK.fail("written between tokens")]
    if not survey.is_renormalised:
        value = "none in one answer; raw log-probabilities show no more"
        return [replace(CHECK.fail(value), is_ok=None)]
    alternatives = [pair for token in choice.tokens for pair in token.alternatives]
    allowed_texts = [text for text, logprob in alternatives if logprob > _MIN_LOGPROB]
    if any(map(_FREE_WHITE_SPACE.search, allowed_texts)):
        return [CHECK.fail("allowed between tokens")]
    return [ServerCheck(CHECK.name, True, "not allowed between tokens")]


CHECK = register(
    Check(
        name="white space",
        remedy=(
            "a weak model can write it until its answer is cut off; vLLM: --structured-outputs-config "
            '\'{"backend": "xgrammar", "disable_any_whitespace": true}\'; SGLang: '
            "--constrained-json-disable-any-whitespace"
        ),
        run=check_white_space,
        occasion=Occasion.DOCTOR,
        order=10,
    )
)
