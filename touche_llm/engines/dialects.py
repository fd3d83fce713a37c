"""Search for the dialect of a server: how it takes constraints of answers and counts tokens.

Each function here sends test requests and returns what their replies show. Whether that suffices
for a run is up to the checks in `doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from touche_llm.engines.chat import (
    CONSTRAINT_PARAMETERS,
    ChatReply,
    ChatServer,
    ConstraintParameter,
    Dialect,
    LlamaCppTokenCounter,
    VllmTokenCounter,
    read_completion,
)
from touche_llm.engines.tokenizers import ChatTokenizer
from touche_llm.errors import BrokenReply, MissingLogprobs, Rejected, Unusable
from touche_llm.llm.answer_schema import AnswerModel, Layout, build_schema
from touche_llm.llm.label_probabilities import TokenizedAnswer, check_logprobs, read_label, squeeze
from touche_llm.llm.protocol import Completion, TokenCounter
from touche_llm.llm.request import Message, Origin, Request, Sampling, place_system_message
from touche_llm.llm.settings import SamplingConfig
from touche_llm.text.quoting import quote

# Max probability of the tokens that the alternatives leave out, where one of these could be a
# label's.
MAX_UNSEEN = 0.05
# Alternatives of a server whose log-probabilities are those before the grammar, such as llama.cpp:
# with a model of 1.5 billion parameters, 20 showed five of six labels of a prompt and 100 all. A
# reply has 170 kB and takes as long.
_RAW_ALTERNATIVES = 200


class _Word(AnswerModel):
    """Answer that no model gives unless the schema is enforced."""

    word: Literal["quokka-7351"]


_PROBE_WORD = "quokka-7351"
PROBE_ANSWER = '{"word":"quokka-7351"}'
PROBE_MESSAGES = (Message("user", "Say hello."),)
PROBE_SCHEMA = build_schema(_Word)
_PROBE_LAYOUT = Layout.of_schema(PROBE_SCHEMA)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a test request by a server.

    Attributes:
        reason: Reason that the server gave.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ProbeClient:
    """Sender of test requests to a server, whose answers no cache stores.

    Attributes:
        server: Server to test.
        model: Model of the requests.
        sampling: Settings of the requests of the run.
    """

    server: ChatServer
    model: str
    sampling: SamplingConfig

    def build(
        self,
        messages: tuple[Message, ...] = PROBE_MESSAGES,
        schema: Mapping[str, Any] = PROBE_SCHEMA,
        top_logprobs: int = 0,
    ) -> Request:
        """Build a test request.

        Args:
            messages: Chat; its system message is placed as the run does.
            schema: Schema of the answer; the default one allows only `PROBE_ANSWER`.
            top_logprobs: Number of alternatives per token; 0 for no log-probabilities.
        """
        if messages[0].role == "system":
            messages = place_system_message(messages, self.sampling.system_message)
        return Request(
            messages=messages,
            schema=schema,
            sampling=Sampling(top_logprobs=top_logprobs),
            model=self.model,
            revision="",
            chat_template_kwargs=self.server.chat_template_kwargs,
            origin=Origin(
                prompt="check of the server",
                prompt_version=0,
                prompt_hash="",
                topic_id="",
                document_id=None,
            ),
        )

    async def send(self, request: Request, dialect: Dialect) -> ChatReply | Refusal:
        """Return the reply to a request, or its refusal.

        Raises:
            BrokenReply: The reply is malformed.
            Rejected: The server refuses all requests.
            Transient: There is no reply.
        """
        try:
            return await self.server.exchange(request, dialect)
        except Rejected as error:
            if error.is_fatal:
                raise
            return Refusal(str(error))


def make_vllm_dialect(server: ChatServer, model: str) -> Dialect:
    """Return the dialect of vLLM, with which the search begins."""
    return Dialect(
        constraint_parameter="structured_outputs",
        counter=VllmTokenCounter(server, model, server.chat_template_kwargs),
    )


@dataclass(frozen=True, slots=True)
class EnforcedSchema:
    """Proof that a server enforces a schema.

    Attributes:
        parameter: Parameter with which it does.
        reply: Reply with the only answer that the schema allows.
        logprobs_refusal: Refusal of the same request with log-probabilities; None if there was
            none.
    """

    parameter: ConstraintParameter
    reply: ChatReply
    logprobs_refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class UnenforcedSchema:
    """Result of a search for a constraint parameter that found none.

    Attributes:
        problems: What the replies were instead, each once.
        is_endless: Whether the model began the answer, but filled it with white space until it was
            cut off.
    """

    problems: tuple[str, ...]
    is_endless: bool = False


async def find_constraint_parameter(
    client: ProbeClient, dialect: Dialect
) -> EnforcedSchema | UnenforcedSchema:
    """Find the first parameter with which a server enforces a schema.

    The search also ends, without a parameter, at an endless answer: the schema is enforced, but it
    allows white space, with which the model fills the answer.

    Raises:
        BrokenReply: A reply is malformed.
        Rejected: The server refuses all requests.
        Transient: There is no reply.
    """
    problems: list[str] = []
    for parameter in CONSTRAINT_PARAMETERS:
        tried_dialect = replace(dialect, constraint_parameter=parameter)
        result = await _try_constraint_parameter(client, tried_dialect)
        if isinstance(result, EnforcedSchema):
            return result
        if result.is_endless:
            # Another parameter would not change what the schema allows.
            return result
        problems += result.problems

    different_problems = tuple(dict.fromkeys(problems))
    return UnenforcedSchema(different_problems)


async def _try_constraint_parameter(
    client: ProbeClient, dialect: Dialect
) -> EnforcedSchema | UnenforcedSchema:
    """Test whether a server enforces a schema with the constraint parameter of a dialect.

    The test request has log-probabilities if the run has. If the server refuses it, the server may
    only lack log-probabilities, so that the same request is sent without them.
    """
    logprobs_refusal: Refusal | None = None
    request = client.build(top_logprobs=client.sampling.top_logprobs)
    reply = await client.send(request, dialect)
    if isinstance(reply, Refusal) and client.sampling.logprobs:
        logprobs_refusal = reply
        request_without_logprobs = client.build()
        reply = await client.send(request_without_logprobs, dialect)

    if isinstance(reply, Refusal):
        return UnenforcedSchema((f"the server refused the request: {reply.reason}",))

    completion = read_completion(reply)
    if squeeze(completion.text) == PROBE_ANSWER:
        return EnforcedSchema(dialect.constraint_parameter, reply, logprobs_refusal)
    return _describe_unenforced(completion)


def _describe_unenforced(completion: Completion) -> UnenforcedSchema:
    """Return what a model wrote instead of `PROBE_ANSWER`, the only answer that the schema allows.

    If the answer was begun, but white space filled it until it was cut off, it is called endless.
    """
    text = squeeze(completion.text)
    is_beginning = PROBE_ANSWER.startswith(text) and text.startswith('{"word"')
    is_cut_off = completion.finish_reason == "length"
    if is_beginning and is_cut_off:
        return UnenforcedSchema(problems=(), is_endless=True)

    problem = f"the model answered {quote(completion.text, 80)!r}"
    if completion.reasoning:
        problem += " (its reasoning was not empty: switch thinking off)"
    return UnenforcedSchema((problem,))


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities that a server sends.

    Attributes:
        top_logprobs: Number of alternatives to request.
        is_renormalised: Whether only tokens that a schema allows have a probability.
    """

    top_logprobs: int
    is_renormalised: bool


