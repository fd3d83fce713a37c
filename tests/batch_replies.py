"""Replies to requests of a batch file, in the form in which `vllm run-batch` 0.32 writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from tests.scripted_engine import Script, answer
from touche_llm.llm.answer import Token
from touche_llm.llm.request import Request

Line = dict[str, Any]


def body(
    text: str,
    tokens: Iterable[Token] | None = None,
    finish_reason: str = "stop",
    model: str = "scripted",
    **message: Any,
) -> dict[str, Any]:
    """A chat completion.

    One token a character, as that of the fake server, where no tokens are given.
    """
    if tokens is None:
        tokens = [Token(at=0, token=each, logprob=0.0, top=[(each, 0.0)]) for each in text]
    content = [
        {
            **_alternative(token.token, token.logprob),
            "top_logprobs": [_alternative(name, logprob) for name, logprob in token.top],
        }
        for token in tokens
    ]
    choice = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "tool_calls": [],
            **message,
        },
        "logprobs": {"content": content},
        "finish_reason": finish_reason,
        "stop_reason": None,
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": 100,
            "total_tokens": 109,
            "completion_tokens": 9,
            "prompt_tokens_details": None,
        },
        "system_fingerprint": "vllm-0.32.0-01234567",
    }


def _alternative(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def replied(key: str, answer: dict[str, Any]) -> Line:
    """A line with an answer."""
    response = {"status_code": 200, "request_id": "vllm-batch-1", "body": answer}
    return {"id": "vllm-1", "custom_id": key, "response": response, "error": None}


def refused(key: str, status: int = 400, message: str = "too long") -> Line:
    """A line with an error."""
    error = {
        "error": {"message": message, "type": "BadRequestError", "param": None, "code": status}
    }
    response = {"status_code": status, "request_id": "vllm-batch-1", "body": None}
    return {"id": "vllm-1", "custom_id": key, "response": response, "error": error}


def answers(requests: Iterable[Request], script: Script) -> list[Line]:
    """What a model would reply that says what the script says."""
    return [
        replied(request.key, body(*answer(script(request), request.schema))) for request in requests
    ]


def write(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """Write lines as `vllm run-batch` does."""
    path.write_bytes(
        b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
    )
    return path


def read(path: Path) -> list[Line]:
    """The lines of a file of requests."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


Reply = Callable[[list[Request]], list[Line]]
