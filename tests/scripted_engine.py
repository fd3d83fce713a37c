"""An engine that answers from a script: for tests and for the demo's cassette, never for measuring a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import AnswerForm, Layout, abbreviate, list_fields
from touche_llm.llm.protocol import Completion, EngineInfo
from touche_llm.llm.request import Message, Request

Label = int | str
# What is answered: for each field its label, or the probabilities of its labels.
Values = Mapping[str, Label | Mapping[Label, float]]
Script = Callable[[Request], Values]

FACTS = EngineInfo(model="scripted", revision="", context=32768, overhead=32, engine="scripted")


class ScriptedEngine:
    """Answers each request as the script says, with log-probabilities, one token for each label."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        if not request.schema:
            thought = f"Thought {request.repeat} about {request.origin.document_id}."
            return Completion(
                text=thought, finish_reason="stop", prompt_tokens=100, completion_tokens=8
            )
        text, tokens = answer(self.script(request), request.schema)
        return Completion(
            text=text,
            finish_reason="stop",
            prompt_tokens=100,
            completion_tokens=len(tokens),
            tokens=tokens,
        )

    @property
    def counter(self) -> Self:
        return self

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """A token is four characters here."""
        return sum(len(message.content) for message in messages) // 4

    async def truncate(self, text: str, max_tokens: int) -> str:
        return text[: max_tokens * 4]


def spell(values: Values, layout: Layout) -> tuple[str, list[Token]]:
    """The text of an answer and its tokens; the most probable label is the one written."""
    text = ""
    tokens: list[Token] = []

    def add(top: list[tuple[str, float]]) -> None:
        nonlocal text
        tokens.append(Token(at=len(text.encode()), token=top[0][0], logprob=top[0][1], top=top))
        text += top[0][0]

    *before, end = layout.frame
    quote = ""
    for frame, value in zip(before, values.values(), strict=True):
        shares = value if isinstance(value, Mapping) else {value: 1.0}
        opening = '"' if isinstance(next(iter(shares)), str) else ""
        add([(quote + frame + opening, 0.0)])
        names = {
            label: abbreviate(label) if layout.form is AnswerForm.LETTERS else label
            for label in shares
        }
        top = [(str(names[label]), math.log(share)) for label, share in shares.items() if share]
        add(sorted(top, key=lambda t: -t[1]))
        quote = opening
    add([(quote + end, 0.0)])
    return text, tokens


def divide_stance(values: Values, schema: Mapping[str, Any]) -> Values:
    """The same answer with its stance divided into position and side, if the schema has both and the answer has not."""
    fields = list_fields(schema)
    if "position" not in fields or "position" in values or "stance" not in values:
        return values
    stance = values["stance"]
    shares = stance if isinstance(stance, Mapping) else {stance: 1.0}
    sides = {label: share for label, share in shares.items() if label != "NO"}
    yes = math.fsum(sides.values())
    leaning = (
        {label: share / yes for label, share in sides.items()}
        if yes
        else fields["stance"]["enum"][-1]
    )
    return {**values, "position": {"YES": yes, "NO": 1.0 - yes}, "stance": leaning}


def answer(values: Values, schema: Mapping[str, Any]) -> tuple[str, list[Token]]:
    """The text and tokens of an answer in the form of a schema, whose fields the values may lack."""
    values = divide_stance(values, schema)
    fields = [name for name in list_fields(schema) if name in values]
    # Wrong names are written as they are, as an object.
    if set(fields) != set(values):
        return spell(values, Layout(AnswerForm.OBJECT, tuple(values)))
    layout = Layout(Layout.of_schema(schema).form, tuple(fields))
    return spell({name: values[name] for name in fields}, layout)
