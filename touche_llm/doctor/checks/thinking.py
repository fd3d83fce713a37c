"""Check of answers that follow a thought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from touche_llm.doctor.card import PROBE_ANSWER, Survey
from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.engines.chat import read_completion
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
        problem = await _compare_prompts(survey, thoughtful, continued)
    except (Rejected, BrokenReply) as error:
        problem = f"the chat template refuses to continue a thought: {error}"
    if problem:
        return [CHECK.fail(problem)]
    reply = await survey.send(continued[0])
    if isinstance(reply, str):
        remedy = "let the model reason on a server that continues one, such as vLLM"
        value = f"the server refuses to continue a message of the assistant: {reply}"
        return [CHECK.fail(value, remedy)]
    completion = read_completion(reply)
    if squeeze(completion.text) == PROBE_ANSWER:
        if problem is None:
            value = "an answer continues a thought; whether the template keeps it is unknown"
            return [ServerCheck(CHECK.name, None, value)]
        return [ServerCheck(CHECK.name, True, "a thought is kept")]
    if PROBE_ANSWER in squeeze(completion.reasoning or ""):
        return [CHECK.fail("the answer after a thought is in the field of the reasoning", _PARSER)]
    answer = quote(completion.text, 80)
    return [CHECK.fail(f"no schema is enforced after a thought: {answer!r}", _PARSER)]


async def _compare_prompts(
    survey: Survey, begun: Request, continued: Sequence[Request]
) -> str | None:
    """Return what the chat template does to a thought, "" if it keeps it.

    None if the server shows no prompts.

    Apart from white space, which templates strip, the prompt of the answer is the prompt of the
    thought with the thought after it: a template may write an empty thought before it, or put it in
    a channel of its own.
    """
    server, thinking = survey.server, begun.thinking
    assert thinking is not None
    prompt = await server.render(begun.messages, begun.chat_template_kwargs)
    if prompt is None:
        return None
    text, other = [
        await server.counter.render(each.messages, each.chat_template_kwargs) or ""
        for each in continued
    ]
    if text == other:
        return "the chat template drops the thought when an answer continues it"
    # Some templates open the thought themselves.
    start = squeeze(prompt).removesuffix(squeeze(thinking.opening))
    if squeeze(text) != start + squeeze(thinking.delimit(_THOUGHTS[0])):
        return f"after {prompt[-40:]!r} the model reasons, but the chat template continues a thought as {text[-80:]!r}"
    return ""


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
