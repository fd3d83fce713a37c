"""Checks of a server's chat template: the system message, and a thought that the prompt leaves open."""

from __future__ import annotations

import re
from dataclasses import replace

from touche_llm.llm.engines.base import Rejected
from touche_llm.llm.engines.server import ChatServer
from touche_llm.llm.engines.server_checks import REMEDIES, ServerCheck, block
from touche_llm.llm.request import Message, Request, place_system_message
from touche_llm.llm.settings import SamplingConfig

SYSTEM_MESSAGE, OPEN_THOUGHT = "system message", "open thought"
_SYSTEM, _USER = "Quokka rules apply.", "Say wombat."
# Words that a longer system message has besides; a prompt that shows it has at least as many more tokens.
_MORE_WORDS = 40
_COST = "prompts give their instructions in one"
_REMEDY = "put them into the user message (`sampling.system_message: user`)"
# Beginnings and ends of thoughts in published chat templates.
_OPENING = re.compile(
    r"<(?![^<>]*END_)[^<>/]*think[^<>]*>|\[THINK\]|<thought>|<\|channel>thought|here are my reasoning steps:",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"</[^<>]*(?:think|thought)[^<>]*>|\[/THINK\]|<\|END_THINKING\|>|<channel\|>", re.IGNORECASE)


async def check_system_message(server: ChatServer, kind: str, probe: Request, sampling: SamplingConfig) -> ServerCheck:
    """Check whether the model sees a system message: by the text of a prompt, else by its effect on the tokens.

    Some templates write a message of their own where a chat has none, so that only prompts with one are compared.

    Args:
        server: Server with a counter of tokens and a way to enforce schemas.
        kind: The program that serves, empty if unknown.
        probe: Request that the server answers.
        sampling: Place of the instructions, and switches of the chat template.

    Raises:
        Transient, Rejected: The server did not reply, or refuses all requests.
    """
    if sampling.system_message == "user":
        return ServerCheck(SYSTEM_MESSAGE, True, "in the user message, as configured")
    remedy = " or ".join(filter(None, (_REMEDY, REMEDIES.get((SYSTEM_MESSAGE, kind)))))
    try:
        prompt = await _render(server, sampling)
        if prompt is not None:
            if _SYSTEM.casefold() not in " ".join(prompt.casefold().split()):
                return block(SYSTEM_MESSAGE, "ignored by the chat template", remedy, _COST)
            return ServerCheck(SYSTEM_MESSAGE, True, "shown by the chat template")
        return await _compare_tokens(server, probe, remedy)
    except Rejected as error:
        if error.is_fatal:
            raise
        return block(SYSTEM_MESSAGE, f"refused: {error}", remedy, _COST)


async def _compare_tokens(server: ChatServer, probe: Request, remedy: str) -> ServerCheck:
    """Return whether a longer system message makes a longer prompt."""
    counts = []
    for text in (_SYSTEM, _SYSTEM + " quokka" * _MORE_WORDS):
        chat = (Message("system", text), Message("user", _USER))
        counts.append((await server.exchange(replace(probe, messages=chat))).usage.prompt_tokens)
    added = counts[1] - counts[0]
    if added >= _MORE_WORDS:
        return ServerCheck(SYSTEM_MESSAGE, True, "shown by the chat template, by its tokens")
    if added or not counts[0]:
        return ServerCheck(SYSTEM_MESSAGE, None, "accepted; the prompt tokens do not show whether it is used", _COST)
    return block(SYSTEM_MESSAGE, "ignored by the chat template: a longer one adds no tokens", remedy, _COST)


async def check_open_thought(server: ChatServer, sampling: SamplingConfig) -> ServerCheck:
    """Check whether the prompt of an answer without reasoning ends inside a thought; raise Transient or Rejected."""
    prompt = await _render(server, sampling)
    if prompt is None:
        return ServerCheck(OPEN_THOUGHT, None, "unknown, since the server does not show its prompts")
    end = prompt[prompt.rfind(_USER) + len(_USER) :]
    opened, closed = ([match.start() for match in pattern.finditer(end)] for pattern in (_OPENING, _CLOSING))
    if opened and opened[-1] > max(closed, default=-1):
        return ServerCheck(
            OPEN_THOUGHT,
            False,
            f"the prompt ends inside a thought: {end[-40:]!r}",
            "the answer stands where the model has learnt to reason",
            "let it reason (`sampling.thinking`), or switch reasoning off, with a switch that its chat template knows "
            "(`sampling.chat_template_kwargs`) or another template",
        )
    return ServerCheck(OPEN_THOUGHT, True, "none in the prompt of an answer")


async def _render(server: ChatServer, sampling: SamplingConfig) -> str | None:
    """Return the prompt of a short question as a run would send it; None if the server does not show it."""
    chat = place_system_message((Message("system", _SYSTEM), Message("user", _USER)), sampling.system_message)
    return await server.render(chat, sampling.chat_template_kwargs)
