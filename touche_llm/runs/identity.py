"""Provenance of a run: its metadata, in the ir_metadata format (https://www.ir-metadata.org), and its identity.

The identity is the settings and inputs of the outputs, compared with those that would be used now.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from touche_llm import __version__
from touche_llm.config.configuration import Config, find_settings, flatten, is_one_of
from touche_llm.config.files import CONFIG, is_same_task
from touche_llm.corpus.store import hash_corpus
from touche_llm.data.files import sha256
from touche_llm.engines.settings import SECTIONS
from touche_llm.errors import UsageError
from touche_llm.ranking.steps import JUDGE
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import OUTPUTS, REPORT, RunDirectory
from touche_llm.runs.record import (
    JudgeRecord,
    RankRecord,
    RetrieveRecord,
    RunRecord,
    StageName,
    StageRecords,
)
from touche_llm.settings.section import Scope
from touche_llm.tasks import get_task

INCIDENTAL = ("index", *find_settings(Scope.DELIVERY))
OF_RETRIEVE, OF_JUDGE, OF_MODEL = map(find_settings, (Scope.RETRIEVE, Scope.JUDGE, Scope.MODEL))
# Compared with the facts of the finished stages, whatever their names: by hash, version, or as the
# server reports them.
_INPUTS = ("topics", "corpus", "candidates")
_NOT_COMPARED = (*INCIDENTAL, *_INPUTS, "prompts", *OF_MODEL)
# Settings whose values are the server's unless they are configured, and known only after
# connecting.
_OF_SERVER = tuple(
    f"{section}.{name}" for section in SECTIONS.values() for name in ("model", "context")
)
_SOFTWARE = f"touche-llm=={__version__}"
_LIBRARIES = ("bm25s", "rank-bm25", "PyStemmer", "sentencex", "jinja2", "pydantic", "aiohttp")
# A lookup takes 4 ms, and metadata is written twice per stage.
_version = cache(version)


def begin_stage(context: RunContext, directory: RunDirectory, stage: StageName) -> None:
    """Remove the outputs of a stage and of later ones, and mark the stage as unfinished until it is recorded."""
    config = context.config
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
    metadata = build_metadata(context.config, directory.path, RunRecord(stages=stages))
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
    methods = list(_list_methods(config, record.stages))
    judge = record.stages.judge
    model = "an instruction model" if judge is None else judge.llm.model.name
    fitted = f"thresholds of the stance: the judgments of topics {', '.join(config.fitted_on)}"
    return {
        "ir_metadata.version": "0.1",
        "tag": config.tag,
        # Names of people are optional; the tag identifies the team in every shared task.
        "actor": {"team": config.tag}
        | config.actor.model_dump(exclude_none=True, exclude={"repository"}),
        "research goal": {"description": f"{task.title}: rank zero-shot with {model}"},
        "platform": {
            "hardware": {
                "cpu": {"architecture": platform.machine(), "number of cores": os.cpu_count()}
            },
            "operating system": {"kernel": f"{platform.system()} {platform.release()}"},
            "software": {
                "libraries": {"python": [f"{name}=={_version(name)}" for name in _LIBRARIES]},
                "retrieval toolkit": [_SOFTWARE],
            },
        },
        "implementation": {
            "executable": {"cmd": f"touche-llm run --config {folder / CONFIG} --out {folder}"},
            "source": {"lang": ["python"], "repository": config.actor.repository or _SOFTWARE},
        },
        "data": {
            "test collection": {
                "name": task.title,
                "topics": str(config.topics),
                **({} if config.dataset is None else {"ir_datasets": config.dataset}),
            },
            "training data": fitted if config.fitted_on else "none, the model is used as it is",
        },
        "method": {
            "name": " > ".join(method["name"] for method in methods),
            # The checker of TIRA requires it.
            "description": f"{methods[0]['name']} retrieves; {model} judges zero-shot, and the other steps rank.",
            "automatic": True,
            "score ties": "none, scores strictly decrease",
            "retrieval": methods,
        },
        **msgspec.to_builtins(record),
    }


def _list_methods(config: Config, stages: StageRecords) -> Iterator[dict[str, Any]]:
    """Yield the first stage and, once documents are judged, each step of the ranking, with their settings."""
    if config.candidates is not None:
        last: str = "a given run"
        yield {"name": last, "method": "run file", "params": {"file": str(config.candidates)}}
    else:
        last = config.retriever.name
        params = _list_settings(config, OF_RETRIEVE)
        params["depth"] = config.first_stage_depth
        if stages.retrieve is not None:
            # The judged depth may be smaller than the retrieved one.
            params["depth"] = stages.retrieve.depth
        yield {"name": last, "method": config.retriever.kind.method, "params": params}

    if stages.judge is None:
        return
    for step in config.steps:
        if step.name == JUDGE:
            module = "pointwise"
            names: tuple[str, ...] = (*OF_JUDGE, "weights", "stance")
        else:
            module = step.name
            names = (f"ranking.{step.name}",)
        yield {
            "name": str(step),
            "method": f"touche_llm.ranking.{module}",
            "reranks": last,
            "params": _list_settings(config, names),
        }
        last = str(step)


def _list_settings(config: Config, names: Collection[str]) -> dict[str, Any]:
    """Return the settings of these names and sections that decide on outputs.

    Those that are not set are left out.
    """
    values = flatten(config.model_dump(mode="json") | {"topic": sorted(config.topic)})
    return {
        name: value
        for name, value in values.items()
        if value not in (None, {}) and is_one_of(name, names) and not is_one_of(name, _NOT_COMPARED)
    }


def hash_inputs(config: Config) -> dict[str, str]:
    """Return the SHA-256 of the files that a run reads, by setting.

    For an index that of its corpus.
    """
    files = {"topics": config.topics, "candidates": config.candidates}
    found = {
        name: sha256(file) for name, file in files.items() if file is not None and file.is_file()
    }
    digest = None if config.index is None else hash_corpus(config.corpus, config.index)
    return found if digest is None else {**found, "corpus": digest}


def check_settings(
    directory: RunDirectory, context: RunContext, command: str, *, overwrite: bool
) -> None:
    """Raise an error if a command would replace outputs made with other settings or by another program.

    Prompts, inputs and model are compared with what the finished stages recorded, settings with the
    folder's. Judging replaces no candidates: it may have its own settings until there are
    judgments. With `overwrite`, only the inputs of the candidates that are judged count.
    """
    if overwrite:
        if command == "judge":  # It replaces no candidates.
            check_inputs(directory, context.config)
        return
    made = [
        stage
        for stage, names in OUTPUTS.items()
        if any((directory.path / name).exists() for name in names)
    ]
    replaced = [stage for stage in made if stage != "retrieve" or command != "judge"]
    if not directory.config_file.exists():
        if replaced:
            raise UsageError(
                f"{directory}: has outputs of `{replaced[0]}` but no {CONFIG}, so this program did not write them; "
                "give another folder, or replace them (`overwrite: true`)"
            )
        return
    old = directory.read_config()
    records = directory.read_metadata().stages.select(made)
    changes = [
        *_compare_settings(old, context.config, _list_relevant(made, old, command)),
        *_compare_models(records.select(replaced), context.config),
        *_compare_prompts(records, context),
        *_compare_inputs(records, context.config, _INPUTS),
    ]
    if changes:
        raise UsageError(
            f"{directory}: holds a run with other settings or inputs; give another folder, or replace it "
            "(`overwrite: true`; answers stay in the cache):\n" + "\n".join(changes)
        )


def check_inputs(directory: RunDirectory, config: Config) -> None:
    """Raise an error if topics or documents are not those of the candidates: the model must see what was retrieved."""
    # The folder has its own copy of the candidates.
    if changes := list(
        _compare_inputs(directory.read_metadata().stages, config, ("topics", "corpus"))
    ):
        raise UsageError(
            f"{directory}: the model would see other inputs than the first stage had; restore these "
            "files, or repeat all stages with `touche-llm run --overwrite`:\n" + "\n".join(changes)
        )


def _list_relevant(made: Collection[str], old: Config, command: str) -> tuple[str, ...]:
    """Return the settings that determine the outputs of these stages."""
    if "rank" in made:
        return tuple(Config.model_fields)
    if "judge" in made:
        return (*OF_RETRIEVE, *OF_JUDGE)
    if "retrieve" not in made:
        return ()
    return (
        OF_RETRIEVE
        if command == "judge"
        else (*OF_RETRIEVE, "depth", *["sampling"] * old.expansion.use)
    )


def _compare_settings(old: Config, new: Config, names: Collection[str]) -> Iterator[str]:
    before, now = _list_settings(old, names), _list_settings(new, names)
    if "task" in before and is_same_task(old.task, new.task):
        now["task"] = old.task
    for name in dict.fromkeys((*before, *now)):
        if name not in _OF_SERVER or (name in before and name in now):
            yield from _compare(name, before.get(name), now.get(name))


def _compare_models(stages: StageRecords, config: Config) -> Iterator[str]:
    """Compare the model with those that finished stages recorded."""
    models = [record.llm.model for record in stages.finished.values() if record.llm is not None]
    # A value that is not configured is the server's and known only after connecting.
    if config.engine.model_name is not None:
        for name in dict.fromkeys(model.name for model in models):
            yield from _compare("engine.model", name, config.engine.model_name)
    for revision in dict.fromkeys(model.revision for model in models):
        yield from _compare("engine.revision", revision, config.engine.revision)
    if config.engine.context is not None:
        for context in dict.fromkeys(model.context for model in models):
            yield from _compare("engine.context", context, config.engine.context)


def _compare_prompts(stages: StageRecords, context: RunContext) -> Iterator[str]:
    """Compare the prompts with those that finished stages recorded."""
    labels = stages.prompts
    # Without names, all prompts of the run would be loaded.
    if not labels:
        return
    for purpose, prompt in context.load_prompts(*labels).items():
        yield from _compare(f"prompts.{purpose}", labels[purpose], prompt.label)


def _compare_inputs(stages: StageRecords, config: Config, names: Collection[str]) -> Iterator[str]:
    """Compare the files of these settings with those that the first stage recorded."""
    if stages.retrieve is None or not stages.retrieve.inputs:
        return

    before = stages.retrieve.inputs
    now = hash_inputs(config)
    for name in names:
        # A file that is missing is an error of the stage that reads it.
        is_missing = name not in now and getattr(config, name) is not None
        if not is_missing:
            yield from _compare(name, before.get(name), now.get(name), "sha256 ", 12)


def _compare(
    name: str, before: object, now: object, what: str = "", chars: int = 100
) -> Iterator[str]:
    if before != now:
        old, new = (
            "not set" if value is None else f"{what}{value!s:.{chars}}" for value in (before, now)
        )
        yield f"  {name}: {old} → {new}"
