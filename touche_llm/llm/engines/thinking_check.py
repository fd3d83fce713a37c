"""Check of a server that continues an answer after reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from touche_llm.llm.engines.base import BrokenReply, Rejected
from touche_llm.llm.engines.chat_reply import read_completion
from touche_llm.llm.engines.server import ChatServer
from touche_llm.llm.engines.server_checks import ServerCheck, block
from touche_llm.llm.request import Message, Request, continue_thought
from touche_llm.llm.settings import ThinkingConfig
from touche_llm.llm.thinking import Thinking

_NAME = "thinking"
_TEMPLATE = (
    "set the delimiters of the model (`sampling.thinking.delimiters`), or serve it with a chat template that keeps its "
    "thought (vLLM: --chat-template FILE)"
)
_PARSER = "serve the model without a reasoning parser (vLLM: --reasoning-parser)"
# Two thoughts that no template would change.
_THOUGHTS = ("One of two.", "Other words.")


async def check_thinking(server: ChatServer, probe: Request, answer: str, settings: ThinkingConfig) -> ServerCheck:
    """Return whether the server continues a thought that has ended with an answer that fits the schema.

    Args:
        server: The server, with the field in which it gets schemas.
        probe: Request with a schema that allows one answer only.
        answer: This answer.
        settings: Delimiters, and switches of the chat template.

    Raises:
        Transient, Rejected: The server did not reply, or refuses all requests.
    """
    opening, closing = settings.delimiters
    thinking = Thinking(1, opening, closing, settings.temperature)
    known = await _check_template(server, probe.messages, thinking, settings.chat_template_kwargs)
    if known is not None and not known.is_ok:
        return known
    thoughtful = replace(probe, thinking=thinking, chat_template_kwargs=settings.chat_template_kwargs)
    request = continue_thought(thoughtful, 0, _THOUGHTS[0])
    try:
        completion = read_completion(await server.exchange(request))
    except Rejected as error:
        if error.is_fatal:
            raise
        return block(
            _NAME,
            f"the server refuses to continue a message of the assistant: {error}",
            "let the model reason on a server that continues one, such as vLLM",
        )
    if "".join(completion.text.split()) == answer:
        return known or ServerCheck(
            _NAME, None, "an answer continues a thought; whether the template keeps it is unknown"
        )
    if answer in "".join((completion.reasoning or "").split()):
        return block(_NAME, "the answer after a thought is in the field of the reasoning", _PARSER)
    return block(_NAME, f"no schema is enforced after a thought: {completion.text[:80]!r}", _PARSER)


async def _check_template(
    server: ChatServer, messages: tuple[Message, ...], thinking: Thinking, chat_template_kwargs: Mapping[str, Any]
) -> ServerCheck | None:
    """Return whether the chat template keeps a thought; None if the server does not show its prompts.

    Apart from white space, the prompt of the answer is the prompt of the thought with the thought after it: a template
    may write an empty thought before it, or put it in a channel of its own.
    """
    prompt = await server.render(messages, chat_template_kwargs)
    if prompt is None:
        return None
    found = []
    for thought in _THOUGHTS:
        continued = (*messages, Message("assistant", thinking.delimit(thought)))
        try:
            found.append(await server.counter.render(continued, chat_template_kwargs) or "")
        except (Rejected, BrokenReply) as error:
            return block(_NAME, f"the chat template refuses to continue a thought: {error}", _TEMPLATE)
    text, other = found
    if text == other:
        return block(_NAME, "the chat template drops the thought when an answer continues it", _TEMPLATE)
    # Some templates open the thought themselves.
    begun = _squeeze(prompt).removesuffix(_squeeze(thinking.opening))
    if _squeeze(text) != begun + _squeeze(thinking.delimit(_THOUGHTS[0])):
        return block(
            _NAME,
            f"after {prompt[-40:]!r} the model reasons, but the chat template continues a thought as {text[-80:]!r}",
            _TEMPLATE,
        )
    return ServerCheck(_NAME, True, "a thought is kept")


def _squeeze(text: str) -> str:
    """Return a text without white space, which templates strip from messages."""
    return "".join(text.split())
