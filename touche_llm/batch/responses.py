"""Files of responses, which answer the requests of an import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from touche_llm.data.io import MAX_LINE, open_regular, read_bounded_lines
from touche_llm.data.records import Malformed, decode_json
from touche_llm.errors import DataError, to_printable
from touche_llm.llm.chat import CHAT_PATH, LOGPROBS_MISSING, ChatReply, read_completion
from touche_llm.llm.engine import Completion, Rejected, Transient
from touche_llm.llm.request import Request

# Max responses of one import: each takes up to a kilobyte of memory.
MAX_REPLIES = 300_000
_MAX_REASON = 300
_MAX_KIND = 40
# Status codes that the request did not cause.
_NOT_FINAL = (401, 403, 404, 408, 429)
# Of a rejected request; the status itself is in the reason.
_REJECTED_STATUS = 400


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
    """Place of a response, and its problem if it has no answer."""

    file: Path
    line: int
    offset: int
    problem: Problem | None

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Replies:
    """Responses by key of the request, which answer the requests of a `RecordingEngine`.

    Attributes:
        repeated: Places of second responses to a request.
        problems: Why requests to which there is a response have no answer, by key.
        rejected: Keys of those that the engine rejected.
        fingerprint: Fingerprint of the software, if the responses hold one.
    """

    by_key: dict[str, Reply] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    problems: dict[str, Problem] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    fingerprint: str | None = None

    def __call__(self, request: Request) -> Completion | None:
        """Return the completion of a request, None if there is none; raise Rejected if the engine rejected it."""
        reply = self.by_key.get(request.key)
        if reply is None:
            return None
        answer = reply.problem or self._read(reply, request.key)
        if isinstance(answer, ChatReply) and answer.lacks_logprobs and request.sampling.top_logprobs:
            answer = Problem("no_logprobs", LOGPROBS_MISSING)
        if isinstance(answer, Problem):
            self.problems[request.key] = answer
            if answer.is_final:
                self.rejected.add(request.key)
                raise Rejected(_REJECTED_STATUS, answer.reason)
            return None
        completion = read_completion(answer, request.layout if request.sampling.top_logprobs else None)
        self.fingerprint = self.fingerprint or completion.fingerprint
        return completion

    def _read(self, reply: Reply, key: str) -> ChatReply:
        with reply.file.open("rb") as stream:
            stream.seek(reply.offset)
            found_key, answer = _parse(reply.file, reply.line, stream.readline(MAX_LINE + 1))
        if found_key != key or isinstance(answer, Problem):
            raise DataError(f"{reply.place}: changed while it was read; import the file again")
        return answer


def read_replies(paths: Sequence[Path], model: str) -> Replies:
    """Read the responses of all files; of several to a request, the first answer counts, or else the first problem.

    Answers of other models are problems.

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
                            "import the files one by one"
                        )
                    key, answer = _parse(path, number, line)
                    problem = answer if isinstance(answer, Problem) else _find_mismatch(answer, model)
                    reply = Reply(path, number, offset, problem)
                    before = replies.by_key.setdefault(key, reply)
                    if before.problem is not None and problem is None:
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
