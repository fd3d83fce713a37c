"""Check of the counter of tokens."""

from __future__ import annotations

from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.doctor.survey import Survey
from touche_llm.engines.dialects import EnforcedSchema, NoTokenCount
from touche_llm.engines.identification import ServerCheck

# Max difference between the prompt tokens that are counted and those that the server reports: some
# templates add a date, some servers a token at the beginning.
_MAX_COUNT_ERROR = 8


async def check_tokens(survey: Survey) -> list[ServerCheck]:
    """Return whether the tokens of messages can be counted, with about the result of the server.

    If the server reports more, documents that fit by the count would not fit its context.
    """
    count = survey.token_count
    if isinstance(count, NoTokenCount):
        return [CHECK.fail(f"does not count the tokens of messages ({count.problem})")]

    name = count.counter.name
    if isinstance(survey.schema, EnforcedSchema):
        reported = survey.schema.reply.usage.prompt_tokens
        uncounted = reported - count.prompt_tokens
        if uncounted > _MAX_COUNT_ERROR:
            value = f"{reported} prompt tokens are {count.prompt_tokens} by {name}, so documents would not fit"
            return [CHECK.fail(value)]
    return [ServerCheck(CHECK.name, True, f"counted by {name}")]


CHECK = register(
    Check(
        name="tokens",
        remedy="give a folder with the tokenizer of this very model (`engine.tokenizer`)",
        is_blocking=True,
        run=check_tokens,
        occasion=Occasion.START_UP,
        order=20,
        needs_answers=False,
    )
)
