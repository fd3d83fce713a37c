"""Engine on a server with an OpenAI-compatible interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

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

# Parameters of a request of which one makes a server enforce a JSON schema.
ConstraintParameter = Literal["structured_outputs", "response_format"]
CONSTRAINT_PARAMETERS: tuple[ConstraintParameter, ...] = get_args(ConstraintParameter)
CHAT_PATH = "/v1/chat/completions"
# Alternatives below e^-25 change no stored probability; masked tokens have -9999.
_MIN_LOGPROB = -25.0
_WHITE_SPACE = b" \t\r\n"


class _Alternative(msgspec.Struct, gc=False):
    token: str
    logprob: float


class _Token(msgspec.Struct, gc=False):
    """Token of a reply.

    Attributes:
        token: Text, which can lack white space or parts of a character.
        spelled: Bytes; None if the server sends none.
        top_logprobs: JSON of the most probable tokens at its place.
    """

    token: str
    logprob: float
    spelled: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = msgspec.field(
        name="bytes", default=None
    )
    # Decoded on demand: twenty per token, and few tokens belong to labels.
    top_logprobs: msgspec.Raw = msgspec.Raw(b"[]")

    @property
    def alternatives(self) -> list[tuple[str, float]]:
        """Texts and log-probabilities of the most probable tokens at its place.

        Raises:
            Malformed: They are no alternatives.
        """
        alternatives = decode_json(self.top_logprobs, list[_Alternative])
        return [(alternative.token, alternative.logprob) for alternative in alternatives]

    @property
    def spelling(self) -> bytes:
        """Bytes without white space, which some tokenizers have in tokens but not in their texts."""
        content = bytes(self.spelled or ()) or self.token.encode("utf-8", "replace")
        return content.translate(None, _WHITE_SPACE)


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
        """Tokens with log-probabilities; empty without any."""
        if self.logprobs is None:
            return []
        return self.logprobs.content or []


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    # Sent by a server with --enable-prompt-tokens-details.
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens taken from the prefix cache; None if not reported."""
        if self.prompt_tokens_details is None:
            return None
        return self.prompt_tokens_details.cached_tokens


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

        has_single_choice = len(self.choices) == 1
        if has_single_choice and self.choices[0].index is None:
            return self.choices[0]

        first_choices = [choice for choice in self.choices if choice.index == 0]
        if len(first_choices) != 1:
            indexes = to_line(", ".join(str(choice.index) for choice in self.choices))
            raise BrokenReply(
                f"the reply has choices with the index {indexes}; expected one with index 0"
            )
        return first_choices[0]


