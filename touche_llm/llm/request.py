"""Requests to an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from touche_llm.llm.answer_key import hash_content
from touche_llm.llm.answer_schema import Layout
from touche_llm.text.sanitize import sanitize

# Opening and closing delimiters, with the line feeds that the models' own chat templates write.
DELIMITERS: Mapping[str, tuple[str, str]] = {
    "qwen3": ("<think>\n", "\n</think>\n\n"),
    "deepseek": ("<think>\n", "\n</think>\n\n"),
    "mistral": ("[THINK]", "[/THINK]"),
}


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model reasons before it answers: at most `budget` tokens, between delimiters."""

    budget: int
    opening: str
    closing: str
    temperature: float

    @property
    def max_tokens(self) -> int:
        """Upper bound of the tokens that a thought adds to a prompt: no token of a delimiter is shorter than a byte."""
        return self.budget + len((self.opening + self.closing).encode())

    def clean(self, completion: str) -> str:
        """Return the thought in a completion, without delimiters or anything that acts as chat control.

        Whether a completion begins with the opening delimiter depends on the chat template, and
        some servers leave the closing one.
        """
        thought, _, _ = completion.partition(self.closing.strip())
        return sanitize(thought.strip().removeprefix(self.opening.strip()).strip())

    def delimit(self, thought: str) -> str:
        """Return the message of a thought that has ended."""
        return f"{self.opening}{thought}{self.closing}"


# After an unusable answer, at most two more samples are requested; each has a seed of its own.
MAX_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Message:
    """Chat message."""

    role: str
    content: str


# The chat whose tokens are those that a template adds to a question.
EMPTY_CHAT = (Message("system", ""), Message("user", ""))
# Where a chat has the instructions of its system message: in a message of this role, or before the
# first user message.
SystemPlace = Literal["role", "user"]


def to_prompt(messages: tuple[Message, ...]) -> dict[str, Any]:
    """Return the fields of a request that hold its messages.

    A last message of the assistant is continued.
    """
    fields: dict[str, Any] = {
        "messages": [{"role": message.role, "content": message.content} for message in messages]
    }
    if messages and messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return fields


def place_system_message(messages: tuple[Message, ...], place: SystemPlace) -> tuple[Message, ...]:
    """Return a chat that begins with a system and a user message, with the instructions in their place."""
    if place == "role":
        return messages
    system, user, *rest = messages
    return (Message("user", f"{system.content}\n\n{user.content}".lstrip("\n")), *rest)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters.

    `top_logprobs` is the number of alternatives per token, 0 for no log-probabilities.

    Keys of answers have these fields in this order.
    """

    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = 64
    top_logprobs: int = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Prompt, topic and document of a request, for messages and logs; not part of its key.

    Attributes:
        document_id: Id of the document, ids of several separated by spaces, or None for a topic
            alone.
    """

    prompt: str
    prompt_version: int
    prompt_hash: str
    topic_id: str
    document_id: str | None

    @property
    def subject(self) -> str:
        """Topic and document in words."""
        topic = f"topic {self.topic_id}"
        if not self.document_id:
            return topic
        return f"{topic}, document {self.document_id}"

    @property
    def location(self) -> str:
        """Prompt, topic and document in words: the location of an error."""
        return f"prompt {self.prompt}, {self.subject}"


@dataclass(frozen=True)
class Request:
    """Request to a model, with everything that can change the answer.

    Attributes:
        revision: The user's name for the version of the weights.
        origin: Prompt, topic and document.
        sample: Index of the sample; above 0 after unusable answers.
        repeat: Index of the repetition; above 0 where one answer is requested several times on
            purpose.
        stop: Texts at which the completion ends, such as the closing delimiter of reasoning.
        thinking: How the model reasons before this answer; not part of the key, since the messages
            of the request that is sent hold the thought.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, Any]
    sampling: Sampling
    model: str
    revision: str
    chat_template_kwargs: Mapping[str, Any]
    origin: Origin
    sample: int = 0
    repeat: int = 0
    stop: tuple[str, ...] = ()
    thinking: Thinking | None = None

    @cached_property
    def key(self) -> str:
        """SHA-256 in hexadecimal over the canonical JSON of everything that can change the answer.

        Number of retries, addresses, concurrency, `origin` and `thinking` are not part of it. The
        contract is in docs/reference/answer-key.md.
        """
        # These parts came later, and are left out where they are not used, so that earlier keys
        # stay valid.
        later_parts: dict[str, Any] = {}
        if self.repeat:
            later_parts["repeat"] = self.repeat
        if self.stop:
            later_parts["stop"] = self.stop
        return self.make_key(
            "answer",
            schema=self.schema,
            sampling=astuple(self.sampling),
            sample=self.sample,
            **later_parts,
        )

    def make_key(self, kind: str, **parts: Any) -> str:
        """Return the key of a result that depends on the prompt, as its model sees it, and on `parts`."""
        return hash_content(
            kind,
            messages=[[message.role, message.content] for message in self.messages],
            model=self.model,
            revision=self.revision,
            chat_template_kwargs=self.chat_template_kwargs,
            **parts,
        )

    @cached_property
    def layout(self) -> Layout:
        """Layout of the answer, by its schema."""
        return Layout.of_schema(self.schema)

    @property
    def max_tokens(self) -> int:
        """Max tokens that the model adds to the prompt: the answer, and the reasoning before it."""
        if self.thinking is None:
            return self.sampling.max_tokens
        return self.sampling.max_tokens + self.thinking.max_tokens

    def resample(self, sample: int, temperature: float) -> Request:
        """Return the request for another sample, drawn at `temperature` with a seed of its own."""
        sampling = replace(self.sampling, temperature=temperature, seed=self.sampling.seed + sample)
        return replace(self, sampling=sampling, sample=sample)


def request_thought(request: Request) -> Request:
    """Return the request for the reasoning before an answer: free text that ends at the closing delimiter."""
    thinking = request.thinking
    assert thinking is not None
    return replace(
        request,
        schema={},
        sampling=Sampling(
            temperature=thinking.temperature,
            seed=request.sampling.seed,
            max_tokens=thinking.budget,
            top_logprobs=0,
        ),
        stop=(thinking.closing.strip(),),
        thinking=None,
    )


def continue_thought(request: Request, thought: str) -> Request:
    """Return the request for the answer after a thought: the same messages, and the thought, which it continues."""
    thinking = request.thinking
    assert thinking is not None
    return replace(
        request,
        messages=(*request.messages, Message("assistant", thinking.delimit(thought))),
        thinking=None,
    )
