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
    """Check whether tokens can be counted, and whether the count is not far below the server's own.

    With too low a count, documents would be sent that do not fit the context.
    """
    count = survey.token_count
    if isinstance(count, NoTokenCount):
        return [CHECK.fail(f"does not count the tokens of messages ({count.problem})")]

    name = count.counter.name
    # An enforced answer comes with the number of tokens that the server itself has counted.
    if isinstance(survey.schema, EnforcedSchema):
        counted_tokens = count.prompt_tokens
        reported_tokens = survey.schema.reply.usage.prompt_tokens
        if reported_tokens - counted_tokens > _MAX_COUNT_ERROR:
            value = (
                f"{reported_tokens} prompt tokens are {counted_tokens} by {name}, so documents "
                "would not fit"
            )
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