def build_chat_body(
    request: Request, constraint_parameter: ConstraintParameter = "structured_outputs"
) -> dict[str, Any]:
    """Return the body of a request to `CHAT_PATH`.

    Args:
        request: Request to send.
        constraint_parameter: Parameter in which the server takes the schema.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": request.model,
        **to_prompt(request.messages),
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "chat_template_kwargs": request.chat_template_kwargs,
    }
    if request.schema:
        body[constraint_parameter] = _build_constraint(request.schema, constraint_parameter)
    if sampling.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    if request.stop:
        body["stop"] = list(request.stop)
    return body


def _build_constraint(schema: Mapping[str, Any], parameter: ConstraintParameter) -> dict[str, Any]:
    """Return the value of a constraint parameter that makes a server enforce a schema."""
    sent_schema = dict(schema)
    if sent_schema.get("items") is False:
        # llama.cpp and LM Studio refuse it. It is not needed: `maxItems` closes the array, and an
        # answer with more elements is refused.
        del sent_schema["items"]

    if parameter == "structured_outputs":
        return {"json": sent_schema}
    named_schema = {"name": "answer", "schema": sent_schema, "strict": True}
    return {"type": "json_schema", "json_schema": named_schema}


def read_completion(reply: ChatReply, layout: Layout | None = None) -> Completion:
    """Return the completion in a reply.

    Args:
        reply: Reply of a server.
        layout: Layout of the answer, if the tokens of its values are to be read too.

    Raises:
        BrokenReply: The reply is incomplete, or it is unclear which of its choices counts.
        MissingLogprobs: The tokens are to be read, and none has log-probabilities.
    """
    choice = reply.select_choice()
    if choice.finish_reason not in ("stop", "length", "content_filter"):
        reason = to_line(str(choice.finish_reason))
        raise BrokenReply(f"the answer ended with {reason!r}")

    tokens: list[Token] = []
    if layout is not None:
        tokens = _read_tokens(choice, layout)

    message = choice.message
    return Completion(
        text=message.content or "",
        finish_reason=choice.finish_reason,
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
        tokens=tokens,
        refusal=message.refusal,
        reasoning=message.reasoning or message.reasoning_content,
        fingerprint=reply.system_fingerprint,
        cached_tokens=reply.usage.cached_tokens,
    )


def _read_tokens(choice: _Choice, layout: Layout) -> list[Token]:
    """Return the tokens of the values in an answer, with their alternatives.

    Raises:
        BrokenReply: The alternatives are malformed.
        MissingLogprobs: No token has alternatives.
    """
    if _is_answer(choice) and not _has_alternatives(choice):
        raise MissingLogprobs(
            "log-probabilities were requested, but none came; set sampling.logprobs to false if the server sends none"
        )
    try:
        return _align_tokens(choice.tokens, choice.message.content or "", layout)
    except Malformed as error:
        raise BrokenReply(f"malformed alternatives: {error}") from error


def _is_answer(choice: _Choice) -> bool:
    """Return whether a model ended its answer, rather than refused or was cut off."""
    if choice.finish_reason != "stop" or choice.message.refusal:
        return False
    text = choice.message.content or ""
    return bool(text.strip())


def _has_alternatives(choice: _Choice) -> bool:
    """Return whether any token came with alternatives."""
    return any(bytes(token.top_logprobs) != b"[]" for token in choice.tokens)


def _align_tokens(tokens: Sequence[_Token], text: str, layout: Layout) -> list[Token]:
    """Return the tokens of the values, with their offsets in the answer.

    Args:
        tokens: Tokens of the completion.
        text: Text of the answer.
        layout: Layout of the answer.

    Returns:
        Tokens in order; none if they do not spell the text.

    Raises:
        Malformed: The alternatives of a token of a value are malformed.
    """
    content = text.encode("utf-8", "replace")
    spans = layout.find_values(text).values()
    aligned: list[Token] = []
    for token, offset in _locate_tokens(tokens, content):
        if overlaps(offset, token.token, spans):
            aligned.append(_make_token(token, offset))
    return aligned


def _locate_tokens(tokens: Sequence[_Token], content: bytes) -> list[tuple[_Token, int]]:
    """Return the tokens of an answer, each with its offset in the answer.

    The offset is that of the token's first byte that is no white space: in the answer `a b`, the
    token ` b` has the offset 2. White space is not compared, since some tokens lack it.

    Args:
        tokens: Tokens of the completion. Those before the answer (reasoning), after it (the end
            token) and of white space alone are left out.
        content: Answer in UTF-8.

    Returns:
        Tokens in order; none if they do not spell the answer.
    """
    squeezed_answer = content.translate(None, _WHITE_SPACE)
    # Offset in the answer of each byte of the squeezed answer.
    offsets = [offset for offset, byte in enumerate(content) if byte not in _WHITE_SPACE]

    spellings = [token.spelling for token in tokens]
    squeezed_completion = b"".join(spellings)
    # The last occurrence, since reasoning before the answer may quote it.
    answer_start = squeezed_completion.rfind(squeezed_answer)
    if answer_start < 0 or not squeezed_answer:
        return []

    located: list[tuple[_Token, int]] = []
    start_in_completion = 0
    for token, spelling in zip(tokens, spellings, strict=True):
        start_in_answer = start_in_completion - answer_start
        is_in_answer = 0 <= start_in_answer < len(squeezed_answer)
        if spelling and is_in_answer:
            located.append((token, offsets[start_in_answer]))
        start_in_completion += len(spelling)
    return located


def _make_token(token: _Token, offset: int) -> Token:
    """Return a token of a reply as it is stored, with the offset of its first byte in the answer.

    Raises:
        Malformed: Its alternatives are malformed.
    """
    top: list[tuple[str, float]] = []
    for text, logprob in token.alternatives:
        if logprob > _MIN_LOGPROB:
            top.append((text, _clip_rounding(logprob)))
    return Token(
        at=offset,
        token=token.token,
        logprob=_clip_rounding(token.logprob),
        top=top,
    )


def _clip_rounding(logprob: float) -> float:
    """Return 0 for a log-probability that rounding raised above it; see `check_logprobs` for others."""
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
        """Make the counter of a model.

        Args:
            client: Client of the server.
            model: Name of the model.
            chat_template_kwargs: Switches of the chat template.
        """
        self._client = client
        self._model = model
        self._chat_template_kwargs = dict(chat_template_kwargs)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        body = {
            "model": self._model,
            **to_prompt(messages),
            "chat_template_kwargs": self._chat_template_kwargs,
        }
        reply = await self._client.post("/tokenize", body, _Count)
        return reply.count

    async def render(
        self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {
            "model": self._model,
            **to_prompt(messages),
            "chat_template_kwargs": dict(chat_template_kwargs),
        }
        reply = await self._client.post("/tokenize", body, _Tokens)
        return await self._decode(reply.tokens)

    async def _encode(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        reply = await self._client.post("/tokenize", body, _Tokens)
        return reply.tokens

    async def _decode(self, tokens: list[int]) -> str:
        body = {"model": self._model, "tokens": tokens}
        reply = await self._client.post("/detokenize", body, _Prompt)
        return reply.prompt


class TextTokenCounter(VllmTokenCounter):
    """Counter of the tokens of a text that is sent without a chat template, given as one message."""

    name = "/tokenize"

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of tokens of a text, with those that the model adds."""
        text = "".join(message.content for message in messages)
        body = {"model": self._model, "prompt": text}
        reply = await self._client.post("/tokenize", body, _Count)
        return reply.count


