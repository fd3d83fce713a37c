"""Provenance of a run, in the ir_metadata format (https://www.ir-metadata.org), one file beside the run."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from touche_llm import __version__
from touche_llm.config import Config
from touche_llm.data.settings import Scope
from touche_llm.llm.settings import PoolingConfig
from touche_llm.pipeline.config_file import CONFIG
from touche_llm.ranking.steps import JUDGE
from touche_llm.retrieval import elasticsearch as elastic
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task
from touche_llm.text import analysis

# Key of the first stage's depth in its facts.
DEPTH = "depth"
# Key of the counts of answers, by prompt, whose labels are read from log-probabilities.
LABELS = "labels"
# Settings of an embedding model or a cross-encoder that do not belong to the method.
_POOLING_DELIVERY = {name for name, field in PoolingConfig.model_fields.items() if Scope.DELIVERY in field.metadata}
_SOFTWARE = f"touche-llm=={__version__}"
_LIBRARIES = ("bm25s", "rank-bm25", "PyStemmer", "sentencex", "jinja2", "pydantic", "aiohttp")


def measure_peak_memory() -> int:
    """Return the peak memory of this process so far, in MiB."""
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)


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
            "training data": _training(config),
        },
        "method": {
            "name": " > ".join([first_stage, *steps]),
            "description": f"First stage: {first_stage}{ranked}.",
            "automatic": True,
            "score ties": "none, scores strictly decrease",
            **_method(config, task, stages),
        },
        "stages": stages,
    }


@cache
def _version(name: str) -> str:
    # A lookup takes 4 ms, and metadata is written twice per stage.
    return version(name)


def _training(config: Config) -> str:
    if not config.fitted_on:
        return "none, the model is used as it is"
    fitted = ", ".join(config.fitted_on)
    return f"the model is used as it is; thresholds of the stance are fitted on the judgments of topics {fitted}"


def _method(config: Config, task: Task, stages: Mapping[str, Any]) -> dict[str, Any]:
    judged = "judge" in stages
    retriever = config.retriever
    first: dict[str, Any] = {"name": "first stage", "method": retriever.kind.method}
    retrieval = [first]
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
    if config.candidates is not None:
        first |= {"method": "run file", "params": {"file": str(config.candidates)}}
        return {"retrieval": retrieval}
    # The judged depth may be smaller than the retrieved one.
    depth = stages.get("retrieve", {}).get(DEPTH, config.first_stage_depth)
    params: dict[str, Any] = {"query": list(retriever.query), "depth": depth}
    if config.expansion.use:
        params["other queries"] = config.expansion.model_dump(exclude={"use"})
    if config.chatnoir is not None:
        first["params"] = {"index": config.chatnoir.index, **params}
        return {"retrieval": retrieval}
    params |= {"k1": retriever.k1, "b": retriever.b}
    if config.elasticsearch is not None:
        first["params"] = {"index": config.elasticsearch.index, **params}
        return {"indexing": {"tokenizer": elastic.ANALYSIS}, "retrieval": retrieval}
    if retriever.name in ("bm25", "hybrid"):
        params["variant"] = retriever.method
    if config.dense is not None:
        params["vectors"] = config.dense.model_dump(exclude=_POOLING_DELIVERY, exclude_none=True)
    if config.sentences is not None:
        params |= config.sentences.model_dump(exclude={"pool"})
    first["params"] = params
    indexing = {
        "tokenizer": analysis.NAME,
        "stemmer": "Snowball English",
        "stopwords": "Lucene English, 33 words",
    }
    return {"indexing": indexing, "retrieval": retrieval}
