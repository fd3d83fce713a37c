"""Metadata of a run's stages, as they are written."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from touche_llm import __version__
from touche_llm.config.configuration import Config
from touche_llm.config.files import CONFIG
from touche_llm.judging import judgments
from touche_llm.ranking.steps import JUDGE, STEPS
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import REPORT, RunDirectory
from touche_llm.runs.inputs import OF_JUDGE, OF_RETRIEVE, list_deciding_settings
from touche_llm.runs.record import (
    JudgeRecord,
    RankRecord,
    RetrieveRecord,
    RunRecord,
    StageName,
    StageRecords,
)
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

_SOFTWARE = f"touche-llm=={__version__}"
_LIBRARIES = ("bm25s", "rank-bm25", "PyStemmer", "sentencex", "jinja2", "pydantic", "aiohttp")
# A lookup takes 4 ms, and metadata is written twice per stage.
_version = cache(version)


def begin_stage(context: RunContext, directory: RunDirectory, stage: StageName) -> None:
    """Remove the outputs of a stage and of later ones, and mark the stage as unfinished until it is recorded."""
    config = context.recorded_config
    if directory.remove_report():
        context.progress.warn(
            f"{directory.path / REPORT}: removed, since `{stage}` runs again; `touche-llm report {directory}` writes it"
        )
    earlier = directory.read_metadata().stages.before(stage)
    record = RunRecord(stages=earlier, unfinished=stage)
    directory.begin_stage(config, stage, build_metadata(config, directory.path, record))


def record_stage(
    context: RunContext,
    directory: RunDirectory,
    record: RetrieveRecord | JudgeRecord | RankRecord,
) -> None:
    """Write the record of a stage into the metadata, after all outputs of the stage."""
    stages = directory.read_metadata().stages.add(record)
    metadata = build_metadata(context.recorded_config, directory.path, RunRecord(stages=stages))
    directory.write_metadata(metadata)


def measure_seconds(started: float) -> float:
    """Return the seconds since a time of `time.monotonic`, in milliseconds at most."""
    return round(time.monotonic() - started, 3)


def measure_peak_memory() -> int:
    """Return the peak memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(peak / unit)


def build_metadata(config: Config, folder: Path, record: RunRecord) -> dict[str, Any]:
    """Return the metadata of a run: its description in ir_metadata, and its record."""
    task = get_task(config.task)
    judge = record.stages.judge
    model = "an instruction model" if judge is None else judge.llm.model.name
    # Names of people are optional; the tag identifies the team in every shared task.
    people = config.actor.model_dump(exclude_none=True, exclude={"repository"})
    return {
        "ir_metadata.version": "0.1",
        "tag": config.tag,
        "actor": {"team": config.tag, **people},
        "research goal": {"description": f"{task.title}: rank zero-shot with {model}"},
        "platform": _describe_platform(),
        "implementation": {
            "executable": {"cmd": f"touche-llm run --config {folder / CONFIG} --out {folder}"},
            "source": {"lang": ["python"], "repository": config.actor.repository or _SOFTWARE},
        },
        "data": _describe_data(config, task),
        "method": _describe_method(config, record.stages, model),
        **msgspec.to_builtins(record),
    }


def _describe_platform() -> dict[str, Any]:
    """Return the machine and the libraries of a run, in ir_metadata."""
    libraries = [f"{name}=={_version(name)}" for name in _LIBRARIES]
    return {
        "hardware": {
            "cpu": {"architecture": platform.machine(), "number of cores": os.cpu_count()}
        },
        "operating system": {"kernel": f"{platform.system()} {platform.release()}"},
        "software": {
            "libraries": {"python": libraries},
            "retrieval toolkit": [_SOFTWARE],
        },
    }


def _describe_data(config: Config, task: Task) -> dict[str, Any]:
    """Return the topics of a run and what its thresholds were fitted on, in ir_metadata."""
    collection = {"name": task.title, "topics": str(config.topics)}
    if config.dataset is not None:
        collection["ir_datasets"] = config.dataset

    training_data = "none, the model is used as it is"
    if config.fitted_on:
        topics = ", ".join(config.fitted_on)
        training_data = f"thresholds of the stance: the judgments of topics {topics}"
    return {"test collection": collection, "training data": training_data}


def _describe_method(config: Config, stages: StageRecords, model: str) -> dict[str, Any]:
    """Return the first stage and the steps of the ranking, in ir_metadata.

    Steps are listed once documents are judged.
    """
    first_stage = _describe_first_stage(config, stages)
    methods = [first_stage]
    if stages.judge is not None:
        methods.extend(_describe_steps(config, first_stage["name"]))
    return {
        "name": " > ".join(method["name"] for method in methods),
        # The checker of TIRA requires it.
        "description": f"{first_stage['name']} retrieves; {model} judges zero-shot, and the other steps rank.",
        "automatic": True,
        "score ties": "none, scores strictly decrease",
        "retrieval": methods,
    }


def _describe_first_stage(config: Config, stages: StageRecords) -> dict[str, Any]:
    """Return name, method and settings of the first stage."""
    if config.candidates is not None:
        return {
            "name": "a given run",
            "method": "run file",
            "params": {"file": str(config.candidates)},
        }

    params = list_deciding_settings(config, OF_RETRIEVE)
    params["depth"] = config.first_stage_depth
    if stages.retrieve is not None:
        # The judged depth may be smaller than the retrieved one.
        params["depth"] = stages.retrieve.depth
    return {
        "name": config.retriever.name,
        "method": config.retriever.kind.method,
        "params": params,
    }


def _describe_steps(config: Config, first_stage: str) -> Iterator[dict[str, Any]]:
    """Yield name, method and settings of each step of the ranking, and what it reranks.

    Args:
        config: Configuration of the run.
        first_stage: Name of the method that the first step reranks.
    """
    previous = first_stage
    for step in config.steps:
        if step.name == JUDGE:
            module = judgments.__name__
            settings: tuple[str, ...] = (*OF_JUDGE, "weights", "stance")
        else:
            module = STEPS[step.name].method.__module__
            settings = (f"ranking.{step.name}",)
        yield {
            "name": str(step),
            "method": module,
            "reranks": previous,
            "params": list_deciding_settings(config, settings),
        }
        previous = str(step)
