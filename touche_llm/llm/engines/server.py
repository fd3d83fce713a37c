"""Client of a vLLM server over its OpenAI-compatible interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import msgspec

from touche_llm.data.json_records import Count
from touche_llm.errors import EngineError
from touche_llm.llm.engines.base import Completion, EngineInfo, Rejected, Transient
from touche_llm.llm.engines.chat_reply import CHAT_PATH, ChatReply, build_chat_body, read_completion
from touche_llm.llm.engines.http_client import API_KEY_VARIABLE, HttpClient
from touche_llm.llm.engines.vllm_common import match_prefix, to_chat, verify_engine
from touche_llm.llm.request import Message, Request

_HINT = "is the vLLM server running there? Set its address with `engine.base_url`"


class _Model(msgspec.Struct):
    id: str
    max_model_len: Count | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _Tokens(msgspec.Struct):
    count: Count
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


class ChatServer(HttpClient):
    """Engine that sends requests to a vLLM server. Use as an asynchronous context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        request_timeout: float,
        chat_template_kwargs: Mapping[str, Any],
        restart: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Initialise the client; nothing is sent yet.

        Args:
            base_url: Address, with or without `/v1`.
            concurrency: As in `HttpClient`.
            request_timeout: As in `HttpClient`.
            restart: As in `HttpClient`.
            chat_template_kwargs: Switches of the chat template.
        """
        super().__init__(base_url, concurrency=concurrency, request_timeout=request_timeout, restart=restart)
        self.model = ""
        self._chat_template_kwargs = dict(chat_template_kwargs)
        # Name of the model in the first reply; it can be an alias of the requested name.
        self._reply_model: str | None = None
        # True for vLLM, unless a proxy assigns ids of its own; None before the first reply.
        self._repeats_ids: bool | None = None

    async def connect(self, model: str | None, revision: str, top_logprobs: int) -> EngineInfo:
        """Get the model and its context from the server, and verify that it can do what the run needs.

        Args:
            model: Name of the served model; None if the server serves exactly one.
            revision: The user's name for the version of the weights; part of the keys, since the server does not know
                it.
            top_logprobs: Number of alternatives per token that the run requests; 0 for none.

        Raises:
            EngineError: The server is unreachable, serves another model, does not enforce schemas, or sends no
                log-probabilities.
        """
        try:
            served = (await self.get("/v1/models", _ModelList)).data
            version = (await self.get("/version", _Version)).version
            chosen = self._choose(served, model)
            self.model = chosen.id
            if chosen.max_model_len is None:
                raise EngineError(f"{self.base_url}: does not report the context length of {chosen.id}; is it vLLM?")
            overhead = await self.count_tokens((Message("system", ""), Message("user", "")))
            await verify_engine(self, self.base_url, chosen.id, self._chat_template_kwargs, top_logprobs)
            self.is_monitored = True
        except Transient as error:
            raise EngineError(f"{self.base_url}: {error.reason}; {_HINT}") from error
        except Rejected as error:
            hint = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else _HINT
            raise EngineError(f"{self.base_url}: the server refused the start-up check: {error}; {hint}") from error
        return EngineInfo(
            model=chosen.id,
            revision=revision,
            context=chosen.max_model_len,
            overhead=overhead,
            engine=f"vllm {version}",
        )

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request.

        Raises:
            Transient, Rejected: The request failed.
            EngineDeath: The server has died.
            EngineError: Another model answers than before.
        """
        sent_id = uuid4().hex
        reply = await self.post(CHAT_PATH, build_chat_body(request) | {"request_id": sent_id}, ChatReply)
        self._check_id(reply.id, sent_id)
        self._check_model(reply.model)
        return read_completion(reply, request.logprob_fields)

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        body = {
            "model": self.model,
            "messages": to_chat(messages),
            "chat_template_kwargs": self._chat_template_kwargs,
        }
        return (await self.post("/tokenize", body, _Tokens)).count

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens."""
        body: dict[str, Any] = {"model": self.model, "prompt": text, "add_special_tokens": False}
        tokens = (await self.post("/tokenize", body, _Tokens)).tokens
        if len(tokens) <= max_tokens:
            return text
        decoded = (await self.post("/detokenize", {"model": self.model, "tokens": tokens[:max_tokens]}, _Text)).prompt
        return match_prefix(text, decoded)

    def _check_model(self, reply_model: str | None) -> None:
        """Raise EngineError if another model answers than in the first reply."""
        if reply_model is None:
            return  # replies need not name their model
        if self._reply_model is None:
            self._reply_model = reply_model
        if reply_model != self._reply_model:
            raise EngineError(
                f"{self.base_url}: {reply_model!r:.200} answers now, {self._reply_model!r:.200} answered before; its "
                f"answers are not stored under the name {self.model!r}; serve one model and run the same command "
                "again, or keep the new answers separate with `engine.revision`"
            )

    def _check_id(self, reply_id: str | None, sent_id: str) -> None:
        """Raise Transient for a reply to another request, if the server repeats the ids of requests."""
        is_same = reply_id is not None and reply_id.endswith(sent_id)
        if self._repeats_ids is None:
            self._repeats_ids = is_same
        if self._repeats_ids and not is_same:
            reason = f"the reply {reply_id!r:.100} belongs to another request; is a proxy out of step?"
            raise Transient("server_error", reason)

    def _choose(self, served: list[_Model], model: str | None) -> _Model:
        if model is None and len(served) == 1:
            return served[0]
        by_name = {choice.id: choice for choice in served}
        if model in by_name:
            return by_name[model]
        names = ", ".join(by_name) or "no model"
        wanted = "" if model is None else f", not {model!r}"
        raise EngineError(f"{self.base_url}: serves {names}{wanted}; choose one with `engine.model`")
