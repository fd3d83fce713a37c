"""Check of the system message."""

from __future__ import annotations

from touche_llm.doctor.card import Survey, fail
from touche_llm.doctor.requests import PROBE_SYSTEM, PROBE_USER
from touche_llm.engines.identification import ServerCheck
from touche_llm.llm.request import Message

# Words that a longer system message has besides; a prompt that shows it has at least as many more
# tokens.
_MORE_WORDS = 40


async def check_system_message(survey: Survey) -> list[ServerCheck]:
    """Check whether the model sees a system message: whether a longer one makes a longer prompt.

    Some templates write a message of their own where a chat has none, so that only prompts with one
    are compared.
    """
    if survey.sampling.system_message == "user":
        return [ServerCheck("system message", True, "in the user message, as configured")]
    counts = []
    for text in (PROBE_SYSTEM, PROBE_SYSTEM + " quokka" * _MORE_WORDS):
        reply = await survey.send(
            survey.build((Message("system", text), Message("user", PROBE_USER)))
        )
        if isinstance(reply, str):
            return [fail("system message", f"refused: {reply}")]
        counts.append(reply.usage.prompt_tokens)
    short, long = counts
    if long >= short + _MORE_WORDS:
        return [ServerCheck("system message", True, "shown by the chat template")]
    if long > short or not short:
        return [
            ServerCheck(
                "system message", None, "accepted; the prompt tokens do not show whether it is used"
            )
        ]
    return [fail("system message", "ignored by the chat template: a longer one adds no tokens")]
