"""Provenance of a run: its metadata, in the ir_metadata format (https://www.ir-metadata.org), and its identity.

The identity is the settings and inputs of the outputs, compared with those that would be used now.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from touche_llm import __version__
from touche_llm.config import Config, find_settings, flatten, is_one_of
from touche_llm.corpus.store import hash_corpus
from touche_llm.data.io import sha256
from touche_llm.data.settings import Scope
from touche_llm.errors import UsageError
from touche_llm.llm.settings import SECTIONS, PoolingConfig
from touche_llm.pipeline.config_file import CONFIG, is_same_task
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.run_directory import OUTPUTS, STAGES, RunDirectory
from touche_llm.ranking.steps import JUDGE
from touche_llm.tasks import get_task

# Key of the file hashes in a stage's facts, by setting; the hash of the corpus is in its description.
INPUT_FILES = "input files"
INCIDENTAL = ("index", *find_settings(Scope.DELIVERY))
OF_RETRIEVE, OF_JUDGE, OF_MODEL = map(find_settings, (Scope.RETRIEVE, Scope.JUDGE, Scope.MODEL))
# Compared with the facts of the finished stages, whatever their names: by hash, version, or as the server reports them.
_INPUTS = ("topics", "corpus", "candidates")
_BY_FACTS = (*_INPUTS, "prompts", *OF_MODEL)
# Settings whose values are the server's unless they are configured, and known only after connecting.
_OF_SERVER = tuple(f"{section}.{name}" for section in SECTIONS.values() for name in ("model", "context"))
_NOT_SET = "not set"
Stages = Mapping[str, Mapping[str, Any]]
# Key of the first stage's depth in its facts.
DEPTH = "depth"
# Key of the counts of answers, by prompt, whose labels are read from log-probabilities.
LABELS = "labels"
# Settings of an embedding model or a cross-encoder that do not belong to the method.
_POOLING_DELIVERY = {name for name, field in PoolingConfig.model_fields.items() if Scope.DELIVERY in field.metadata}
_SOFTWARE = f"touche-llm=={__version__}"
_LIBRARIES = ("bm25s", "rank-bm25", "PyStemmer", "sentencex", "jinja2", "pydantic", "aiohttp")


def begin_stage(directory: RunDirectory, config: Config, stage: str) -> None:
    """Remove the outputs of a stage and of later ones, and mark the stage as unfinished until it is recorded.

    Raises:
        DataError: The metadata is not as this program wrote it; nothing is removed.
    """
    directory.begin_stage(config, stage, build_metadata(config, directory.path, _read_stages_before(directory, stage)))


def record_stage(directory: RunDirectory, config: Config, stage: str, facts: Mapping[str, Any]) -> None:
    """Record the facts of a stage, and the peak memory so far, after all of its outputs are written."""
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
    stages = {**_read_stages_before(directory, stage), stage: {**facts, "peak memory MiB": peak}}
    directory.write_metadata(build_metadata(config, directory.path, stages))


def _read_stages_before(directory: RunDirectory, stage: str) -> dict[str, Any]:
    stages = directory.read_metadata().stages
    return {name: stages[name] for name in STAGES[: STAGES.index(stage)] if name in stages}


def build_metadata(config: Config, folder: Path, stages: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a run, with the facts of each finished stage."""
    task = get_task(config.task)
    stances = ", label stances" if task.stances else ""
    first_stage = "a given run" if config.candidates is not None else config.retriever.name
    steps = config.rank if "judge" in stages else ()
    model = stages.get("judge", {}).get("model") or "an instruction model"
    ranked = f"; {model} judges zero-shot, and the steps {', '.join(steps)} rank" if steps else ""
    return {
        "ir_metadata.version": "0.1",
        "tag": config.tag,
        # Names of people are optional; the tag identifies the team in every shared task.
        "actor": {"team": config.tag} | config.actor.model_dump(exclude_none=True, exclude={"repository"}),
        "research goal": {"description": f"{task.title}: rank zero-shot with an instruction model{stances}"},
        "platform": {
            "hardware": {"cpu": {"architecture": platform.machine(), "number of cores": os.cpu_count()}},
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
            "training data": f"thresholds of the stance: the judgments of topics {', '.join(config.fitted_on)}"
            if config.fitted_on
            else "none, the model is used as it is",
        },
        "method": {
            "name": " > ".join([first_stage, *steps]),
            "description": f"First stage: {first_stage}{ranked}.",
            "automatic": True,
            "score ties": "none, scores strictly decrease",
            **_method(config, stages),
        },
        "stages": stages,
    }


