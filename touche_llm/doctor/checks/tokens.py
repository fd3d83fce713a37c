"""Check of the counter of tokens."""

from __future__ import annotations

from touche_llm.doctor.card import PROBE_MESSAGES, Survey
from touche_llm.doctor.registry import Check, Occasion, register
from touche_llm.engines.chat import LlamaCppTokenCounter
from touche_llm.engines.identification import ServerCheck
from touche_llm.engines.tokenizers import ChatTokenizer
from touche_llm.errors import BrokenReply, Rejected
from touche_llm.llm.protocol import TokenCounter

# Max difference between the prompt tokens that are counted and those that the server reports: some
# templates add a date, some servers a token at the beginning.
_MAX_COUNT_ERROR = 8


async def check_tokens(survey: Survey) -> list[ServerCheck]:
    """Make the server use the first counter of tokens that works, and compare its count with the server's."""
    server = survey.server
    problem = ""
    for counter in _list_counters(survey):
        server.counter = counter
        try:
            # Some templates refuse system messages.
            counted = await counter.count_tokens(PROBE_MESSAGES)
        except (Rejected, BrokenReply) as error:
            problem = problem or str(error)
            continue
        reported = survey.probe.usage.prompt_tokens if survey.probe else 0
        if reported > counted + _MAX_COUNT_ERROR:
            value = f"{reported} prompt tokens are {counted} by {counter.name}, so documents would not fit"
            return [CHECK.fail(value)]
        return [ServerCheck(CHECK.name, True, f"counted by {counter.name}")]
    return [CHECK.fail(f"does not count the tokens of messages ({problem})")]


def _list_counters(survey: Survey) -> list[TokenCounter]:
    """Return the counters to try: that of the configured tokenizer, or else those of servers."""
    server = survey.server
    folder = survey.engine.tokenizer
    if folder is not None:
        return [ChatTokenizer(folder, server.chat_template_kwargs)]
    llama_cpp = LlamaCppTokenCounter(server, server.model, server.chat_template_kwargs)
    return [server.counter, llama_cpp]


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
