"""Engine that answers requests in rounds, each a Ray Data job over a batch file."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import orjson

from touche_llm.data.files import iterate_records, open_scratch
from touche_llm.data.records import JsonStruct
from touche_llm.engines.batch_files import (
    Reply,
    group_by_topic,
    read_replies,
    read_reply,
    request_line,
)
from touche_llm.engines.managed import build_start_options, run_guarded
from touche_llm.engines.settings import EngineConfig, check_model_folder
from touche_llm.errors import DataError, EngineError, UsageError
from touche_llm.llm.protocol import Completion, Counter
from touche_llm.llm.request import Request

# Options of `ray.data.llm.vLLMEngineProcessorConfig`; all others are vLLM's.
_RAY_OPTIONS = (
    "accelerator_type",
    "batch_size",
    "concurrency",
    "max_concurrent_batches",
    "max_pending_requests",
    "max_tasks_in_flight_per_actor",
    "placement_group_config",
    "runtime_env",
)
# A round begins when no request has come for so many seconds; longer than the wait before a retry.
_QUIET_SECONDS = 1.0


class _Body(msgspec.Struct):
    model: str


class _Request(JsonStruct, frozen=True, forbid_unknown_fields=False):
    custom_id: str
    url: Literal["/v1/chat/completions"]
    body: _Body


@dataclass(frozen=True, slots=True)
class RayJob:
    """Ray Data job that answers files of requests.

    Attributes:
        folder: Folder of the model.
        context: Context in tokens.
        options: Options of vLLM and of `ray.data.llm.vLLMEngineProcessorConfig`, by name.
        log: File to which the output of Ray and vLLM is appended.
    """

    folder: Path
    context: int
    options: Mapping[str, Any]
    log: Path

    @classmethod
    def from_settings(cls, engine: EngineConfig, log: Path) -> Self:
        """Return the job with the settings of the engine.

        Raises:
            UsageError: The model is not a folder of one, or the context is not set.
        """
        folder = check_model_folder(engine.model)
        if engine.context is None:
            problem = "not set, and documents are truncated to fit"
            raise UsageError(f"engine.context: {problem}; give the context in tokens")
        return cls(folder=folder, context=engine.context, options=engine.options, log=log)

    async def answer_file(self, requests: Path, responses: Path) -> int:
        """Answer a file of requests, and write all responses or none.

        Args:
            requests: Chat requests to one model, as `batch export` writes them. The model of the
                folder answers them whatever its name there.
            responses: File to write, which is replaced.

        Returns:
            Number of requests.

        Raises:
            DataError: The file does not hold chat requests to one model.
            EngineError: The job failed.
        """
        count = _count_requests(requests)
        with open_scratch(responses) as place:
            written = place / responses.name
            command = self._build_command(requests, written)
            async with run_guarded(command, self.log) as job:
                code = await job.wait()
            if code != 0 or not written.exists():
                problem = f"the Ray Data job exited with code {code}"
                raise EngineError(f"{requests}: {problem}; {job.read_end_of_log()}")
            written.replace(responses)
        return count

    def _build_command(self, requests: Path, responses: Path) -> list[str]:
        """Return the command of the job; its settings are JSON in the last argument."""
        ray_options: dict[str, Any] = {}
        vllm_options: dict[str, Any] = {}
        for name, value in self.options.items():
            if name in _RAY_OPTIONS:
                ray_options[name] = value
            else:
                vllm_options[name] = value

        settings = {
            # Replicas on other machines need the whole path.
            "folder": str(self.folder.absolute()),
            "vllm": build_start_options(vllm_options) | {"max_model_len": self.context},
            "ray": ray_options,
        }
        program = [sys.executable, "-m", "touche_llm.engines.ray_job"]
        files = [os.path.abspath(requests), os.path.abspath(responses)]
        return [*program, *files, orjson.dumps(settings).decode()]


def _count_requests(path: Path) -> int:
    """Return the number of requests in a file.

    Raises:
        DataError: The file does not hold chat requests to one model.
    """
    lines = iterate_records(path, _Request, "chat requests of `batch export`")
    model_names = [line.body.model for line in lines]
    model_count = len(set(model_names))
    if model_count != 1:
        expected = "expected requests for one, as `touche-llm batch export` writes them"
        raise DataError(f"{path}: requests for {model_count} models; {expected}")
    return len(model_names)


class RayEngine(AbstractAsyncContextManager["RayEngine"]):
    """Engine that answers requests in rounds, each a Ray Data job for all requests that wait.

    Use as an asynchronous context manager.

    Requests that depend on answers come in a later round.
    """

    def __init__(self, job: RayJob, tokenizer: Counter, announce: Callable[[str], None]) -> None:
        """Initialise the engine.

        Args:
            job: Job of each round; the files of a round are written beside its log.
            tokenizer: Counter of the model's tokens.
            announce: Function that is called with a line for each round.
        """
        self.counter = tokenizer
        self._job = job
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
            self._announce(f"round {self._rounds}: {len(requests):,} requests to a Ray Data job")
            return await self._answer(requests)

    async def _wait_for_requests(self) -> None:
        """Wait until no request comes any more."""
        count = 0
        while count < len(self._waiting):
            count = len(self._waiting)
            await asyncio.sleep(_QUIET_SECONDS)

    async def _answer(self, requests: Sequence[Request]) -> dict[str, Reply]:
        """Answer requests to one model by a file of them."""
        with open_scratch(self._job.log.with_name("ray")) as folder:
            request_file = folder / "requests.jsonl"
            response_file = folder / "responses.jsonl"
            with request_file.open("wb") as stream:
                stream.writelines(map(request_line, group_by_topic(requests)))
            await self._job.answer_file(request_file, response_file)
            return read_replies([response_file], requests[0].model)