class LlamaCppTokenCounter(VllmTokenCounter):
    """Counter that renders with `/apply-template` and tokenizes a text with `/tokenize`, as llama.cpp has them."""

    name = "/apply-template and /tokenize"

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        prompt = await self.render(messages, self._chat_template_kwargs)
        return len(await self._tokenize(prompt, is_prompt=True))

    async def render(
        self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Return the text of a prompt with these switches of the chat template."""
        body = {**to_prompt(messages), "chat_template_kwargs": dict(chat_template_kwargs)}
        reply = await self._client.post("/apply-template", body, _Prompt)
        return reply.prompt

    async def _encode(self, text: str) -> list[int]:
        return await self._tokenize(text, is_prompt=False)

    async def _tokenize(self, text: str, *, is_prompt: bool) -> list[int]:
        """Return the tokens of a text, with those that the model adds to a prompt if it is one."""
        body = {"content": text, "add_special": is_prompt}
        reply = await self._client.post("/tokenize", body, _Tokens)
        return reply.tokens

    async def _decode(self, tokens: list[int]) -> str:
        reply = await self._client.post("/detokenize", {"tokens": tokens}, _Content)
        return reply.content


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server wants its requests, where servers differ; `engines.dialects` finds it out.

    Attributes:
        constraint_parameter: Parameter with which the server enforces a schema.
        counter: Counter of tokens that works with the server.
        min_alternatives: Number of alternatives to request in place of fewer, since the server
            shows all labels only among so many.
    """

    constraint_parameter: ConstraintParameter
    counter: TokenCounter
    min_alternatives: int = 0


class ChatServer(HttpClient):
    """Engine that sends requests to a server. Use as an asynchronous context manager.

    Attributes:
        chat_template_kwargs: Switches of the chat template, for counts of tokens.
        dialect: Dialect of the server; None until `doctor.examination.connect` has found it.
    """

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        chat_template_kwargs: Mapping[str, Any],
        address: str = "`engine.base_url`",
        patience: int = 12,
    ) -> None:
        """Initialise the client like an `HttpClient`; nothing is sent yet."""
        super().__init__(
            base_url,
            concurrency=concurrency,
            request_timeout=request_timeout,
            address=address,
            patience=patience,
        )
        self.chat_template_kwargs = dict(chat_template_kwargs)
        self.dialect: Dialect | None = None

    @property
    def counter(self) -> TokenCounter:
        """Counter of tokens of the dialect, which must be known."""
        return self._get_dialect().counter

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request in the dialect, which must be known.

        Raises:
            EngineError: Another model answers than before.
            Rejected: The server refuses the request.
            Transient: There is no reply, or it is malformed.
        """
        layout = request.layout if request.sampling.top_logprobs else None
        return read_completion(await self.exchange(request, self._get_dialect()), layout)

    async def exchange(self, request: Request, dialect: Dialect) -> ChatReply:
        """Return the unprocessed reply to a request in a dialect; raise as `complete` does."""
        body = build_chat_body(request, dialect.constraint_parameter)
        if request.sampling.top_logprobs:
            body["top_logprobs"] = max(request.sampling.top_logprobs, dialect.min_alternatives)
        reply = await self.post(CHAT_PATH, body, ChatReply)
        self.check_model(reply.model, request.model)
        return reply

    def _get_dialect(self) -> Dialect:
        assert self.dialect is not None, "connect to the server first"
        return self.dialect


async def render_prompt(counter: TokenCounter, request: Request) -> str | None:
    """Return the text of a prompt as the server renders it; None if the server does not show it.

    Raises:
        Rejected: The chat template refuses the messages.
        Transient: There is no reply.
    """
    try:
        return await counter.render(request.messages, request.chat_template_kwargs)
    except BrokenReply:
        return None
    except Rejected as error:
        if error.status != 404:
            raise
        return None
