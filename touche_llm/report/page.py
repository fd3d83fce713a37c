"""What HTML pages share: how they are rendered and written, and the facts, costs and stances of a run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from touche_llm.config import Config
from touche_llm.data.io import open_atomic
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import Qrels
from touche_llm.pipeline.run_directory import GENERATOR
from touche_llm.pipeline.run_overview import format_seconds
from touche_llm.tasks.task import Task

# Titles of the costs of a stage, by their names in its metadata.
COSTS = {
    "seconds": "time",
    "requests": "requests",
    "cache_hits": "answers from the cache",
    "prompt_tokens": "prompt tokens",
    "prefix_cached_tokens": "prompt tokens from the prefix cache",
    "completion_tokens": "completion tokens",
    "cached_prompt_tokens": "prompt tokens saved by the answer cache",
    "documents cut": "truncated documents",
    "judgments per second": "judgments per second",
    "peak memory MiB": "peak memory, MiB",
}
# The characters with Unicode's property Bidi_Control.
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HERE = Path(__file__).parent


def write_page(text: str, path: Path) -> int:
    """Write a page atomically, and return its size in bytes.

    Characters that control the direction of text are replaced, since a document could use them to reorder what a reader
    sees around it.
    """
    page = _BIDIRECTIONAL.sub("\N{REPLACEMENT CHARACTER}", text).encode()
    with open_atomic(path) as stream:
        stream.write(page)
    return len(page)


def create_environment() -> Environment:
    """Create the Jinja environment of the page templates, which escapes every value.

    The layout sets a content security policy that allows only its own style and script, by their hashes. Nothing in a
    document can run, and nothing is fetched.
    """
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    environment.globals |= {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'",
        "seconds": format_seconds,
        # Characters of each document text: 1,000 documents stay below 10 MB.
        "limit": 10_000,
        # Trusted: files of this package.
        "generator": Markup(GENERATOR),
        "style": Markup(style),
        "script": Markup(script),
    }
    return environment


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def describe_run(config: Config, task: Task, stages: Mapping[str, Mapping[str, Any]], run: ParsedRun) -> dict[str, str]:
    """Return the facts about a run, by name; empty ones are omitted."""
    judge = stages.get("judge", {})
    engine = config.chatnoir or config.elasticsearch
    corpus = config.dataset or config.corpus or config.index or (engine.index if engine is not None else "")
    facts = {
        "task": task.title,
        "model": " ".join(str(judge.get(name, "")) for name in ("model", "revision")).strip(),
        "engine": str(judge.get("engine", "")),
        "ranked by": ", ".join(config.rank),
        "for": config.objective,
        "corpus": str(corpus),
        "topics": f"{len(run.rankings):,}",
        "lines": f"{sum(map(len, run.rankings.values())):,}",
        "tag": config.tag,
    }
    return {name: value for name, value in facts.items() if value}


def extract_costs(stage: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the costs of a stage, by name; None where its metadata lack them."""
    usage = stage.get("requests")
    values = {**stage, **usage} if isinstance(usage, dict) else stage
    return {name: value if isinstance(value := values.get(name), int | float) else None for name in COSTS}


def collect_labels(run: ParsedRun) -> dict[str, list[str]]:
    """Return the stance labels of the run: of all lines, and of the top 5 and 20 of each topic."""
    sets = {"all lines": list(run.stances.values())}
    for cutoff in (5, 20):
        heads = [line for ranking in run.rankings.values() for line in ranking[:cutoff]]
        sets[f"first {cutoff}"] = [
            label for line in heads if (label := run.stances.get((line.topic_id, line.document_id))) is not None
        ]
    return sets


def collect_assessor_labels(qrels: Qrels | None) -> list[str]:
    """Return all stance labels by assessors."""
    return [] if qrels is None else [label for truth in qrels.stances.values() for label in truth.values()]


def compute_label_shares(sets: Mapping[str, list[str]], labels: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the share of each label in each set; names get the size of the set, and empty sets are omitted."""
    counts = {f"{name} ({len(given):,})": Counter(given) for name, given in sets.items() if given}
    return {name: {label: count[label] / count.total() for label in labels} for name, count in counts.items()}
