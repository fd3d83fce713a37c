"""Engine on a server with an OpenAI-compatible interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from touche_llm.data.records import Count, Malformed, decode_json
from touche_llm.engines.connections import to_line
from touche_llm.engines.http import HttpClient
from touche_llm.errors import BrokenReply, MissingLogprobs, Rejected
from touche_llm.llm.answer import Token
from touche_llm.llm.answer_schema import Layout
from touche_llm.llm.label_probabilities import LOGPROB_ROUNDING, overlaps
from touche_llm.llm.protocol import Completion, TokenCounter
from touche_llm.llm.request import Message, Request, to_prompt

# Fields of a request's body of which one makes a server enforce a JSON schema.
DELIVERIES = ("structured_outputs", "response_format")
CHAT_PATH = "/v1/chat/completions"
# Alternatives below e^-25 change no stored probability; masked tokens have -9999.
_MIN_LOGPROB = -25.0
_WHITE_SPACE = b" \t\r\n"


class _Alternative(msgspec.Struct, gc=False):
    token: str
    logprob: float


class _Token(msgspec.Struct, gc=False):
    token: str
    logprob: float
    spelled: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = msgspec.field(
        name="bytes", default=None
    )
    # Decoded on demand: twenty per token, and few tokens belong to labels.
    top_logprobs: msgspec.Raw = msgspec.Raw(b"[]")

    @property
    def alternatives(self) -> list[tuple[str, float]]:
        """The most probable tokens at its place; raises Malformed."""
        return [
            (each.token, each.logprob)
            for each in decode_json(self.top_logprobs, list[_Alternative])
        ]


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Token] | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    index: int | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None

    @property
    def tokens(self) -> list[_Token]:
        return (self.logprobs and self.logprobs.content) or []


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    # Sent by a server with --enable-prompt-tokens-details.
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class ChatReply(msgspec.Struct, gc=False):
    """Chat completion; only the fields in use are decoded."""

    choices: list[_Choice]
    model: str | None = None
    usage: _Usage = msgspec.field(default_factory=_Usage)
    system_fingerprint: str | None = None

    def select_choice(self) -> _Choice:
        """Return the choice with index 0, or the only one if it has no index.

        Raises:
            BrokenReply: There is no such choice, or several.
        """
        if not self.choices:
            raise BrokenReply("the reply has no choices")

        has_lone_choice = len(self.choices) == 1 and self.choices[0].index is None
        if has_lone_choice:
            return self.choices[0]

        firsts = [choice for choice in self.choices if choice.index == 0]
        if len(firsts) != 1:
            indexes = to_line(", ".join(str(choice.index) for choice in self.choices))
            raise BrokenReply(
                f"the reply has choices with the index {indexes}; expected one with index 0"
            )
        return firsts[0]


def build_chat_body(request: Request, delivery: str = DELIVERIES[0]) -> dict[str, Any]:
    """Return the body of a request to `CHAT_PATH`, with the schema in the field that the server knows."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": request.model,
        **to_prompt(request.messages),
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "chat_template_kwargs": request.chat_template_kwargs,
    }
    if request.schema:
        # llama.cpp and LM Studio refuse `"items": false`. Without it, `maxItems` closes the array,
        # and the reader refuses more elements; the key keeps it.
        schema = {
            name: value
            for name, value in request.schema.items()
            if (name, value) != ("items", False)
        }
        strict = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }
        body[delivery] = strict if delivery == "response_format" else {"json": schema}
    if sampling.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    if request.stop:
        body["stop"] = list(request.stop)
    return body


def read_completion(reply: ChatReply, layout: Layout | None = None) -> Completion:
    """Return the completion in a reply, with the tokens of its values if their layout is given.

    Raises:
        BrokenReply: The reply is incomplete, or it is unclear which of its choices counts;
            MissingLogprobs if it has no log-probabilities in spite of a layout.
    """
    choice = reply.select_choice()
    if choice.finish_reason not in ("stop", "length", "content_filter"):
        reason = to_line(str(choice.finish_reason))
        raise BrokenReply(f"the answer ended with {reason!r}")
    text = choice.message.content or ""
    is_answer = choice.finish_reason == "stop" and not choice.message.refusal and text.strip()
    if (
        layout is not None
        and is_answer
        and all(bytes(token.top_logprobs) == b"[]" for token in choice.tokens)
    ):
        raise MissingLogprobs(
            "log-probabilities were requested, but none came; set sampling.logprobs to false if the server sends none"
        )
    try:
        tokens = _align_tokens(choice.tokens, text, layout)
    except Malformed as error:
        raise BrokenReply(f"malformed alternatives: {error}") from error
    return Completion(
        text=text,
        finish_reason=choice.finish_reason,
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
        tokens=tokens,
        refusal=choice.message.refusal,
        reasoning=choice.message.reasoning or choice.message.reasoning_content,
        fingerprint=reply.system_fingerprint,
        cached_tokens=reply.usage.cached_tokens,
    )


