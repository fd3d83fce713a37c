"""Batch files: requests as their lines, the command of vLLM that answers them, and responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import orjson

from touche_llm.data.files import iterate_records
from touche_llm.data.records import JsonStruct, Malformed, decode_json
from touche_llm.engines.chat import CHAT_PATH, ChatReply, build_chat_body, read_completion
from touche_llm.engines.http import extract_message
from touche_llm.engines.managed import build_start_options, to_flags
from touche_llm.errors import BrokenReply, DataError, Rejected, Transient, to_printable
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import Request
from touche_llm.text.quoting import quote

_MAX_KIND = 40
# Status codes that the request did not cause.
_NOT_FINAL = (401, 403, 404, 408, 429)
# Of a rejected request; the status itself is in the reason.
_REJECTED_STATUS = 400


def request_line(request: Request) -> bytes:
    """Return a request as a line of a batch file."""
    line = {
        "custom_id": request.key,
        "method": "POST",
        "url": CHAT_PATH,
        "body": build_chat_body(request),
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def group_by_topic(requests: Iterable[Request]) -> list[Request]:
    """Return requests grouped by prompt and topic: a prefix cache reuses their common beginning."""
    groups: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        group = (request.origin.prompt, request.origin.topic_id)
        groups.setdefault(group, []).append(request)
    return list(chain.from_iterable(groups.values()))


def build_run_batch_command(
    requests: Path,
    responses: Path,
    model_name: str,
    context: int,
) -> list[str]:
    """Return the command of vLLM that answers a file of requests, with FOLDER for the model's folder."""
    files = ["-i", str(requests), "-o", str(responses)]
    options = {"served_model_name": model_name, "max_model_len": context}
    flags = to_flags(options | build_start_options({}))
    return ["vllm", "run-batch", *files, "--model", "FOLDER", *flags]


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Line(JsonStruct, frozen=True, forbid_unknown_fields=False):
    custom_id: str
    response: _Response | None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Response to a request, at a place (file and line): an answer, or a problem with its kind, as `status_500`."""

    place: str
    result: ChatReply | Transient | Rejected
    outcome: str = ""

    @property
    def is_answer(self) -> bool:
        """Whether it is an answer, not a problem."""
        return not isinstance(self.result, Exception)


def read_reply(replies: Mapping[str, Reply], request: Request) -> Completion:
    """Return the completion of a request.

    Raises:
        Rejected: The request was refused.
        Transient: There is no answer to the request, or it is incomplete.
    """
    reply = replies.get(request.key)
    if reply is None:
        raise _miss("there is no response")
    if isinstance(reply.result, Exception):
        raise reply.result
    layout = request.layout if request.sampling.top_logprobs else None
    return read_completion(reply.result, layout)


def read_replies(paths: Sequence[Path], model: str) -> dict[str, Reply]:
    """Read the responses of all files, by key of the request.

    Of several responses to a request, the first answer counts, or else the first problem.

    Raises:
        DataError: A file cannot be read, or a line is not a response.
    """
    replies: dict[str, Reply] = {}
    expected = "responses of a batch file"
    for path in paths:
        for number, line in enumerate(iterate_records(path, _Line, expected), start=1):
            place = f"{path}:{number}"
            try:
                reply = _read_line(place, line, model)
            except Malformed as error:
                raise DataError(f"{place}: not one of the {expected}: {error}") from error
            first_reply = replies.setdefault(line.custom_id, reply)
            if reply.is_answer and not first_reply.is_answer:
                replies[line.custom_id] = reply
    return replies


def _read_line(place: str, line: _Line, model: str) -> Reply:
    """Return the answer of a line, or why it has none.

    Args:
        place: File and line.
        line: Line of a file of responses.
        model: Name of the model whose answers count.

    Raises:
        Malformed: The line is not a response.
    """
    response = line.response
    if response is None:
        return Reply(place, _miss(to_printable(extract_message(line.error))), "error")
    if response.status_code != 200 or line.error is not None:
        result = _read_problem(line, response)
        return Reply(place, result, f"status_{response.status_code}")

    answer = decode_json(response.body, ChatReply)
    try:
        read_completion(answer)
    except Transient as transient:
        return Reply(place, _miss(transient.reason), _describe_ending(answer))
    if answer.model != model:
        other = quote(str(answer.model), 120)
        reason = f"the answer is of the model {other!r}, not of {model}"
        return Reply(place, _miss(to_printable(reason)), "other_model")
    return Reply(place, answer)


def _read_problem(line: _Line, response: _Response) -> Transient | Rejected:
    """Return why a request has no answer: it was refused, or something failed that can be repeated.

    Raises:
        Malformed: The body of the response is not JSON.
    """
    error = line.error
    if error is None:
        error = decode_json(response.body, Any)
    status = response.status_code
    reason = f"HTTP {status} from {CHAT_PATH}: {to_printable(extract_message(error))}"

    # Errors that are strings are those of `vllm run-batch` itself, for instance for an unknown
    # path.
    is_of_server = isinstance(error, dict)
    is_caused_by_request = 400 <= status < 500 and status not in _NOT_FINAL
    if is_of_server and is_caused_by_request:
        return Rejected(_REJECTED_STATUS, reason)
    return _miss(reason)


def _describe_ending(answer: ChatReply) -> str:
    """Return the kind of an incomplete answer, to count it."""
    try:
        choice = answer.select_choice()
    except BrokenReply:
        return "no_choice"
    return to_printable(f"finish_{choice.finish_reason}")[:_MAX_KIND]


def _miss(reason: str) -> Transient:
    """Return the failure of a request without an answer, which is sent once more."""
    return Transient("server_error", reason, max_tries=2)
