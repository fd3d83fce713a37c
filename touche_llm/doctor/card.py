"""A server under examination, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from touche_llm.engines.chat import ChatReply, ChatServer
from touche_llm.engines.identification import ServerCheck
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import Rejected, Warn
from touche_llm.llm.answer_schema import AnswerModel, Layout, build_schema
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.request import Message, Origin, Request, Sampling, place_system_message
from touche_llm.llm.settings import SamplingConfig

# Max probability of the tokens that the alternatives leave out, where one of these could be a
# label's.
MAX_UNSEEN = 0.05


class _Word(AnswerModel):
    """Answer that no model gives unless the schema is enforced."""

    word: Literal["quokka-7351"]


PROBE_WORD = "quokka-7351"
PROBE_ANSWER = '{"word":"quokka-7351"}'
PROBE_MESSAGES = (Message("user", "Say hello."),)
_PROBE_SCHEMA = build_schema(_Word)
PROBE_LAYOUT = Layout.of_schema(_PROBE_SCHEMA)


@dataclass(slots=True)
class Survey:
    """Server under examination, and what was found so far.

    Attributes:
        server: The server; the probes make it send requests in the way that works.
        schemas: Schemas of the answers that the run requests, as far as they are known.
        warn: Receives what is missing if a run is possible.
        step: Called after each probe.
        info: Description of the engine, complete after all probes.
        probe: Reply in which the schema was enforced, if there was one.
        top_logprobs: Number of alternatives to request; 0 if the server sends none.
        is_renormalised: Whether only tokens that a schema allows have a probability.
    """

    server: ChatServer
    engine: EngineConfig
    sampling: SamplingConfig
    schemas: Sequence[Mapping[str, Any]] = ()
    warn: Warn = lambda _: None
    step: Callable[[], None] = lambda: None
    checks: list[ServerCheck] = field(default_factory=list)
    info: EngineInfo = EngineInfo(model="", revision="", context=0, overhead=0, engine="")
    probe: ChatReply | None = None
    top_logprobs: int = 0
    is_renormalised: bool = False

    def is_blocked(self, name: str = "") -> bool:
        """Return whether a check, or any if none is named, makes a run impossible."""
        return any(check.is_blocking for check in self.checks if name in ("", check.name))

    async def send(self, request: Request) -> ChatReply | str:
        """Return the reply to a request, or why the server refuses it.

        Raise Rejected if it refuses all requests.
        """
        try:
            return await self.server.exchange(request)
        except Rejected as error:
            if error.is_fatal:
                raise
            return str(error)

    def build(
        self,
        messages: tuple[Message, ...] = PROBE_MESSAGES,
        schema: Mapping[str, Any] = _PROBE_SCHEMA,
        top_logprobs: int = 0,
    ) -> Request:
        """Return a request of a check, which no cache stores.

        That of the defaults allows one answer.
        """
        if messages[0].role == "system":
            messages = place_system_message(messages, self.sampling.system_message)
        sampling, origin = (
            Sampling(top_logprobs=top_logprobs),
            Origin("check of the server", 0, "", "", None),
        )
        return Request(
            messages,
            schema,
            sampling,
            self.server.model,
            "",
            self.server.chat_template_kwargs,
            origin,
        )