def _align_tokens(sent: Sequence[_Token], text: str, layout: Layout | None) -> list[Token]:
    """Return the tokens of the values, with their offsets in the answer.

    Empty if they do not spell the text.

    White space is not compared: some tokenizers have it in their tokens but not in the tokens'
    texts. Tokens before the answer (reasoning), after it (the end token) and of white space alone
    are left out. A log-probability that rounding raised above 0 becomes 0; see `check_logprobs` for
    others.
    """
    if layout is None:
        return []
    content = text.encode("utf-8", "replace")
    places = [place for place, byte in enumerate(content) if byte not in _WHITE_SPACE]
    pieces = [
        (bytes(token.spelled or ()) or token.token.encode("utf-8", "replace")).translate(
            None, _WHITE_SPACE
        )
        for token in sent
    ]
    start = b"".join(pieces).rfind(content.translate(None, _WHITE_SPACE))
    if start < 0 or not places:
        return []
    found: list[Token] = []
    spans = layout.find_values(text).values()
    at = -start
    for token, piece in zip(sent, pieces, strict=True):
        if piece and 0 <= at < len(places) and overlaps(places[at], token.token, spans):
            top = [
                (text, _clip_rounding(logprob))
                for text, logprob in token.alternatives
                if logprob > _MIN_LOGPROB
            ]
            found.append(
                Token(
                    at=places[at], token=token.token, logprob=_clip_rounding(token.logprob), top=top
                )
            )
        at += len(piece)
    return found


def _clip_rounding(logprob: float) -> float:
    return 0.0 if 0.0 < logprob <= LOGPROB_ROUNDING else logprob


class _Count(msgspec.Struct):
    count: Count


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str


class _Content(msgspec.Struct):
    content: str


class VllmTokenCounter(TokenCounter):
    """Counter that uses `/tokenize` with messages, as vLLM has it."""

    name = "/tokenize with messages"

    def __init__(
        self, client: HttpClient, model: str, chat_template_kwargs: Mapping[str, Any]
    ) -> None:
        self._client, self._model = client, model
        self._chat_template_kwargs = dict(chat_template_kwargs)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        body = {
            "model": self._model,
            **to_prompt(messages),
            "chat_template_kwargs": self._chat_template_kwargs,
        }
        return (await self._client.post("/tokenize", body, _Count)).count

    async def render(
        self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {
            "model": self._model,
            **to_prompt(messages),
            "chat_template_kwargs": dict(chat_template_kwargs),
        }
        return await self._decode((await self._client.post("/tokenize", body, _Tokens)).tokens)

    async def _encode(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return (await self._client.post("/tokenize", body, _Tokens)).tokens

    async def _decode(self, tokens: list[int]) -> str:
        return (
            await self._client.post(
                "/detokenize", {"model": self._model, "tokens": tokens}, _Prompt
            )
        ).prompt


class TextTokenCounter(VllmTokenCounter):
    """Counter of the tokens of a text that is sent without a chat template, given as one message."""

    name = "/tokenize"

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of tokens of a text, with those that the model adds."""
        text = "".join(message.content for message in messages)
        return (
            await self._client.post("/tokenize", {"model": self._model, "prompt": text}, _Count)
        ).count


class LlamaCppTokenCounter(VllmTokenCounter):
    """Counter that renders with `/apply-template` and tokenizes a text with `/tokenize`, as llama.cpp has them."""

    name = "/apply-template and /tokenize"

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        return len(
            await self._tokenize(
                await self.render(messages, self._chat_template_kwargs), is_prompt=True
            )
        )

    async def render(
        self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {**to_prompt(messages), "chat_template_kwargs": dict(chat_template_kwargs)}
        return (await self._client.post("/apply-template", body, _Prompt)).prompt

    async def _encode(self, text: str) -> list[int]:
        return await self._tokenize(text, is_prompt=False)

    async def _tokenize(self, text: str, *, is_prompt: bool) -> list[int]:
        """Return the tokens of a text, with those that the model adds to a prompt if it is one."""
        return (
            await self._client.post(
                "/tokenize", {"content": text, "add_special": is_prompt}, _Tokens
            )
        ).tokens

    async def _decode(self, tokens: list[int]) -> str:
        return (await self._client.post("/detokenize", {"tokens": tokens}, _Content)).content


class ChatServer(HttpClient):
    """Engine that sends requests to a server.

    Use as an asynchronous context manager, and see `doctor.examination.connect`.

    Attributes:
        delivery: Field with which the server enforces a schema.
        alternatives: Number of alternatives to request in place of fewer, if the server needs more
            to show the labels.
    """

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        chat_template_kwargs: Mapping[str, Any],
    ) -> None:
        """Initialise the client like an `HttpClient`; nothing is sent yet."""
        super().__init__(base_url, concurrency=concurrency, request_timeout=request_timeout)
        self.chat_template_kwargs = dict(chat_template_kwargs)
        self.delivery = DELIVERIES[0]
        self.alternatives = 0
        self.choose("")

    def choose(self, model: str) -> None:
        """Send requests to this model, and count tokens with the server."""
        self.model = model
        self.counter: TokenCounter = VllmTokenCounter(self, model, self.chat_template_kwargs)

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request.

        Raise as `post` does, and EngineError if another model answers.
        """
        layout = request.layout if request.sampling.top_logprobs else None
        return read_completion(await self.exchange(request), layout)

    async def exchange(self, request: Request) -> ChatReply:
        """Return the unprocessed reply to a request."""
        body = build_chat_body(request, self.delivery)
        if request.sampling.top_logprobs:
            body["top_logprobs"] = max(request.sampling.top_logprobs, self.alternatives)
        reply = await self.post(CHAT_PATH, body, ChatReply)
        self.check_model(reply.model, self.model)
        return reply

    async def render(
        self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]
    ) -> str | None:
        """Return the text of a prompt as the server renders it.

        None if the server does not show it.
        """
        try:
            return await self.counter.render(messages, chat_template_kwargs)
        except (BrokenReply, Rejected) as error:
            if isinstance(error, Rejected) and error.status != 404:
                raise
            return None
