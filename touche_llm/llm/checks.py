"""What a server may lack, and a server under examination."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from touche_llm.errors import Warn
from touche_llm.llm.answers import AnswerModel, Layout, build_schema
from touche_llm.llm.chat import ChatReply, ChatServer, read_completion
from touche_llm.llm.engine import EngineInfo, Rejected
from touche_llm.llm.logprobs import LOGPROB_ROUNDING
from touche_llm.llm.request import Message, Origin, Request, Sampling, place_system_message
from touche_llm.llm.settings import EngineConfig, SamplingConfig

LABEL_TOKENS, SYSTEM_MESSAGE, OPEN_THOUGHT = "label tokens", "system message", "open thought"
PLAIN = "request plain grades with `sampling.logprobs: false`"
# What a server may lack: what it costs, and what helps.
PECULIARITIES = {
    # While thinking is off, a reasoning parser switches schemas off: https://github.com/vllm-project/vllm/issues/39130
    "schema": (
        "",
        "use a server that enforces `structured_outputs` or `response_format`, such as vLLM from 0.11 on "
        "without a reasoning parser (--reasoning-parser)",
    ),
    "logprobs": (
        "without them, grades are whole numbers, ties keep the order of the first stage, and stances are certain",
        f"use a server that sends them, or {PLAIN}",
    ),
    "reasoning": ("each answer takes many more tokens", "switch it off (`sampling.chat_template_kwargs`)"),
    "white space": (
        "a weak model can write it until its answer is cut off",
        'vLLM: --structured-outputs-config \'{"backend": "xgrammar", "disable_any_whitespace": true}\'; SGLang: '
        "--constrained-json-disable-any-whitespace",
    ),
    "tokens": ("", "give a folder with the model's tokenizer (`engine.tokenizer`)"),
    SYSTEM_MESSAGE: (
        "prompts give their instructions in one",
        "put them into the user message (`sampling.system_message: user`), or serve another chat template (vLLM, "
        "SGLang: --chat-template FILE; llama.cpp: --chat-template-file FILE)",
    ),
    LABEL_TOKENS: ("", f"use prompts of another `form`, such as `object`, or {PLAIN}"),
    OPEN_THOUGHT: (
        "the answer stands where the model has learnt to reason",
        "let it reason (`sampling.thinking`), or switch reasoning off, with a switch that its chat template knows "
        "(`sampling.chat_template_kwargs`) or another template",
    ),
    "thinking": (
        "",
        "set the delimiters of the model (`sampling.thinking.delimiters`), or serve it with a chat template that keeps "
        "its thought (vLLM: --chat-template FILE)",
    ),
    "prefix cache": (
        "instructions and topic are computed for each document",
        "vLLM: --enable-prefix-caching --enable-prompt-tokens-details; SGLang: --enable-cache-report, without "
        "--disable-radix-cache; llama.cpp: --cache-prompt",
    ),
    "determinism": (
        "without the answer cache a run is not repeatable",
        "vLLM: --dtype float32, or VLLM_BATCH_INVARIANT=1 in its environment; SGLang: --enable-deterministic-inference",
    ),
}
# No run is possible without these, unless a check says so.
_BLOCKING = ("schema", "logprobs", "tokens", SYSTEM_MESSAGE, LABEL_TOKENS, "thinking")


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """Result of one check of a server.

    Attributes:
        is_ok: Whether nothing is missing; None if unknown.
        value: Finding.
        cost: Consequence of the missing part.
        remedy: How to add it.
        is_blocking: Whether no run is possible without it.
    """

    name: str
    is_ok: bool | None
    value: str
    cost: str = ""
    remedy: str = ""
    is_blocking: bool = False

    def __str__(self) -> str:
        return "; ".join(part for part in (self.value, self.cost, self.remedy) if part)


def fail(name: str, value: str, remedy: str | None = None) -> ServerCheck:
    """Return a failed check, with the cost and the remedy of the peculiarity."""
    cost, known = PECULIARITIES[name]
    return ServerCheck(name, False, value, cost, known if remedy is None else remedy, name in _BLOCKING)


class _Word(AnswerModel):
    """Answer that no model gives unless the schema is enforced."""

    word: Literal["quokka-7351"]


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
        step: Called after each probe, with the name of the next.
        info: Description of the engine, complete after all probes.
        probe: Reply in which the schema was enforced, if there was one.
    """

    server: ChatServer
    engine: EngineConfig
    sampling: SamplingConfig
    schemas: Sequence[Mapping[str, Any]] = ()
    warn: Warn = lambda _: None
    step: Callable[[str], None] = lambda _: None
    checks: list[ServerCheck] = field(default_factory=list)
    info: EngineInfo = EngineInfo(model="", revision="", context=0, overhead=0, engine="")
    probe: ChatReply | None = None

    @property
    def top_logprobs(self) -> int:
        """Number of alternatives to request; 0 if the server sends none."""
        return 0 if self.is_blocked("logprobs") else self.sampling.top_logprobs

    @property
    def is_renormalised(self) -> bool:
        """Whether only tokens that a schema allows have a probability, by the reply with the one word allowed."""
        if self.probe is None or not self.top_logprobs:
            return False
        completion = read_completion(self.probe, PROBE_LAYOUT)
        first, _ = PROBE_LAYOUT.find_values(completion.text)["word"]
        inside = [token for token in completion.tokens if token.at > first] or completion.tokens
        for token in inside:
            rest = completion.text[token.at :]
            allowed = (logprob for text, logprob in token.top if rest.startswith(text) or text.startswith(rest))
            if sum(map(math.exp, allowed)) < 1.0 - LOGPROB_ROUNDING:
                return False
        return True

    def is_blocked(self, name: str = "") -> bool:
        """Return whether a check, or any if none is named, makes a run impossible."""
        return any(check.is_blocking for check in self.checks if not name or check.name == name)

    async def send(self, request: Request) -> ChatReply | str:
        """Return the reply to a request, or why the server refuses it; raise Rejected if it refuses all requests."""
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
        """Return a request of a check, which no cache stores; that of the defaults allows one answer."""
        if messages[0].role == "system":
            messages = place_system_message(messages, self.sampling.system_message)
        sampling, origin = Sampling(top_logprobs=top_logprobs), Origin("check of the server", 0, "", "", None)
        return Request(messages, schema, sampling, self.server.model, "", self.server.chat_template_kwargs, origin)
