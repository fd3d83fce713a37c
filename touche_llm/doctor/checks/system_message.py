"""Check of the system message."""

from __future__ import annotations

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.requests import PROBE_SYSTEM, PROBE_USER
from touche_llm.doctor.survey import Survey
from touche_llm.engines.dialects import Refusal
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
        return [ServerCheck(CHECK.name, True, "in the user message, as configured")]

    short_tokens = await _count_prompt_tokens(survey, PROBE_SYSTEM)
    if isinstance(short_tokens, Refusal):
        return [CHECK.fail(f"refused: {short_tokens.reason}")]
    long_tokens = await _count_prompt_tokens(survey, PROBE_SYSTEM + " quokka" * _MORE_WORDS)
    if isinstance(long_tokens, Refusal):
        return [CHECK.fail(f"refused: {long_tokens.reason}")]

    additional_tokens = long_tokens - short_tokens
    if additional_tokens >= _MORE_WORDS:
        return [ServerCheck(CHECK.name, True, "shown by the chat template")]
    are_reported = short_tokens > 0
    if additional_tokens > 0 or not are_reported:
        value = "accepted; the prompt tokens do not show whether it is used"
        return [ServerCheck(CHECK.name, None, value)]
    return [CHECK.fail("ignored by the chat template: a longer one adds no tokens")]


async def _count_prompt_tokens(survey: Survey, system_message: str) -> int | Refusal:
    """Return how many tokens the server reports for a prompt with a system message; 0 if none.

    Raises:
        Rejected: The server refuses all requests.
        Transient: There is no reply, or it is malformed.
    """
    messages = (Message("system", system_message), Message("user", PROBE_USER))
    reply = await survey.send(survey.build(messages))
    if isinstance(reply, Refusal):
        return reply
    return reply.usage.prompt_tokens


CHECK = register(
    Check(
        name="system message",
        remedy=(
            "put the instructions into the user message (`sampling.system_message: user`), or serve another "
            "chat template (vLLM, SGLang: --chat-template FILE; llama.cpp: --chat-template-file FILE)"
        ),
        is_blocking=True,
        run=check_system_message,
        occasion=Occasion.START_UP,
        order=30,
    )
)
