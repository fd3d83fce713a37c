"""Engine of batch exports and imports: answers from files of responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from touche_llm.data.io import MAX_LINE, open_regular, read_bounded_lines
from touche_llm.data.records import Malformed, decode_json
from touche_llm.errors import DataError, UsageError, to_printable
from touche_llm.llm.answers import FailedRequest
from touche_llm.llm.chat import CHAT_PATH, LOGPROBS_MISSING, ChatReply, read_completion
from touche_llm.llm.engine import Completion, CountingEngine, Rejected, Transient
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Message, Request
from touche_llm.llm.truncation import ChatTokenizer, Truncation

# Max responses of one import: each takes up to a kilobyte of memory.
MAX_REPLIES = 300_000
_MAX_REASON = 300
_MAX_KIND = 40
# Status codes that the request did not cause.
_NOT_FINAL = (401, 403, 404, 408, 429)


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct):
    # The key of a request has 64 characters; other ids are quoted completely up to this length.
    custom_id: Annotated[str, msgspec.Meta(max_length=256)]
    response: _Response | None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason why a response has no answer.

    Attributes:
        kind: Kind to count: `status_500`, `finish_abort`, `other_model` …
        reason: Message of the error.
        is_final: Whether the engine rejected the request itself, so that sending it again would not help.
    """

    kind: str
    reason: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """Place of a response, and its problem if it has no answer.

    Attributes:
        lacks_logprobs: Whether its answer has no log-probabilities, which is a problem if they were requested.
    """

    file: Path
    line: int
    offset: int
    problem: Problem | None
    lacks_logprobs: bool = False

    @property
    def quality(self) -> int:
        """Preference among several responses to a request: 0 without an answer, 2 with log-probabilities."""
        return 0 if self.problem is not None else 2 - self.lacks_logprobs

    def find_problem(self, request: Request) -> Problem | None:
        """Return why this is no answer to a request, or None."""
        if self.problem is None and self.lacks_logprobs and request.sampling.top_logprobs:
            return Problem("no_logprobs", LOGPROBS_MISSING)
        return self.problem

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Replies:
    """Responses by key of the request, and the places of repeated ones."""

    by_key: dict[str, Reply] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)

    def find(self, request: Request) -> ChatReply | Problem | None:
        """Return the answer to a request, or why its response has none; None if there is no response."""
        key = request.key
        reply = self.by_key.get(key)
        if reply is None:
            return None
        if (problem := reply.find_problem(request)) is not None:
            return problem
        with reply.file.open("rb") as stream:
            stream.seek(reply.offset)
            found_key, answer = _parse(reply.file, reply.line, stream.readline(MAX_LINE + 1))
        if found_key != key or isinstance(answer, Problem):
            raise DataError(f"{reply.place}: changed while it was read; import the file again")
        return answer


def read_replies(paths: Sequence[Path], model: str) -> Replies:
    """Read the responses of all files; of several to a request, the first answer counts, or else the first problem.

    An answer with log-probabilities is preferred to one without; answers of other models are problems.

    Raises:
        DataError: A file cannot be read, or a line is not a response.
    """
    replies = Replies()
    count = 0
    for path in paths:
        try:
            with open_regular(path) as stream:
                offset = 0
                for number, line in read_bounded_lines(stream, MAX_LINE):
                    count += 1
                    if count > MAX_REPLIES:
                        raise DataError(
                            f"{path}:{number}: more than {MAX_REPLIES:,} responses, the max of one import; "
                            "import the files one by one (batch export --shards writes several)"
                        )
                    key, answer = _parse(path, number, line)
                    problem = answer if isinstance(answer, Problem) else _find_mismatch(answer, model)
                    lacks = isinstance(answer, ChatReply) and answer.lacks_logprobs
                    reply = Reply(path, number, offset, problem, lacks)
                    before = replies.by_key.setdefault(key, reply)
                    if before.quality < reply.quality:
                        replies.by_key[key], reply = reply, before
                    if replies.by_key[key] is not reply:
                        replies.repeated.append(reply.place)
                    offset += len(line)
        except OSError as error:
            raise DataError(f"{path}: cannot read the responses: {error.strerror}") from error
    return replies


