"""vLLM under Ray Data: what waits for an answer is a data set, and Ray's replicas of vLLM answer it.

Ray is driven by a process of its own, `ray_driver`, to which requests go and from which replies come, both as they
would over HTTP. Ray ends the replicas with their data set and loads the model anew for the next, so all that can be
asked at a time is asked together, and where the cache holds every answer nothing is loaded.

A row that came back without an answer is asked for again here, with the next data set: by the end of the first one
`retry_for`, which the other engines' tries are bounded by, may long be over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import orjson

from touche_llm.errors import EngineError, UsageError, printable
from touche_llm.json_records import Malformed, decoded
from touche_llm.llm.chat_reply import ChatReply, chat_body, completion_of
from touche_llm.llm.engine import Completion, Engine, EngineFacts, MissingLogprobs, Rejected, Transient
from touche_llm.llm.request import Message, Request
from touche_llm.llm.tokenizer import ChatTokenizer
from touche_llm.llm.vllm_common import model_name, start_options, verify_engine
from touche_llm.transport import BROKEN_TRIES

# Those who wait are a data set when nobody has joined them for so many seconds.
_MOMENT = 0.5
# Between SIGTERM and SIGKILL, in seconds.
_STOP_SECONDS = 30.0
# Bytes of a line; a reply has about a hundred for each alternative of each token.
_MAX_LINE = 2**26
# Options that are Ray's, of `ray.data.llm.vLLMEngineProcessorConfig`; all others are vLLM's.
_OF_RAY = (
    *("accelerator_type", "batch_size", "concurrency", "max_concurrent_batches", "max_pending_requests"),
    *("max_tasks_in_flight_per_actor", "placement_group_config", "runtime_env"),
)
# What vLLM raises for a request that it does not take; its server answers these with status 400.
_REFUSALS = ("VLLMValidationError", "ValueError", "TypeError", "OverflowError", "NotImplementedError")


class _Line(msgspec.Struct):
    """What the process that drives Ray says: a reply, why there is none, that it has failed, or nothing at an end."""

    number: int | None = None
    reply: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    failed: str | None = None


class RayEngine:
    """The model of a folder, loaded by Ray's replicas of vLLM. Use as an asynchronous context manager.

    `RAY_ADDRESS` names a cluster, all of whose machines must see the folder under the same path. Without it Ray is
    started on this machine with the first request, and stopped with the engine.
    """

    def __init__(
        self,
        folder: Path,
        log: Path,
        *,
        context: int | None,
        options: Mapping[str, Any],
        chat_template_kwargs: Mapping[str, Any],
    ) -> None:
        """Nothing is loaded yet.

        Args:
            folder: holds weights, tokeniser and chat template; its last name is the model's name.
            log: what Ray and vLLM write is appended to it.
            context: in tokens.
            options: further arguments of vLLM by name, and of Ray's processor: `concurrency` is the number of replicas.
            chat_template_kwargs: the chat template's switches, for counting tokens.

        Raises:
            UsageError: no context, which is needed before there is a vLLM that could tell it.
        """
        if context is None:
            raise UsageError("--engine ray: give the context, in tokens (--context N): documents are cut to it")
        self._folder, self._log, self._context = Path(os.path.abspath(folder)), log, context
        self._chat_template_kwargs = dict(chat_template_kwargs)
        self._settings = {
            "folder": str(self._folder),
            "vllm": start_options({name: value for name, value in options.items() if name not in _OF_RAY})
            | {"max_model_len": context},
            "ray": {name: value for name, value in options.items() if name in _OF_RAY},
        }
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = count()
        self._waiting: dict[int, tuple[Request, asyncio.Future[Completion]]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._prove: Callable[[], Any] | None = None
        self._proof: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None

    async def __aenter__(self) -> RayEngine:
        """Load the tokeniser alone; raises EngineError where Ray or vLLM is missing, UsageError without a tokeniser."""
        self._version = _installed()
        self._tokenizer = ChatTokenizer(self._folder, self._chat_template_kwargs)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the replicas, and Ray where it was started here."""
        tasks = [task for task in (self._asking, self._proof) if task is not None]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._process is not None:
                await _stop(self._process)

    async def connect(self, revision: str, top_logprobs: int) -> EngineFacts:
        """The same facts as a server's of the same model under the folder's name.

        That schemas are enforced and log-probabilities come is proved with the first data set, before any answer of it
        is given out: a data set for that alone would load the model once more.

        Args:
            revision: what the user calls the weights' version; goes into the keys.
            top_logprobs: how many alternatives a token the run will ask for; 0 for none.

        Raises:
            UsageError: the chat template takes no system message.
        """
        facts = EngineFacts(
            model=model_name(self._folder),
            revision=revision,
            context=self._context,
            overhead=await self.count_tokens((Message("system", ""), Message("user", ""))),
            engine=f"vllm {self._version}",
        )
        check = partial(self._ask, first=True)
        unproved = SimpleNamespace(complete=check, count_tokens=self.count_tokens, head=self.head)
        self._prove = partial(
            verify_engine,
            cast(Engine, unproved),
            self._folder,
            model=facts.model,
            revision=revision,
            context=self._context,
            version=self._version,
            chat_template_kwargs=self._chat_template_kwargs,
            top_logprobs=top_logprobs,
        )
        return facts

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises Transient after three data sets in vain, Rejected, and EngineError.

        It waits until nobody else has asked for a moment, and for the end of the data set that Ray is at work on.
        EngineError is raised once Ray has failed, or the start-up check.
        """
        if self._proof is None:
            self._proof = asyncio.create_task(self._proved())
        try:
            completion = await self._ask(request)
        except MissingLogprobs:
            await asyncio.shield(self._proof)  # fails where the engine never sends any
            raise
        await asyncio.shield(self._proof)
        return completion

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Number of prompt tokens of a chat, template included."""
        return self._tokenizer.count(messages)

    async def head(self, text: str, tokens: int) -> str:
        """The beginning of `text` that has about this many tokens; always a prefix of it."""
        return self._tokenizer.head(text, tokens)

    async def _proved(self) -> None:
        assert self._prove is not None, "connect comes first"
        try:
            await self._prove()
        except (Rejected, Transient) as error:
            raise EngineError(
                f"{self._folder}: vLLM did not answer the start-up check: {error}; {self._log} holds what Ray and vLLM "
                "said"
            ) from error

    async def _ask(self, request: Request, *, first: bool = False) -> Completion:
        """As `complete`, without the proof; the proof itself goes `first`, since all answers wait for it."""
        for _ in range(BROKEN_TRIES):
            try:
                return await self._ask_once(request, first)
            except MissingLogprobs:
                raise  # the start-up check recognises it
            except Transient as error:
                failed = error
        raise Transient(failed.kind, f"{failed.reason} ({BROKEN_TRIES} data sets)", most_tries=1) from failed

    async def _ask_once(self, request: Request, first: bool) -> Completion:
        """Wait for a row of the next data set."""
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[number] = request, future
        if first:
            self._waiting = {number: self._waiting.pop(number), **self._waiting}
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_ray())
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    async def _ask_ray(self) -> None:
        """Make data sets of those who wait, one after the other, until nobody waits any more."""
        while self._waiting:
            known = -1
            while known != len(self._waiting):
                known = len(self._waiting)
                await asyncio.sleep(_MOMENT)
            under_way, self._waiting = self._waiting, {}
            try:
                await self._data_set(under_way)
            except Exception as error:  # or they would wait without end
                self._failure = EngineError(
                    f"{self._folder}: Ray Data has failed: {error}; {self._log} holds what Ray and vLLM said. Every "
                    "answer so far is in the cache, unless that is off: go on with the same command"
                )
                for _, future in (*under_way.values(), *self._waiting.values()):
                    if not future.done():
                        future.set_exception(self._failure)
        self._asking = None

    async def _data_set(self, asked: Mapping[int, tuple[Request, asyncio.Future[Completion]]]) -> None:
        """Have Ray answer requests, and give each who waits its answer as it comes."""
        asked = {number: each for number, each in asked.items() if not each[1].done()}
        if not asked:
            return  # cancelled, all of them
        if self._process is None:
            self._process = await self._started()
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None and replies is not None
        for number, (request, _) in asked.items():
            requests.write(orjson.dumps({"number": number, "body": chat_body(request)}) + b"\n")
            await requests.drain()
        requests.write(b"\n")
        await requests.drain()
        while line := await replies.readline():
            said = decoded(line, _Line)
            if said.failed is not None:
                raise EngineError(printable(said.failed))
            if said.number is None:
                lost = sum(not future.done() for _, future in asked.values())
                if lost:
                    raise EngineError(f"no row came back for {lost} of {len(asked)} requests")
                return
            request, future = asked[said.number]
            if future.done():  # nobody waits for it any more
                continue
            try:
                future.set_result(_completion(said, request))
            except (Rejected, Transient) as error:
                future.set_exception(error)
        raise EngineError(f"its process ended with code {await self._process.wait()}")

    async def _started(self) -> asyncio.subprocess.Process:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "touche_llm.llm.ray_driver"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={"RAY_USAGE_STATS_ENABLED": "0"} | os.environ,
                start_new_session=True,
                limit=_MAX_LINE,
            )
        assert process.stdin is not None
        process.stdin.write(orjson.dumps(self._settings) + b"\n")
        return process


def _installed() -> str:
    """The version of vLLM; raises EngineError where that or Ray is missing."""
    if find_spec("ray") is None:
        raise EngineError("Ray is not installed here: pip install 'touche-llm[ray]'")
    try:
        return version("vllm").partition("+")[0]
    except PackageNotFoundError as error:
        raise EngineError("vLLM is not installed here: pip install 'touche-llm[ray]'") from error


def _completion(said: _Line, request: Request) -> Completion:
    if bytes(said.reply) != b"null":
        try:
            return completion_of(decoded(said.reply, ChatReply), request.read_fields)
        except Malformed as error:
            reason = f"a reply of another form: {error}"
            raise Transient("server_error", reason, most_tries=BROKEN_TRIES) from error
    reason = printable(said.error or "a row without a reply")
    if reason.partition(":")[0] in _REFUSALS:
        raise Rejected(400, f"vLLM refused it: {reason}")
    raise Transient("server_error", reason, most_tries=BROKEN_TRIES)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the process that drives Ray, which ends what it has started."""
    try:
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
