"""What a chat request to vLLM holds and what its reply says: of a server, and line by line of a batch file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, Field, model_validator

from touche_llm.llm.engine import Completion, Transient
from touche_llm.llm.request import Request
from touche_llm.llm.vllm_common import BROKEN_TRIES, SentToken, chat, finished, placed

CHAT_PATH = "/v1/chat/completions"


class _Logprobs(BaseModel):
    content: list[SentToken] | None = None


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(BaseModel):
    cached_tokens: int | None = Field(default=None, ge=0, strict=True)


class _Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    # Only of a server with --enable-prompt-tokens-details.
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> _Usage:
        if self.cached_tokens is not None and self.cached_tokens > self.prompt_tokens:
            raise ValueError(f"{self.cached_tokens} of {self.prompt_tokens} prompt tokens came from the prefix cache")
        return self


class ChatReply(BaseModel):
    """A chat completion, of which only what is used is looked at."""

    model: str | None = None
    choices: list[_Choice]
    usage: _Usage = _Usage()
    system_fingerprint: str | None = None


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
    """What a reply says, with the tokens that carry the values of `fields`; raises Transient for half a reply."""
    if not reply.choices:
        raise Transient("server_error", "the reply has no choices", most_tries=BROKEN_TRIES)
    choice = reply.choices[0]
    finish_reason = finished(choice.finish_reason)
    text = choice.message.content or ""
    sent = choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
    return Completion(
        text=text,
        finish_reason=finish_reason,
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
        tokens=placed(sent, text, fields),
        refusal=choice.message.refusal,
        reasoning=choice.message.reasoning or choice.message.reasoning_content,
        fingerprint=reply.system_fingerprint,
        cached_tokens=reply.usage.cached_tokens,
    )
