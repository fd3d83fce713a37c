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
    """Check whether a schema allows white space between the tokens of an answer.

    The alternatives of the tokens of one answer show it, if only those that the schema allows have
    a probability.
    """
    reply = await survey.exchange(build_request(survey, PASSAGE))
    choice = reply.select_choice()
    if _FREE_WHITE_SPACE.search(choice.message.content or ""):
        return [CHECK.fail("written between tokens")]
    if not survey.is_renormalised:
        value = "none in one answer; raw log-probabilities show no more"
        return [replace(CHECK.fail(value), is_ok=None)]

    for token in choice.tokens:
        for text, logprob in token.alternatives:
            is_allowed = logprob > _MIN_LOGPROB
            if is_allowed and _FREE_WHITE_SPACE.search(text):
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
