"""Batch files: requests as their lines, responses, the programs that answer them, and the engine that uses these."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from touche_llm.data.io import iterate_records, open_scratch
from touche_llm.data.records import JsonStruct, Malformed, decode_json
from touche_llm.errors import DataError, EngineError, UsageError, to_printable
from touche_llm.llm.chat import CHAT_PATH, ChatReply, build_chat_body, read_completion
from touche_llm.llm.engine import Completion, Counter, Rejected, Transient
from touche_llm.llm.http import extract_message
from touche_llm.llm.managed import build_start_options, find_vllm, run_guarded, to_flags
from touche_llm.llm.request import Request
from touche_llm.llm.settings import EngineConfig, Runner, check_model_folder

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
    places: dict[tuple[str, str], int] = {}
    return sorted(
        requests,
        key=lambda each: places.setdefault((each.origin.prompt, each.origin.topic_id), len(places)),
    )


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


def read_reply(replies: Mapping[str, Reply], request: Request) -> Completion:
    """Return the completion of a request; raise Transient or Rejected if there is none."""
    reply = replies.get(request.key)
    result = _miss("there is no response") if reply is None else reply.result
    if isinstance(result, Exception):
        raise result
    return read_completion(result, request.layout if request.sampling.top_logprobs else None)


def read_replies(paths: Sequence[Path], model: str) -> dict[str, Reply]:
    """Read the responses of all files, by key of the request.

    Of several responses to a request, the first answer counts, or else the first problem.

    Raises:
        DataError: A file cannot be read, or a line is not a response.
    """
    replies: dict[str, Reply] = {}
    what = "responses of a batch file"
    for path in paths:
        for number, line in enumerate(iterate_records(path, _Line, what), 1):
            try:
                reply = _read_line(f"{path}:{number}", line, model)
            except Malformed as error:
                raise DataError(f"{path}:{number}: not one of the {what}: {error}") from error
            before = replies.setdefault(line.custom_id, reply)
            if isinstance(before.result, Exception) and not isinstance(reply.result, Exception):
                replies[line.custom_id] = reply
    return replies


def _read_line(place: str, line: _Line, model: str) -> Reply:
    """Return the answer of a line, or why it has none, with the kind to count.

    That of another model is none.
    """
    response = line.response
    if response is None:
        return Reply(place, _miss(to_printable(extract_message(line.error))), "error")
    status = response.status_code
    if status != 200 or line.error is not None:
        body = line.error if line.error is not None else decode_json(response.body, Any)
        reason = f"HTTP {status} from {CHAT_PATH}: {to_printable(extract_message(body))}"
        # Errors that are strings are those of `vllm run-batch` itself, for instance for an unknown
        # path.
        is_final = 400 <= status < 500 and status not in _NOT_FINAL and isinstance(body, dict)
        return Reply(
            place,
            Rejected(_REJECTED_STATUS, reason) if is_final else _miss(reason),
            f"status_{status}",
        )
    answer = decode_json(response.body, ChatReply)
    try:
        read_completion(answer)
    except Transient as transient:
        kind = f"finish_{answer.choices[0].finish_reason}" if answer.choices else "no_choices"
        return Reply(place, _miss(transient.reason), to_printable(kind)[:_MAX_KIND])
    if answer.model != model:
        reason = f"the answer is of the model {answer.model!r:.120}, not of {model}"
        return Reply(place, _miss(to_printable(reason)), "other_model")
    return Reply(place, answer)


def _miss(reason: str) -> Transient:
    # A request without an answer is sent once more.
    return Transient("server_error", reason, max_tries=2)


TITLES = {Runner.VLLM: "vllm run-batch", Runner.RAY: "the Ray Data job"}
# Options of `ray.data.llm.vLLMEngineProcessorConfig`; all others are vLLM's.
_RAY_OPTIONS = (
    *(
        "accelerator_type",
        "batch_size",
        "concurrency",
        "max_concurrent_batches",
        "max_pending_requests",
    ),
    *("max_tasks_in_flight_per_actor", "placement_group_config", "runtime_env"),
)
# A round begins when no request has come for so many seconds; longer than the wait before a retry.
_QUIET_SECONDS = 1.0


class _Body(msgspec.Struct):
    model: str


class _Request(JsonStruct, frozen=True, forbid_unknown_fields=False):
    custom_id: str
    url: Literal["/v1/chat/completions"]
    body: _Body


async def answer_file(engine: EngineConfig, requests: Path, responses: Path, log: Path) -> int:
    """Answer a file of requests with the engine's runner; write all responses or none.

    Return the number of requests.

    The requests are chat requests in the format of OpenAI's batch files, to one model, as `batch
    export` writes them; the model of the engine's folder answers them whatever its name there. The
    runner's output is appended to `log`.
    """
    model_names = [
        line.body.model
        for line in iterate_records(requests, _Request, "chat requests of `batch export`")
    ]
    model_count = len(set(model_names))
    if model_count != 1:
        expected = "expected requests for one, as `touche-llm batch export` writes them"
        raise DataError(f"{requests}: requests for {model_count} models; {expected}")

    folder = check_model_folder(engine.model).absolute()
    with open_scratch(responses) as place:
        written = place / responses.name
        if engine.runner is Runner.VLLM:
            command = _build_vllm_command(engine, requests, written, folder, model_names[0])
        else:
            command = _build_ray_command(engine, requests, written, folder)

        async with run_guarded(command, log) as (process, end_of_log):
            code = await asyncio.to_thread(process.wait)
        if code != 0 or not written.exists():
            title = TITLES[engine.runner]
            raise EngineError(f"{requests}: {title} exited with code {code}; {end_of_log()}")
        written.replace(responses)
    return len(model_names)


def _build_vllm_command(
    engine: EngineConfig,
    requests: Path,
    responses: Path,
    folder: Path,
    model_name: str,
) -> list[str]:
    files = ["-i", str(requests), "-o", str(responses)]
    options = {"served_model_name": model_name, "max_model_len": engine.context}
    options |= build_start_options(engine.options)
    return [find_vllm(), "run-batch", *files, "--model", str(folder), *to_flags(options)]


def _build_ray_command(
    engine: EngineConfig,
    requests: Path,
    responses: Path,
    folder: Path,
) -> list[str]:
    """Return the command of the Ray Data job.

    Raises:
        UsageError: The context is not set.
    """
    if engine.context is None:
        problem = "not set, and the Ray Data job needs the context in tokens"
        raise UsageError(f"engine.context: {problem}")

    ray_options: dict[str, Any] = {}
    vllm_options: dict[str, Any] = {}
    for name, value in engine.options.items():
        if name in _RAY_OPTIONS:
            ray_options[name] = value
        else:
            vllm_options[name] = value

    settings = {
        "folder": str(folder),
        "vllm": build_start_options(vllm_options) | {"max_model_len": engine.context},
        "ray": ray_options,
    }
    program = [sys.executable, "-m", "touche_llm.llm.ray_job"]
    files = [os.path.abspath(requests), os.path.abspath(responses)]
    return [*program, *files, orjson.dumps(settings).decode()]


class BatchEngine(AbstractAsyncContextManager["BatchEngine"]):
    """Engine that answers requests in rounds: a file of all requests that wait.

    Use as an asynchronous context manager.

    Requests that depend on answers come in a later round.
    """

    def __init__(
        self, settings: EngineConfig, tokenizer: Counter, log: Path, announce: Callable[[str], None]
    ) -> None:
        """Initialise the engine.

        The runner's output is appended to `log`, beside which files of rounds are written.
        """
        self.counter = tokenizer
        self._settings = settings
        self._log = log
        self._announce = announce
        self._waiting: dict[str, Request] = {}
        self._next: asyncio.Task[dict[str, Reply]] | None = None
        self._unfinished: set[asyncio.Task[dict[str, Reply]]] = set()
        self._turn = asyncio.Lock()
        self._rounds = 0

    async def __aexit__(self, *_: object) -> None:
        for task in self._unfinished:
            task.cancel()
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    async def complete(self, request: Request) -> Completion:
        """Return the completion of a request, after the round in which it is sent."""
        self._waiting[request.key] = request
        if self._next is None:
            self._next = asyncio.create_task(self._send_round())
            self._unfinished.add(self._next)
            self._next.add_done_callback(self._unfinished.discard)
        return read_reply(await asyncio.shield(self._next), request)

    async def _send_round(self) -> dict[str, Reply]:
        """Send the requests that wait when the round begins, and return the replies by key."""
        async with self._turn:
            await self._wait_for_requests()
            requests = list(self._waiting.values())
            # Requests that come from now on belong to the next round.
            self._waiting = {}
            self._next = None
            self._rounds += 1
            title = TITLES[self._settings.runner]
            self._announce(f"round {self._rounds}: {len(requests):,} requests to {title}")
            return await self._answer(requests)

    async def _wait_for_requests(self) -> None:
        """Wait until no request comes any more."""
        count = 0
        while count < len(self._waiting):
            count = len(self._waiting)
            await asyncio.sleep(_QUIET_SECONDS)

    async def _answer(self, requests: Sequence[Request]) -> dict[str, Reply]:
        """Answer requests to one model by a file of them."""
        with open_scratch(self._log.with_name("batch")) as folder:
            request_file = folder / "requests.jsonl"
            response_file = folder / "responses.jsonl"
            with request_file.open("wb") as stream:
                stream.writelines(map(request_line, group_by_topic(requests)))
            await answer_file(self._settings, request_file, response_file, self._log)
            return read_replies([response_file], requests[0].model)
