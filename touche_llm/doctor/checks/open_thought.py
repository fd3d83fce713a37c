"""Check of the end of a prompt."""

from __future__ import annotations

import re

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import PROBE_SYSTEM, PROBE_USER
from touche_llm.doctor.survey import Survey
from touche_llm.engines.identification import ServerCheck
from touche_llm.llm.request import Message

# Beginnings and ends of thoughts in published chat templates.
_OPENING = re.compile(
    r"<(?![^<>]*END_)[^<>/]*think[^<>]*>|\[THINK\]|<thought>|<\|channel>thought|here are my reasoning steps:",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"</[^<>]*(?:think|thought)[^<>]*>|\[/THINK\]|<\|END_THINKING\|>|<channel\|>", re.IGNORECASE
)


async def check_open_thought(survey: Survey) -> list[ServerCheck]:
    """Check whether the prompt of an answer without reasoning ends inside a thought.

    It does if a thought is opened after the text of the user, and not closed.
    """
    if survey.sampling.thinking.judge:
        return []
    request = survey.build((Message("system", PROBE_SYSTEM), Message("user", PROBE_USER)))
    prompt = await survey.render(request)
    if prompt is None:
        value = "unknown, since the server does not show its prompts"
        return [ServerCheck(CHECK.name, None, value)]

    user_end = prompt.rfind(PROBE_USER) + len(PROBE_USER)
    rest = prompt[user_end:]
    last_opening = _find_last(_OPENING, rest)
    last_closing = _find_last(_CLOSING, rest)
    if last_opening > last_closing:
        return [CHECK.fail(f"the prompt ends inside a thought: {rest[-40:]!r}")]
    return [ServerCheck(CHECK.name, True, "none in the prompt of an answer")]


def _find_last(pattern: re.Pattern[str], text: str) -> int:
    """Return where the last match begins, -1 if there is none."""
    positions = [match.start() for match in pattern.finditer(text)]
    return max(positions, default=-1)


CHECK = register(
    Check(
        name="open thought",
        remedy=(
            "let it reason (`sampling.thinking`), or switch reasoning off, with a switch of its chat template "
            "(`sampling.chat_template_kwargs`) or another template"
        ),
        run=check_open_thought,
        occasion=Occasion.START_UP,
        order=50,
    )
)
