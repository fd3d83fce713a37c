"""What a chat request to vLLM holds and what its reply says: of a server, and line by line of a batch file."""

from __future__ import annotations

import builtins
from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from touche_llm.json_records import Count, Malformed, decoded
from touche_llm.llm.engine import Completion, MissingLogprobs, Transient
from touche_llm.llm.request import Request
from touche_llm.llm.vllm_common import BROKEN_TRIES, chat, finished, placed

CHAT_PATH = "/v1/chat/completions"
LOGPROBS_MISSING = "log-probabilities were requested and none came; use --no-logprobs where none can be had"


class _Alternative(msgspec.Struct, gc=False):
    token: str
    logprob: float


class _Token(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = None
    # Twenty for each token, and few tokens are those of labels.
    top_logprobs: msgspec.Raw = msgspec.Raw(b"[]")

    @property
    def spelled(self) -> builtins.bytes:
        """Its bytes, where vLLM tells them."""
        return builtins.bytes(self.bytes or ())

    @property
    def alternatives(self) -> list[tuple[str, float]]:
        """The most probable tokens at its place; raises Malformed."""
        return [(each.token, each.logprob) for each in decoded(self.top_logprobs, list[_Alternative])]


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Token] | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    # Only of a server with --enable-prompt-tokens-details.
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    def __post_init__(self) -> None:
        if self.cached_tokens is not None and self.cached_tokens > self.prompt_tokens:
            raise ValueError(f"{self.cached_tokens} of {self.prompt_tokens} prompt tokens came from the prefix cache")


class ChatReply(msgspec.Struct, gc=False):
    """A chat completion, of which only what is used is looked at."""

    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: _Usage = msgspec.field(default_factory=_Usage)
    system_fingerprint: str | None = None

    @property
    def lacks_logprobs(self) -> bool:
        """Whether it holds an answer, and no alternatives of any of its tokens."""
        choice = self.choices[0]
        if choice.finish_reason != "stop" or choice.message.refusal or not (choice.message.content or "").strip():
            return False
        sent = (choice.logprobs and choice.logprobs.content) or ()
        return all(bytes(token.top_logprobs) == b"[]" for token in sent)

    def check(self) -> None:
        """Look also at what is read where it is needed only; raises Malformed."""
        for choice in self.choices:
            for token in (choice.logprobs and choice.logprobs.content) or ():
                decoded(token.top_logprobs, list[_Alternative])


def chat_body(request: Request) -> dict[str, Any]:
    """The body with which a request is sent to `CHAT_PATH`."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": request.model,
        "messages": chat(request.messages),
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "structured_outputs": {"json": request.schema},
        "chat_template_kwargs": request.chat_template_kwargs,
    }
    if sampling.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    return body


def completion_of(reply: ChatReply, fields: Collection[str] = ()) -> Completion:
    """What a reply says, with the tokens that carry the values of `fields`; raises Transient for half a reply.

    Raises:
        MissingLogprobs: `fields` are to be read, and no log-probabilities came.
    """
    if not reply.choices:
        raise Transient("server_error", "the reply has no choices", most_tries=BROKEN_TRIES)
    choice = reply.choices[0]
    finish_reason = finished(choice.finish_reason)
    if fields and reply.lacks_logprobs:
        raise MissingLogprobs("server_error", LOGPROBS_MISSING, most_tries=BROKEN_TRIES)
    text = choice.message.content or ""
    sent = choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
    try:
        tokens = placed(sent, text, fields)
    except Malformed as error:
        raise Transient("server_error", f"alternatives of another form: {error}", most_tries=BROKEN_TRIES) from error
    return Completion(
        text=text,
        finish_reason=finish_reason,
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
        tokens=tokens,
        refusal=choice.message.refusal,
        reasoning=choice.message.reasoning or choice.message.reasoning_content,
        fingerprint=reply.system_fingerprint,
        cached_tokens=reply.usage.cached_tokens,
    )