@dataclass(frozen=True, slots=True)
class NoLogprobs:
    """Reason why no log-probabilities can be read.

    Attributes:
        problem: What the server does, as a predicate of its model.
        remedy: What helps; empty for what helps with any server.
    """

    problem: str
    remedy: str = ""


def read_logprobs(schema: EnforcedSchema, top_logprobs: int) -> Logprobs | NoLogprobs:
    """Return what the log-probabilities of the enforced answer are like, or why there are none.

    Args:
        schema: Reply to a request with log-probabilities, or their refusal.
        top_logprobs: Number of alternatives that were requested.
    """
    if schema.logprobs_refusal is not None:
        return NoLogprobs(f"refuses log-probabilities ({schema.logprobs_refusal.reason})")
    try:
        completion = read_completion(schema.reply, _PROBE_LAYOUT)
    except MissingLogprobs:
        return NoLogprobs("sends no log-probabilities")

    try:
        check_logprobs(completion.text, completion.tokens)
    except Unusable as error:
        return NoLogprobs(
            problem=f"sends impossible log-probabilities: {error.reason}",
            remedy=(
                "serve it with --logprobs-mode raw_logprobs, the default of vLLM, or set "
                "`sampling.logprobs: false`"
            ),
        )

    other_mass = _read_off_label_mass(completion)
    if other_mass is None:
        return NoLogprobs("sends log-probabilities that do not spell its answer")
    # The schema allows one word. If other words have a probability too, the server computed it
    # before it excluded them.
    is_renormalised = other_mass <= MAX_UNSEEN
    return Logprobs(top_logprobs, is_renormalised)


