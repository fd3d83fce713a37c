"""An engine that answers from a script: for tests and for the demo's cassette, never for measuring a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import orjson

from touche_llm.llm.answers import Token
from touche_llm.llm.engines.base import Completion, EngineInfo
from touche_llm.llm.request import Message, Request

Label = int | str
# What is answered: for each field its label, or the probabilities of its labels.
Script = Callable[[Request], Mapping[str, Label | Mapping[Label, float]]]

FACTS = EngineInfo(model="scripted", revision="", context=32768, overhead=32, engine="scripted")


class ScriptedEngine:
    """Answers each request as the script says, with log-probabilities, one token for each label."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        text, tokens = spell(self.script(request))
        return Completion(
            text=text, finish_reason="stop", prompt_tokens=100, completion_tokens=len(tokens), tokens=tokens
        )

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """A token is four characters here."""
        return sum(len(message.content) for message in messages) // 4

    async def truncate(self, text: str, max_tokens: int) -> str:
        return text[: max_tokens * 4]


def spell(fields: Mapping[str, Label | Mapping[Label, float]]) -> tuple[str, list[Token]]:
    """The text of an answer and its tokens; the most probable label is the one written."""
    text = ""
    tokens: list[Token] = []

    def add(top: list[tuple[str, float]]) -> None:
        nonlocal text
        tokens.append(Token(at=len(text.encode()), token=top[0][0], logprob=top[0][1], top=top))
        text += top[0][0]

    separator = "{"
    for field, value in fields.items():
        shares = value if isinstance(value, Mapping) else {value: 1.0}
        quote = '"' if isinstance(next(iter(shares)), str) else ""
        add([(f'{separator}"{field}":{quote}', 0.0)])
        add(sorted(((str(label), math.log(share)) for label, share in shares.items() if share), key=lambda t: -t[1]))
        separator = f"{quote},"
    add([(quote + "}", 0.0)])
    orjson.loads(text)
    return text, tokens