# A lookup takes 4 ms, and metadata is written twice per stage.
_version = cache(version)


def _method(config: Config, stages: Mapping[str, Any]) -> dict[str, Any]:
    retrieval = [{"name": "first stage", **_describe_first_stage(config, stages)}]
    judged = "judge" in stages
    if judged and config.pairs is not None:
        pairs = {"sentences judged": config.depth, **config.pairs.model_dump()}
        method = "touche_llm.judging.sentence_pairs"
        retrieval.append({"name": "pairs", "method": method, "reranks": "first stage", "params": pairs})
    for step in config.steps if judged else ():
        name = "pointwise" if step.name == JUDGE else step.name
        settings = {"weights": dict(config.weights)}
        if step.name != JUDGE:
            settings = getattr(config.ranking, name).model_dump(exclude=_POOLING_DELIVERY, exclude_none=True)
        last = retrieval[-1]["name"]
        method = f"touche_llm.ranking.{name}"
        retrieval.append({"name": str(step), "method": method, "reranks": last, "params": settings})
    if judged and config.stance is not None:
        stance = {"method": "touche_llm.judging.labels", "params": config.stance.model_dump(mode="json")}
        retrieval.append({"name": "stance", "reranks": "nothing: labels", **stance})
    return {"retrieval": retrieval}


def _describe_first_stage(config: Config, stages: Mapping[str, Any]) -> dict[str, Any]:
    if config.candidates is not None:
        return {"method": "run file", "params": {"file": str(config.candidates)}}
    retriever = config.retriever
    # The judged depth may be smaller than the retrieved one.
    depth = stages.get("retrieve", {}).get(DEPTH, config.first_stage_depth)
    params: dict[str, Any] = {"query": list(retriever.query), "depth": depth}
    if config.expansion.use:
        params["other queries"] = config.expansion.model_dump(exclude={"use"})
    if config.chatnoir is None:
        params |= {"k1": retriever.k1, "b": retriever.b}
    if (search_engine := config.chatnoir or config.elasticsearch) is not None:
        params["index"] = search_engine.index
    if retriever.name in ("bm25", "hybrid"):
        params["variant"] = retriever.method
    if config.dense is not None:
        params["vectors"] = config.dense.model_dump(exclude=_POOLING_DELIVERY, exclude_none=True)
    if config.sentences is not None:
        params |= config.sentences.model_dump(exclude={"pool"})
    return {"method": retriever.kind.method, "params": params}


def hash_inputs(config: Config) -> dict[str, str]:
    """Return the SHA-256 of the files that the first stage reads beside the corpus, by setting."""
    files = {"topics": config.topics, "candidates": config.candidates}
    return {name: sha256(file) for name, file in files.items() if file is not None and file.is_file()}


def check_settings(directory: RunDirectory, context: RunContext, command: str, *, overwrite: bool) -> None:
    """Raise an error if a command would replace outputs made with other settings or by another program.

    Prompts, corpus, topics and candidates are compared by content with what the finished stages recorded, and so is the
    model, since `rank` may use another one than judged. A default that changed with the program is a difference, since
    the folder names every value; a setting that the program did not have then is none.

    Args:
        directory: The run's folder.
        context: The command's context; its model and context length may still be unknown.
        command: run, retrieve or judge. Judging replaces no candidates: it may have its own settings until there are
            judgments.
        overwrite: Whether these outputs may be replaced.

    Raises:
        UsageError: Names each changed setting with its old and new value; if they may be replaced, each changed input.
        PromptError: A prompt of the run is missing or invalid.
    """
    folder, config = directory.path, context.config
    if overwrite:
        if command == "judge":  # It replaces no candidates.
            check_inputs(directory, config)
        return
    replaced = list(OUTPUTS)[command == "judge" :]
    if not directory.config_file.exists():
        for name in (name for stage in replaced for name in OUTPUTS[stage]):
            if os.path.lexists(folder / name):
                raise UsageError(
                    f"{folder / name}: without a {directory.config_file.name} beside it, this file was not written by "
                    "this program; give another folder, or replace it (`overwrite: true`)"
                )
        return
    try:
        old = directory.read_config()
    except UsageError as error:
        raise UsageError(f"{error}; give another folder, or replace it (`overwrite: true`)") from error
    facts = directory.read_metadata().stages
    made = {
        stage: facts.get(stage, {})
        for stage, files in OUTPUTS.items()
        if any((folder / file).exists() for file in files)
    }
    changes = [
        *_compare_settings(old, config, _list_relevant(made, old, command)),
        *(change for stage in replaced if stage in made for change in _compare_model(stage, made[stage], config)),
        *_compare_inputs(made, config, _INPUTS),
        *_compare_prompts(made, context),
    ]
    if changes:
        raise UsageError(
            f"{folder}: holds a run with other settings or inputs; give another folder, or replace it "
            "(`overwrite: true`; answers stay in the cache):\n" + "\n".join(changes)
        )


