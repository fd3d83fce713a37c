"""A check of a server: whether it serves a model that an organisation allows."""

from __future__ import annotations

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.survey import Survey
from touche_llm.engines.dialects import Refusal
from touche_llm.engines.identification import ServerCheck

ALLOWED_MODELS = ("fake",)


async def check_model_is_allowed(survey: Survey) -> list[ServerCheck]:
    """Check whether the served model is on the list, and answers at all."""
    model = survey.info.model
    if model not in ALLOWED_MODELS:
        return [CHECK.fail(f"{model} is not on the list")]

    reply = await survey.send(survey.build())
    if isinstance(reply, Refusal):
        return [CHECK.fail(f"{model} refuses the request: {reply.reason}")]
    return [ServerCheck(CHECK.name, True, f"{model} is on the list")]


CHECK = register(
    Check(
        name="allowed model",
        remedy="serve another model (`engine.model`)",
        is_blocking=True,
        run=check_model_is_allowed,
        occasion=Occasion.START_UP,
    )
)
