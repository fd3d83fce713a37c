"""Check of the schema, which shows the log-probabilities too."""

from __future__ import annotations

from dataclasses import replace

from touche_llm.doctor.checks import white_space
from touche_llm.doctor.registry import Check, Feature, Occasion, register
from touche_llm.doctor.survey import Survey
from touche_llm.engines.chat import read_completion
from touche_llm.engines.dialects import PROBE_ANSWER, NoLogprobs, UnenforcedSchema
from touche_llm.engines.identification import ServerCheck

# Both are found in the reply to the check of the schema.
LOGPROBS = Feature(
    name="logprobs",
    remedy=(
        "use a server that sends them, or request plain grades with `sampling.logprobs: false`: whole numbers, "
        "whose ties keep the order of the first stage"
    ),
    is_blocking=True,
)
REASONING = Feature(
    name="reasoning",
    remedy="each answer takes many more tokens; switch it off (`sampling.chat_template_kwargs`)",
)


async def check_schema(survey: Survey) -> list[ServerCheck]:
    """Return whether the server enforces a schema.

    The reply that shows it also shows whether the server sends log-probabilities, and whether the
    model reasons.
    """
    if isinstance(survey.schema, UnenforcedSchema):
        return [_describe_unenforced(survey.schema, survey.info.model)]

    results = [
        ServerCheck(CHECK.name, True, f"enforced with {survey.schema.parameter}"),
        _check_logprobs(survey),
    ]
    if read_completion(survey.schema.reply).reasoning:
        results.append(REASONING.fail("the model thinks before it answers"))
    return results


def _describe_unenforced(schema: UnenforcedSchema, model: str) -> ServerCheck:
    """Return the result of a check whose schema was not enforced, or by which the answer never ends."""
    if schema.is_endless:
        value = f"{model} fills its answer with white space until it is cut off"
        return replace(white_space.CHECK.fail(value), is_blocking=True)
    problems = "; ".join(schema.problems)
    return CHECK.fail(
        f"{model} does not enforce JSON schemas: restricted to {PROBE_ANSWER}, {problems}"
    )


def _check_logprobs(survey: Survey) -> ServerCheck:
    """Return whether log-probabilities came with the enforced answer."""
    logprobs = survey.logprobs
    if logprobs is None:
        remedy = "grades are whole numbers, and stances certain"
        return ServerCheck(LOGPROBS.name, None, "not requested", remedy)
    if isinstance(logprobs, NoLogprobs):
        return LOGPROBS.fail(f"{survey.info.model} {logprobs.problem}", logprobs.remedy)
    kind = "renormalised" if logprobs.is_renormalised else "raw"
    return ServerCheck(LOGPROBS.name, True, f"for each token of an answer, {kind}")


CHECK = register(
    Check(
        name="schema",
        # While thinking is off, a reasoning parser switches schemas off:
        # https://github.com/vllm-project/vllm/issues/39130
        remedy=(
            "use a server that enforces `structured_outputs` or `response_format`, such as vLLM from 0.11 on without "
            "a reasoning parser (--reasoning-parser)"
        ),
        is_blocking=True,
        run=check_schema,
        occasion=Occasion.START_UP,
        order=10,
        needs_answers=False,
    )
)