def check_inputs(directory: RunDirectory, config: Config) -> None:
    """Raise an error if topics or documents are not those of the candidates: the model must see what was retrieved.

    Raises:
        UsageError: Names the setting of each file that changed.
        DataError: The metadata cannot be read.
    """
    # The folder has its own copy of the candidates.
    changes = list(_compare_inputs(directory.read_metadata().stages, config, ("topics", "corpus")))
    if changes:
        raise UsageError(
            f"{directory}: the model would see other inputs than the first stage had; restore these "
            "files, or repeat all stages with `touche-llm run --overwrite`:\n" + "\n".join(changes)
        )


def _describe(name: str, before: object, now: object) -> str:
    return f"  {name}: {before!s:.100} → {now!s:.100}"


def _list_relevant(made: Collection[str], config: Config, command: str) -> tuple[str, ...] | None:
    """Return the settings that determine the files of these stages; None for all settings."""
    if "rank" in made:
        return None
    if "judge" in made:
        return (*OF_RETRIEVE, *OF_JUDGE)
    if "retrieve" not in made:
        return ()
    if command == "judge":
        return OF_RETRIEVE
    return (*OF_RETRIEVE, "depth", *(("sampling",) if config.expansion.use else ()))


def _compare_settings(old: Config, new: Config, relevant: tuple[str, ...] | None) -> Iterator[str]:
    before, now = (
        {
            name: value
            for name, value in flatten(config.model_dump(mode="json") | {"topic": sorted(config.topic)}).items()
            if value not in (None, {})
            and (relevant is None or is_one_of(name, relevant))
            and not is_one_of(name, (*INCIDENTAL, *_BY_FACTS))
        }
        for config in (old, new)
    )
    for name in dict.fromkeys((*before, *now)):
        first, second = before.get(name, _NOT_SET), now.get(name, _NOT_SET)
        is_unknown = name in _OF_SERVER and _NOT_SET in (first, second)
        if first != second and not is_unknown and not (name == "task" and is_same_task(first, second)):
            yield _describe(name, first, second)


def _compare_model(stage: str, facts: Mapping[str, Any], config: Config) -> Iterator[str]:
    engine = config.engine
    for setting, now in zip(OF_MODEL, (engine.model_name, engine.revision, engine.context), strict=True):
        before = facts.get(setting.removeprefix("engine."))
        # A value that is not configured is the server's and known only after connecting.
        if None not in (before, now) and before != now:
            yield _describe(setting, f"{before} ({stage})", now)


def _compare_inputs(stages: Stages, config: Config, names: Iterable[str]) -> Iterator[str]:
    """Compare the files of these settings with those that the first stage found."""
    before, now = _section(stages, "retrieve", INPUT_FILES), hash_inputs(config)
    if digest := _section(stages, "retrieve", "corpus").get("sha256"):
        before["corpus"] = digest
        if config.index is not None and (digest := hash_corpus(config.corpus, config.index)) is not None:
            now["corpus"] = digest
    for name in names:
        # A file that is gone is an error of the stage that reads it; a search engine keeps its documents.
        is_unknown = name not in now and (name == "corpus" or getattr(config, name) is not None)
        if before and not is_unknown and before.get(name) != now.get(name):
            yield _describe(name, *(f"sha256 {hashes.get(name, _NOT_SET)!s:.12}" for hashes in (before, now)))


def _compare_prompts(stages: Stages, context: RunContext) -> Iterator[str]:
    before = {purpose: label for stage in stages for purpose, label in _section(stages, stage, "prompts").items()}
    for purpose, prompt in (context.load_prompts(*before) if before else {}).items():
        if prompt.label != before[purpose]:
            yield _describe(f"prompts.{purpose}", before[purpose], prompt.label)


def _section(stages: Stages, stage: str, name: str) -> dict[str, Any]:
    """Return a section of a stage's facts; empty if none was recorded."""
    section = stages.get(stage, {}).get(name)
    return dict(section) if isinstance(section, Mapping) else {}
