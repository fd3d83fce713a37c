"""Check of answers that follow a thought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.survey import Survey
from touche_llm.engines.chat import read_completion
from touche_llm.engines.dialects import PROBE_ANSWER, Refusal
from touche_llm.engines.identification import ServerCheck
from touche_llm.errors import BrokenReply, Rejected
from touche_llm.llm.label_probabilities import squeeze
from touche_llm.llm.request import Request, Thinking, continue_thought
from touche_llm.text.quoting import quote

_PARSER = "serve the model without a reasoning parser (vLLM: --reasoning-parser)"
# Two thoughts that no template would change.
_THOUGHTS = ("One of two.", "Other words.")


async def check_thinking(survey: Survey) -> list[ServerCheck]:
    """Check whether the server continues a thought as the run does, and enforces a schema after it.

    Nothing is checked for a run without reasoning.
    """
    settings = survey.sampling.thinking
    if not settings.budgets:
        return []
    thinking = Thinking(1, *settings.delimiters, settings.temperature)
    thoughtful = replace(
        survey.build(), thinking=thinking, chat_template_kwargs=settings.chat_template_kwargs
    )
    continued = [continue_thought(thoughtful, thought) for thought in _THOUGHTS]
    try:
        prompts = await _render_prompts(survey, thoughtful, continued)
    except (Rejected, BrokenReply) as error:
        return [CHECK.fail(f"the chat template refuses to continue a thought: {error}")]
    if prompts is not None:
        problem = _find_problem(prompts, thinking)
        if problem is not None:
            return [CHECK.fail(problem)]

    reply = await survey.send(continued[0])
    if isinstance(reply, Refusal):
        remedy = "let the model reason on a server that continues one, such as vLLM"
        value = f"the server refuses to continue a message of the assistant: {reply.reason}"
        return [CHECK.fail(value, remedy)]
    completion = read_completion(reply)
    if squeeze(completion.text) == PROBE_ANSWER:
        if prompts is None:
            value = "an answer continues a thought; whether the template keeps it is unknown"
            return [ServerCheck(CHECK.name, None, value)]
        return [ServerCheck(CHECK.name, True, "a thought is kept")]
    if PROBE_ANSWER in squeeze(completion.reasoning or ""):
        return [CHECK.fail("the answer after a thought is in the field of the reasoning", _PARSER)]
    answer = quote(completion.text, 80)
    return [CHECK.fail(f"no schema is enforced after a thought: {answer!r}", _PARSER)]


@dataclass(frozen=True, slots=True)
class _ThoughtPrompts:
    """Prompts as the server renders them.

    Attributes:
        before: Prompt of a thought.
        after: Prompt of the answer after the first thought.
        after_other: Prompt of the answer after the second thought.
    """

    before: str
    after: str
    after_other: str


async def _render_prompts(
    survey: Survey, thoughtful: Request, continued: Sequence[Request]
) -> _ThoughtPrompts | None:
    """Return the prompts of a thought and of two answers; None if the server shows no prompts.

    Raises:
        BrokenReply: The server shows the prompt of the thought alone.
        Rejected: The chat template refuses the messages.
    """
    before = await survey.render(thoughtful)
    if before is None:
        return None
    after: list[str] = []
    for request in continued:
        text = await survey.dialect.counter.render(request.messages, request.chat_template_kwargs)
        after.append(text or "")
    return _ThoughtPrompts(before, *after)


def _find_problem(prompts: _ThoughtPrompts, thinking: Thinking) -> str | None:
    """Return what the chat template does to a thought instead of keeping it; None if it keeps it.

    Apart from white space, which templates strip, the prompt of the answer is the prompt of the
    thought with the thought after it: a template may write an empty thought before it, or put it in
    a channel of its own.
    """
    if prompts.after == prompts.after_other:
        return "the chat template drops the thought when an answer continues it"

    # Some templates open the thought themselves.
    start = squeeze(prompts.before).removesuffix(squeeze(thinking.opening))
    expected = start + squeeze(thinking.delimit(_THOUGHTS[0]))
    if squeeze(prompts.after) != expected:
        return (
            f"after {prompts.before[-40:]!r} the model reasons, but the chat template continues a "
            f"thought as {prompts.after[-80:]!r}"
        )
    return None


CHECK = register(
    Check(
        name="thinking",
        remedy=(
            "set the delimiters of the model (`sampling.thinking.delimiters`), or serve it with a chat template "
            "that keeps its thought (vLLM: --chat-template FILE)"
        ),
        is_blocking=True,
        run=check_thinking,
        occasion=Occasion.START_UP,
        order=60,
    )
)
