"""A server under examination, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from touche_llm.engines.chat import ChatReply, ChatServer
from touche_llm.engines.identification import ServerCheck
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import Warn
from touche_llm.llm.answer_schema import AnswerModel, Layout, build_schema
from touche_llm.llm.protocol import EngineInfo, Rejected
from touche_llm.llm.request import Message, Origin, Request, Sampling, place_system_message
from touche_llm.llm.settings import SamplingConfig

# What a server may lack, and what helps; docs/reference/doctor.md has what each costs.
REMEDIES = {
    # While thinking is off, a reasoning parser switches schemas off:
    # https://github.com/vllm-project/vllm/issues/39130
    "schema": "use a server that enforces `structured_outputs` or `response_format`, such as vLLM from 0.11 on without "
    "a reasoning parser (--reasoning-parser)",
    "logprobs": "use a server that sends them, or request plain grades with `sampling.logprobs: false`: whole numbers, "
    "whose ties keep the order of the first stage",
    "reasoning": "each answer takes many more tokens; switch it off (`sampling.chat_template_kwargs`)",
    "white space": "a weak model can write it until its answer is cut off; vLLM: --structured-outputs-config "
    '\'{"backend": "xgrammar", "disable_any_whitespace": true}\'; SGLang: --constrained-json-disable-any-whitespace',
    "tokens": "give a folder with the tokenizer of this very model (`engine.tokenizer`)",
    "system message": "put the instructions into the user message (`sampling.system_message: user`), or serve another "
    "chat template (vLLM, SGLang: --chat-template FILE; llama.cpp: --chat-template-file FILE)",
    "label tokens": "use prompts of another `form`, such as `object`, or request plain grades with "
    "`sampling.logprobs: false`",
    "open thought": "let it reason (`sampling.thinking`), or switch reasoning off, with a switch of its chat template "
    "(`sampling.chat_template_kwargs`) or another template",
    "thinking": "set the delimiters of the model (`sampling.thinking.delimiters`), or serve it with a chat template "
    "that keeps its thought (vLLM: --chat-template FILE)",
    "prefix cache": "instructions and topic are computed for each document; vLLM: --enable-prefix-caching "
    "--enable-prompt-tokens-details; SGLang: --enable-cache-report, without --disable-radix-cache; llama.cpp: "
    "--cache-prompt",
    "determinism": "without the answer cache a run is not repeatable; vLLM: --dtype float32, or VLLM_BATCH_INVARIANT=1 "
    "in its environment; SGLang: --enable-deterministic-inference",
}
# Max probability of the tokens that the alternatives leave out, where one of these could be a
# label's.
MAX_UNSEEN = 0.05
# No run is possible without these, unless a check says so.
_BLOCKING = ("schema", "logprobs", "tokens", "system message", "label tokens", "thinking")


def fail(name: str, value: str, remedy: str = "") -> ServerCheck:
    """Return a failed check, with the remedy for what is missing by default."""
    return ServerCheck(name, False, value, remedy or REMEDIES[name], name in _BLOCKING)


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
