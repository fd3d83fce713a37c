"""Check of answers that follow a thought."""

from __future__ import annotations

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
_THOUGHT = "One of two."
_OTHER_THOUGHT = "Other words."


async def check_thinking(survey: Survey) -> list[ServerCheck]:
    """Check whether a model can answer after a thought, in a run that lets it reason.

    Such a run requests a thought first, and then an answer in a message that begins with the
    thought. The chat template must keep the thought, and the server must enforce the schema after
    it.
    """
    settings = survey.sampling.thinking
    if not settings.budgets:
        return []

    opening, closing = settings.delimiters
    thinking = Thinking(
        budget=1,
        opening=opening,
        closing=closing,
        temperature=settings.temperature,
    )
    request = replace(
        survey.build(),
        thinking=thinking,
        chat_template_kwargs=settings.chat_template_kwargs,
    )
    template_result = await _check_template(survey, request, thinking)
    if template_result.is_ok is False:
        return [template_result]

    failure = await _check_answer(survey, continue_thought(request, _THOUGHT))
    if failure is not None:
        return [failure]
    return [template_result]


async def _check_template(survey: Survey, request: Request, thinking: Thinking) -> ServerCheck:
    """Check by the prompts, if the server shows them, whether the chat template keeps a thought.

    Args:
        survey: Server to check.
        request: Request that requests a thought before its answer.
        thinking: Delimiters of the thought.
    """
    try:
        prompts = await _render_prompts(survey, request)
    except (Rejected, BrokenReply) as error:
        return CHECK.fail(f"the chat template refuses to continue a thought: {error}")
    if prompts is None:
        value = "an answer continues a thought; whether the template keeps it is unknown"
        return ServerCheck(CHECK.name, None, value)

    problem = _find_problem(prompts, thinking)
    if problem is not None:
        return CHECK.fail(problem)
    return ServerCheck(CHECK.name, True, "a thought is kept")


async def _check_answer(survey: Survey, request: Request) -> ServerCheck | None:
    """Return what is wrong with the answer after a thought; None if the schema is enforced.

    Args:
        survey: Server to check.
        request: Request whose last message is the thought, and whose schema allows one answer.

    Raises:
        Rejected: The server refuses all requests.
        Transient: There is no reply, or it is malformed.
    """
    reply = await survey.send(request)
    if isinstance(reply, Refusal):
        remedy = "let the model reason on a server that continues one, such as vLLM"
        value = f"the server refuses to continue a message of the assistant: {reply.reason}"
        return CHECK.fail(value, remedy)

    completion = read_completion(reply)
    if squeeze(completion.text) == PROBE_ANSWER:
        return None
    if PROBE_ANSWER in squeeze(completion.reasoning or ""):
        return CHECK.fail("the answer after a thought is in the field of the reasoning", _PARSER)
    answer = quote(completion.text, 80)
    return CHECK.fail(f"no schema is enforced after a thought: {answer!r}", _PARSER)


@dataclass(frozen=True, slots=True)
class _ThoughtPrompts:
    """Prompts as the server renders them.

    Attributes:
        before: Prompt of a thought.
        after: Prompt of the answer after `_THOUGHT`.
        after_other: Prompt of the answer after `_OTHER_THOUGHT`.
    """

    before: str
    after: str
    after_other: str


async def _render_prompts(survey: Survey, request: Request) -> _ThoughtPrompts | None:
    """Return the prompts of a thought, and of the answers after two different thoughts.

    None if the server shows no prompts.

    Args:
        survey: Server to check.
        request: Request that requests a thought before its answer.

    Raises:
        BrokenReply: The server shows the prompt of the thought alone.
        Rejected: The chat template refuses the messages.
    """
    before = await survey.render(request)
    if before is None:
        return None

    counter = survey.dialect.counter
    prompts: list[str] = []
    for thought in (_THOUGHT, _OTHER_THOUGHT):
        continued = continue_thought(request, thought)
        prompt = await counter.render(continued.messages, continued.chat_template_kwargs)
        prompts.append(prompt or "")
    after, after_other = prompts
    return _ThoughtPrompts(before, after, after_other)


def _find_problem(prompts: _ThoughtPrompts, thinking: Thinking) -> str | None:
    """Return how the chat template changes a thought; None if it keeps the thought.

    The prompt of an answer must be the prompt of the thought, followed by the thought:
    `PROMPT<think>One of two.</think>`. Other templates leave the thought out, write an empty one
    before it, or put it in a channel of its own.
    """
    if prompts.after == prompts.after_other:
        return "the chat template drops the thought when an answer continues it"

    # White space is not compared, since templates strip it.
    before = squeeze(prompts.before)
    # Some templates end the prompt with the opening delimiter, which the delimited thought repeats.
    before = before.removesuffix(squeeze(thinking.opening))
    expected = before + squeeze(thinking.delimit(_THOUGHT))
    if squeeze(prompts.after) == expected:
        return None
    return (
        f"after {prompts.before[-40:]!r} the model reasons, but the chat template continues a "
        f"thought as {prompts.after[-80:]!r}"
    )


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
