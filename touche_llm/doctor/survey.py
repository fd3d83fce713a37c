"""A server under test, and what was found out about it before the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from touche_llm.engines.chat import ChatReply, ChatServer, Dialect, read_completion, render_prompt
from touche_llm.engines.dialects import (
    PROBE_MESSAGES,
    PROBE_SCHEMA,
    EnforcedSchema,
    Logprobs,
    NoLogprobs,
    NoTokenCount,
    ProbeClient,
    Refusal,
    TokenCount,
    UnenforcedSchema,
)
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import Warn
from touche_llm.llm.protocol import Completion, EngineInfo
from touche_llm.llm.request import Message, Request
from touche_llm.llm.settings import SamplingConfig


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """A server, and the settings of the run that is to use it.

    Attributes:
        schemas: Schemas of the answers that the run requests, as far as they are known.
        warn: Receives what is missing if a run is possible.
        step: Called after each check.
    """

    server: ChatServer
    engine: EngineConfig
    sampling: SamplingConfig
    schemas: Sequence[Mapping[str, Any]] = ()
    warn: Warn = lambda _: None
    step: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found out about a server before the checks, and the way to send it more requests.

    Attributes:
        subject: Server, and the settings of the run.
        info: Description of the engine, without the tokens of its chat template.
        dialect: Dialect in which the server is sent requests.
        schema: Whether a schema was enforced.
        token_count: Whether the server counts the tokens of messages.
        logprobs: Log-probabilities of the server; None if the run needs none or no schema was
            enforced.
    """

    subject: ServerUnderTest
    info: EngineInfo
    dialect: Dialect
    schema: EnforcedSchema | UnenforcedSchema
    token_count: TokenCount | NoTokenCount
    logprobs: Logprobs | NoLogprobs | None = None

    @property
    def sampling(self) -> SamplingConfig:
        """Settings of the requests of the run."""
        return self.subject.sampling

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """Schemas of the answers that the run requests, as far as they are known."""
        return self.subject.schemas

    @property
    def top_logprobs(self) -> int:
        """Number of alternatives to request; 0 if log-probabilities cannot be read."""
        return self.logprobs.top_logprobs if isinstance(self.logprobs, Logprobs) else 0

    @property
    def is_renormalised(self) -> bool:
        """Whether only tokens that a schema allows have a probability."""
        return isinstance(self.logprobs, Logprobs) and self.logprobs.is_renormalised

    def build(
        self,
        messages: tuple[Message, ...] = PROBE_MESSAGES,
        schema: Mapping[str, Any] = PROBE_SCHEMA,
        top_logprobs: int = 0,
    ) -> Request:
        """Build a request of a check; that of the defaults allows one answer."""
        return self._client.build(messages, schema, top_logprobs)

    async def send(self, request: Request) -> ChatReply | Refusal:
        """Return the reply to a request, or its refusal.

        Raises:
            Rejected: The server refuses all requests.
            Transient: There is no reply, or it is malformed.
        """
        return await self._client.send(request, self.dialect)

    async def exchange(self, request: Request) -> ChatReply:
        """Return the reply to a request.

        Raises:
            Rejected: The server refuses the request.
            Transient: There is no reply, or it is malformed.
        """
        return await self.subject.server.exchange(request, self.dialect)

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request; raise as `exchange` does."""
        layout = request.layout if request.sampling.top_logprobs else None
        return read_completion(await self.exchange(request), layout)

    async def render(self, request: Request) -> str | None:
        """Return the text of a prompt as the server renders it; None if it does not show it.

        Raises:
            Rejected: The chat template refuses the messages.
            Transient: There is no reply.
        """
        if isinstance(self.token_count, NoTokenCount):
            return None
        return await render_prompt(self.token_count.counter, request)

    @property
    def _client(self) -> ProbeClient:
        return ProbeClient(self.subject.server, self.info.model, self.sampling)
