"""Check of the end of a prompt."""

from __future__ import annotations

import re

from touche_llm.doctor.card import Survey, fail
from touche_llm.doctor.requests import PROBE_SYSTEM, PROBE_USER
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
    """Check whether the prompt of an answer without reasoning ends inside a thought."""
    if survey.sampling.thinking.judge:
        return []
    request = survey.build((Message("system", PROBE_SYSTEM), Message("user", PROBE_USER)))
    prompt = await survey.server.render(request.messages, request.chat_template_kwargs)
    if prompt is None:
        return [
            ServerCheck("open thought", None, "unknown, since the server does not show its prompts")
        ]
    end = prompt[prompt.rfind(PROBE_USER) + len(PROBE_USER) :]
    last_opening = _find_last(_OPENING, end)
    last_closing = _find_last(_CLOSING, end)
    if last_opening > last_closing:
        return [fail("open thought", f"the prompt ends inside a thought: {end[-40:]!r}")]
    return [ServerCheck("open thought", True, "none in the prompt of an answer")]


def _find_last(pattern: re.Pattern[str], text: str) -> int:
    """Return where the last match begins, -1 if there is none."""
    positions = [match.start() for match in pattern.finditer(text)]
    return max(positions, default=-1)
