"""Runners that answer a file of requests: `vllm run-batch` and a Ray Data job."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from touche_llm.batch.responses import read_replies
from touche_llm.data.io import BUILDING, iterate_records, open_scratch, remove_abandoned
from touche_llm.data.records import JsonStruct
from touche_llm.errors import DataError, EngineError, UsageError
from touche_llm.llm.managed import build_start_options, find_vllm, run_guarded, to_flags
from touche_llm.llm.settings import EngineConfig, Runner, check_model_folder

TITLES = {Runner.VLLM: "vllm run-batch", Runner.RAY: "the Ray Data job"}
# Options of `ray.data.llm.vLLMEngineProcessorConfig`; all others are vLLM's.
_RAY_OPTIONS = (
    *("accelerator_type", "batch_size", "concurrency", "max_concurrent_batches", "max_pending_requests"),
    *("max_tasks_in_flight_per_actor", "placement_group_config", "runtime_env"),
)


class _Body(JsonStruct, frozen=True, forbid_unknown_fields=False):
    model: str


class _Request(JsonStruct, frozen=True, forbid_unknown_fields=False):
    custom_id: str
    url: Literal["/v1/chat/completions"]
    body: _Body


class _StructuredOutputs(JsonStruct, frozen=True):
    json: dict[str, Any]


class _RayBody(_Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body as written by `batch export`; the Ray Data job ignores other fields, so they are refused."""

    messages: list[msgspec.Raw]
    temperature: float
    max_tokens: int
    chat_template_kwargs: dict[str, Any]
    structured_outputs: _StructuredOutputs | None = None
    stop: list[str] = []
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    seed: int = 0
    logprobs: bool = False
    top_logprobs: int = 0


class _RayRequest(_Request, frozen=True):
    body: _RayBody


async def answer_file(
    engine: EngineConfig, requests: Path, responses: Path, log: Path, *, served_name: str | None = None
) -> int:
    """Answer a file of requests with the engine's runner; write all responses or none.

    Args:
        engine: Runner, folder of the model, context and options.
        requests: Chat requests in the format of OpenAI's batch files.
        responses: File to write or replace.
        log: File to which the runner's output is appended.
        served_name: Name of the model in the requests; if None, its last part must be the name of the folder.

    Returns:
        The number of responses.

    Raises:
        DataError: A line is not a chat request, or the requests are for several models.
        UsageError: The model's folder is missing or named differently, or the context for Ray is not set.
        EngineError: The runner is not installed or failed, or did not answer every request exactly once.
    """
    keys, name = _read_requests(requests, _RayRequest if engine.runner is Runner.RAY else _Request)
    folder = check_model_folder(engine.model).absolute()
    if name != served_name and (served_name or folder.name != Path(name).name):
        raise UsageError(
            f"{requests}: the requests are for the model {name}, not {served_name or folder.name}; if {folder} "
            f"contains it, add --served-model-name {name}"
        )
    title = TITLES[engine.runner]
    responses.parent.mkdir(parents=True, exist_ok=True)
    with open_scratch(responses, BUILDING) as (place, _):
        written = place / responses.name
        if engine.runner is Runner.VLLM:
            options = build_start_options(engine.options)
            command = [find_vllm(), *run_batch(requests, written, str(folder), name, engine.context, options)[1:]]
        else:
            command = _ray_job(engine, requests, written, folder)
        async with run_guarded(command, log, {"RAY_USAGE_STATS_ENABLED": "0"}) as (process, end_of_log):
            code = await asyncio.to_thread(process.wait)
        if code != 0:
            raise EngineError(f"{requests}: {title} exited with code {code}; {end_of_log()}")
        try:
            _check_responses(written, keys, name)
        except DataError as error:
            raise EngineError(f"{requests}: {title} wrote unusable responses: {error}; {end_of_log()}") from error
        written.replace(responses)
        place.rmdir()
    remove_abandoned(responses.parent)
    return len(keys)


def run_batch(
    requests: Path, responses: Path, model: str, name: str, context: int | None, options: Mapping[str, Any]
) -> list[str]:
    """Return the command that answers a file of requests with vLLM; `name` is the model's name in the requests."""
    command = ["vllm", "run-batch", "-i", str(requests), "-o", str(responses), "--model", model]
    command += ["--served-model-name", name]
    return [*command, *to_flags(({} if context is None else {"max_model_len": context}) | dict(options))]


def _ray_job(engine: EngineConfig, requests: Path, responses: Path, folder: Path) -> list[str]:
    if engine.context is None:
        raise UsageError("engine.context: not set, and the Ray Data job needs the context in tokens")
    for name in ("ray", "vllm"):
        if find_spec(name) is None:
            raise EngineError(
                f"engine.runner: ray needs {name}, which is not installed here; pip install 'touche-llm[ray]'"
            )
    vllm = build_start_options({name: value for name, value in engine.options.items() if name not in _RAY_OPTIONS})
    settings = {
        "folder": str(folder),
        "vllm": vllm | {"max_model_len": engine.context},
        "ray": {name: value for name, value in engine.options.items() if name in _RAY_OPTIONS},
    }
    job = [sys.executable, "-m", "touche_llm.batch.ray_job"]
    return [*job, *map(os.path.abspath, (requests, responses)), orjson.dumps(settings).decode()]


def _read_requests(path: Path, form: type[_Request]) -> tuple[set[str], str]:
    """Return the ids of the requests and the name of their model."""
    keys: set[str] = set()
    name = ""
    for number, found in enumerate(iterate_records(path, form, "chat requests of `batch export`"), start=1):
        if found.custom_id in keys:
            raise DataError(f"{path}:{number}: the id {found.custom_id:.80} occurs twice; ids must be unique")
        if keys and found.body.model != name:
            raise DataError(
                f"{path}:{number}: a request for the model {found.body.model:.80} in a file for {name:.80}; split "
                "the file by model"
            )
        keys.add(found.custom_id)
        name = found.body.model
    if not keys:
        raise DataError(f"{path}: contains no requests; write them with `touche-llm batch export`")
    return keys, name


def _check_responses(path: Path, keys: set[str], name: str) -> None:
    """Raise DataError unless a file contains exactly one response to each request, by the model of this name."""
    replies = read_replies([path], name)
    foreign = [reply.place for key, reply in replies.by_key.items() if key not in keys]
    others = [reply.place for reply in replies.by_key.values() if reply.problem and reply.problem.kind == "other_model"]
    missing = len(keys - replies.by_key.keys())
    for places, problem in (
        (foreign, "the response is to none of the requests"),
        (replies.repeated, "a second response to the same request"),
        (others, f"the response is by another model than {name}"),
    ):
        if places:
            raise DataError(f"{places[0]}: {problem}")
    if missing:
        raise DataError(f"{path}: {missing:,} of {len(keys):,} requests have no response")