def _read_off_label_mass(completion: Completion) -> float | None:
    """Return the probability of other words than the one that the schema allows; None if unknown."""
    answer = TokenizedAnswer(completion.text, completion.tokens, _PROBE_LAYOUT)
    reading = read_label(answer, "word", labels=(_PROBE_WORD,), answered=_PROBE_WORD)
    return reading.off_label_mass


async def find_min_alternatives(client: ProbeClient, dialect: Dialect, logprobs: Logprobs) -> int:
    """Find how many alternatives to request so that all labels are among them.

    Returns:
        200 if tokens that a schema forbids have a probability too, unless the server refuses so
        many; otherwise 0.

    Raises:
        BrokenReply: A reply is malformed.
        Rejected: The server refuses all requests.
        Transient: There is no reply.
    """
    if logprobs.is_renormalised:
        return 0
    reply = await client.send(client.build(top_logprobs=_RAW_ALTERNATIVES), dialect)
    return 0 if isinstance(reply, Refusal) else _RAW_ALTERNATIVES


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Count of the tokens of `PROBE_MESSAGES`.

    Attributes:
        counter: Counter that counted them.
        prompt_tokens: Number of tokens, those of the chat template included.
    """

    counter: TokenCounter
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class NoTokenCount:
    """Reason why the tokens of messages cannot be counted.

    Attributes:
        problem: What the server replied to the first attempt.
    """

    problem: str


async def find_counter(client: ProbeClient, tokenizer: Path | None) -> TokenCount | NoTokenCount:
    """Find the first counter of tokens that works.

    Args:
        client: Client of the server.
        tokenizer: Folder of the model's tokenizer, which then counts; None to let the server count.

    Raises:
        Transient: There is no reply.
        UsageError: The folder has no tokenizer, or its chat template refuses the messages.
    """
    problems: list[str] = []
    for counter in _list_counters(client, tokenizer):
        try:
            # Messages without a system message, which some templates refuse.
            prompt_tokens = await counter.count_tokens(PROBE_MESSAGES)
        except (Rejected, BrokenReply) as error:
            problems.append(str(error))
            continue
        return TokenCount(counter, prompt_tokens)
    return NoTokenCount(problems[0])


def _list_counters(client: ProbeClient, tokenizer: Path | None) -> list[TokenCounter]:
    """Return the counters to try: that of a folder, or else those of servers."""
    server = client.server
    if tokenizer is not None:
        return [ChatTokenizer(tokenizer, server.chat_template_kwargs)]
    return [
        VllmTokenCounter(server, client.model, server.chat_template_kwargs),
        LlamaCppTokenCounter(server, client.model, server.chat_template_kwargs),
    ]
