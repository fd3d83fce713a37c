"""The replies of `vllm run-batch`, in files that need not fit into memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from touche_llm.errors import DataError, printable
from touche_llm.files import MAX_LINE, bounded_lines
from touche_llm.llm.chat_reply import ChatReply, completion_of
from touche_llm.llm.engine import Transient

_LONGEST_REASON = 300


class _Response(BaseModel):
    status_code: int = Field(strict=True)
    body: dict[str, Any] | None = None


class _Line(BaseModel):
    custom_id: str
    response: _Response | None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Where a reply is, and why it holds no answer, if so."""

    file: Path
    line: int
    offset: int
    problem: str | None

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Replies:
    """Replies by the key of their request, and the places of those that repeat another."""

    by_key: dict[str, Reply] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)

    def answer(self, key: str) -> ChatReply | None:
        """The reply to the request of this key, where it holds an answer."""
        reply = self.by_key.get(key)
        if reply is None or reply.problem is not None:
            return None
        with reply.file.open("rb") as stream:
            stream.seek(reply.offset)
            found_key, answer, _ = _parsed(reply.file, reply.line, stream.readline(MAX_LINE + 1))
        if found_key != key or answer is None:
            raise DataError(f"{reply.place}: changed while it was read; import the file again")
        return answer


def read_replies(paths: Sequence[Path]) -> Replies:
    """The replies of all files; of several to the same request the first that holds an answer stands, or the first.

    Raises:
        DataError: a file that cannot be read, or a line that is none of `vllm run-batch`; names file and line.
    """
    replies = Replies()
    for path in paths:
        try:
            with path.open("rb") as stream:
                offset = 0
                for number, line in bounded_lines(stream, MAX_LINE):
                    key, _, problem = _parsed(path, number, line)
                    reply = Reply(path, number, offset, problem)
                    before = replies.by_key.setdefault(key, reply)
                    if before is not reply and before.problem is not None and problem is None:
                        replies.by_key[key], reply = reply, before
                    if replies.by_key[key] is not reply:
                        replies.repeated.append(reply.place)
                    offset += len(line)
        except OSError as error:
            raise DataError(f"{path}: cannot read the replies: {error.strerror}") from error
    return replies


def _parsed(path: Path, number: int, line: bytes) -> tuple[str, ChatReply | None, str | None]:
    """The key of a line's request, and its answer or why it holds none."""
    place = f"{path}:{number}"
    if len(line) > MAX_LINE:
        raise DataError(f"{place}: longer than {MAX_LINE:,} bytes; no reply of vllm run-batch")
    try:
        found = _Line.model_validate_json(line)
        response = found.response
        if response is None or response.status_code != 200 or found.error is not None:
            status = "" if response is None else f"status {response.status_code}: "
            body = None if response is None else response.body
            return found.custom_id, None, status + _said(found.error if found.error is not None else body)
        reply = ChatReply.model_validate(response.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "line"
        raise DataError(f"{place}: no reply of vllm run-batch: {where}: {first['msg']}") from error
    try:
        completion_of(reply, logprobs=False)
    except Transient as transient:
        return found.custom_id, None, transient.reason
    return found.custom_id, reply, None


def _said(error: Any) -> str:
    """What an error says, shortened; its form is not the same everywhere."""
    for name in ("error", "message"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    text = error if isinstance(error, str) else json.dumps(error)
    return printable(" ".join(text.split()))[:_LONGEST_REASON]