def _parse(path: Path, number: int, line: bytes) -> tuple[str, ChatReply | Problem]:
    """Return the key of a line's request, and its answer or the problem."""
    place = f"{path}:{number}"
    if len(line) > MAX_LINE:
        raise DataError(f"{place}: longer than {MAX_LINE:,} bytes; not a response of a batch file")
    try:
        found = decode_json(line, _Line)
        response = found.response
        if response is None or response.status_code != 200 or found.error is not None:
            return found.custom_id, _describe_error(response, found.error)
        reply = decode_json(response.body, ChatReply)
        reply.check()
    except Malformed as error:
        raise DataError(f"{place}: not a response of a batch file: {error}") from error
    try:
        read_completion(reply)
    except Transient as transient:
        kind = f"finish_{reply.choices[0].finish_reason}" if reply.choices else "no_choices"
        return found.custom_id, Problem(to_printable(kind)[:_MAX_KIND], transient.reason)
    return found.custom_id, reply


def _describe_error(response: _Response | None, error: Any) -> Problem:
    if response is None:
        return Problem("error", _extract_message(error))
    status, body = response.status_code, error if error is not None else decode_json(response.body, Any)
    # Errors that are strings are those of `vllm run-batch` itself, for instance for an unknown path.
    is_final = 400 <= status < 500 and status not in _NOT_FINAL and isinstance(body, dict)
    return Problem(f"status_{status}", f"HTTP {status} from {CHAT_PATH}: {_extract_message(body)}", is_final)


def _find_mismatch(reply: ChatReply, model: str) -> Problem | None:
    """Return why an answer does not fit its request, or None."""
    if reply.model != model:
        reason = f"the answer is of the model {reply.model!r:.120}, not of {model}: check --served-model-name"
        return Problem("other_model", to_printable(reason))
    return None


def _extract_message(error: Any) -> str:
    """Return the message of an error, shortened; its form differs between servers."""
    for name in ("error", "message"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    text = error if isinstance(error, str) else json.dumps(error)
    return to_printable(" ".join(text.split()))[:_MAX_REASON]


_ValueT = TypeVar("_ValueT")
# The status itself is in the reason.
_REJECTED_STATUS = 400


class _NoTokenizer(Exception):
    """Tokens have to be counted without a tokenizer."""


class BatchEngine:
    """Engine that answers from responses; a request without one is recorded, and the task that waits is cancelled.

    Attributes:
        pending: Requests without an answer.
        taken: Keys of the requests answered now.
        fingerprint: Fingerprint of the software, if the responses hold one.
    """

    def __init__(self, replies: Replies, tokenizer: ChatTokenizer | None, *, is_import: bool) -> None:
        """Initialise the engine; with `is_import`, counting without a tokenizer is left to the next export."""
        self._replies, self._tokenizer, self._is_import = replies, tokenizer, is_import
        self.pending: dict[str, Request] = {}
        self.taken: set[str] = set()
        self.fingerprint: str | None = None

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request; raise Rejected if the engine rejected it."""
        reply = self._replies.find(request)
        if isinstance(reply, Problem) and reply.is_final:
            raise Rejected(_REJECTED_STATUS, reply.reason)
        if not isinstance(reply, ChatReply):
            self.pending[request.key] = request
            raise asyncio.CancelledError
        self.taken.add(request.key)
        completion = read_completion(reply, request.layout if request.sampling.top_logprobs else None)
        self.fingerprint = self.fingerprint or completion.fingerprint
        return completion

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of prompt tokens of a chat, template included."""
        return self._measure(lambda tokenizer: tokenizer.count_tokens(messages))

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return the beginning of `text` with about this many tokens."""
        return self._measure(lambda tokenizer: tokenizer.truncate(text, max_tokens))

    def _measure(self, measure: Callable[[ChatTokenizer], _ValueT]) -> _ValueT:
        if self._tokenizer is not None:
            return measure(self._tokenizer)
        if self._is_import:
            raise asyncio.CancelledError
        raise _NoTokenizer


class BatchClient(ModelClient):
    """Model client whose errors name the request whose tokens cannot be counted."""

    async def _measure(
        self, request: Request, measure: Callable[[CountingEngine], Awaitable[Truncation]], **parameters: Any
    ) -> Truncation | FailedRequest:
        try:
            return await super()._measure(request, measure, **parameters)
        except _NoTokenizer as error:
            problem = "the tokens left for documents have to be counted"
            if "room" in parameters:
                problem = f"may have more than the {parameters['room']:,} prompt tokens available"
            raise UsageError(
                f"{request.origin.location}: {problem}; give a folder with the model's tokenizer (`engine.tokenizer`) "
                "or more room (`engine.context`; in comparisons `ranking.document_tokens`)"
            ) from error
