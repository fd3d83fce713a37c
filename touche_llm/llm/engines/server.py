"""Engine on a server with an OpenAI-compatible interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from touche_llm.llm.engines.base import BrokenReply, Completion, Rejected, Transient
from touche_llm.llm.engines.chat_reply import CHAT_PATH, ChatReply, Delivery, build_chat_body, read_completion
from touche_llm.llm.engines.http_client import HttpClient
from touche_llm.llm.engines.token_counters import TokenCounter, VllmTokenCounter
from touche_llm.llm.logprobs import trim_alternatives
from touche_llm.llm.request import Message, Origin, Request, Sampling, SystemPlace, place_system_message


class ChatServer(HttpClient):
    """Engine that sends requests to a server. Use as an asynchronous context manager, and see `startup.connect`.

    Attributes:
        model: Name of the served model.
        chat_template_kwargs: Switches of the chat template.
        delivery: Field with which the server enforces a schema.
        alternatives: Number of alternatives to request in place of fewer, if the server needs more to show the labels.
        system_message: Where checks have the instructions.
        counter: Counter of prompt tokens.
    """

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        chat_template_kwargs: Mapping[str, Any],
        restart: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Initialise the client like an `HttpClient`; nothing is sent yet."""
        super().__init__(base_url, concurrency=concurrency, request_timeout=request_timeout, restart=restart)
        self.chat_template_kwargs = dict(chat_template_kwargs)
        self.delivery = Delivery.STRUCTURED_OUTPUTS
        self.alternatives = 0
        self.system_message: SystemPlace = "role"
        self.choose("")
        # True for vLLM, unless a proxy assigns ids of its own; None before the first reply.
        self._repeats_ids: bool | None = None

    def choose(self, model: str) -> None:
        """Send requests to this model, and count tokens with the server."""
        self.model = model
        self.counter: TokenCounter = VllmTokenCounter(self, model, self.chat_template_kwargs)

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request.

        Raises:
            Transient, Rejected: The request failed.
            EngineDeath: The server has died.
            EngineError: Another model answers than before.
        """
        completion = read_completion(
            await self.exchange(request), request.layout if request.sampling.top_logprobs else None
        )
        if self.alternatives and completion.tokens:
            tokens = trim_alternatives(completion.tokens, request.schema, request.sampling.top_logprobs)
            return replace(completion, tokens=tokens)
        return completion

    async def exchange(self, request: Request) -> ChatReply:
        """Return the unprocessed reply to a request; raise as `complete` does."""
        sent_id = uuid4().hex
        body = build_chat_body(request, self.delivery) | {"request_id": sent_id}
        if request.sampling.top_logprobs:
            body["top_logprobs"] = max(request.sampling.top_logprobs, self.alternatives)
        reply = await self.post(CHAT_PATH, body, ChatReply)
        self._check_id(reply.id, sent_id)
        self.check_model(reply.model, self.model)
        return reply

    def build_check(self, messages: tuple[Message, ...], schema: Mapping[str, Any], sampling: Sampling) -> Request:
        """Return a request of a check of this server, which no cache stores."""
        origin = Origin("check of the server", 0, "", "", None)
        if messages[0].role == "system":
            messages = place_system_message(messages, self.system_message)
        return Request(messages, schema, sampling, self.model, "", self.chat_template_kwargs, origin)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        return await self.counter.count_tokens(messages)

    async def render(self, messages: tuple[Message, ...], chat_template_kwargs: Mapping[str, Any]) -> str | None:
        """Return the text of a prompt as the server renders it; None if the server does not show it."""
        try:
            return await self.counter.render(messages, chat_template_kwargs)
        except BrokenReply:
            return None
        except Rejected as error:
            if error.status == 404:
                return None
            raise

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens."""
        return await self.counter.truncate(text, max_tokens)

    def _check_id(self, reply_id: str | None, sent_id: str) -> None:
        """Raise Transient for a reply to another request, if the server repeats the ids of requests."""
        is_same = reply_id is not None and reply_id.endswith(sent_id)
        if self._repeats_ids is None:
            self._repeats_ids = is_same
        if self._repeats_ids and not is_same:
            reason = f"the reply {reply_id!r:.100} belongs to another request; is a proxy out of step?"
            raise Transient("server_error", reason)
