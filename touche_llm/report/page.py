"""What HTML pages share: how they are rendered and written, and the facts, costs, stances and measures of runs."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pandas import DataFrame

from touche_llm.config import Config
from touche_llm.data.io import open_atomic
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.measures import Evaluation, describe_coverage, describe_judging, evaluate_run, list_headline
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.significance import compare, describe_missing_intervals
from touche_llm.evaluation.stances import count_confusion
from touche_llm.pipeline.runs import format_seconds
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
    "peak memory MiB": "peak memory, MiB",
}
# The characters with Unicode's property Bidi_Control.
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HERE = Path(__file__).parent
# Letters of the runs on one page, and thereby their maximum number.
LETTERS = "ABCDEFGH"
# Fewer topics have no plot: their values are in their headings.
_MIN_PLOTTED = 3


def replace_directions(text: str) -> str:
    """Replace characters that control the direction of text.

    A document could use them to reorder what a reader sees around it.
    """
    return _BIDIRECTIONAL.sub("\N{REPLACEMENT CHARACTER}", text)


def write_page(text: str, path: Path) -> int:
    """Write a page atomically, without characters that control directions, and return its size in bytes."""
    page = replace_directions(text).encode()
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
        "prompts": ", ".join(judge.get("prompts", {}).values()),
        "ranked by": ", ".join(config.rank),
        "objective": config.criterion,
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


def list_assessor_labels(qrels: Qrels | None) -> list[str]:
    """Return all stance labels by assessors."""
    return [] if qrels is None else [label for truth in qrels.stances.values() for label in truth.values()]


def compute_label_shares(sets: Mapping[str, list[str]], labels: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the share of each label in each set; names get the size of the set, and empty sets are omitted."""
    counts = {f"{name} ({len(given):,})": Counter(given) for name, given in sets.items() if given}
    return {name: {label: count[label] / count.total() for label in labels} for name, count in counts.items()}


def plot_topics(
    runs: Sequence[tuple[str, str, str]], values: Sequence[Mapping[str, float]], baseline: int = 0
) -> dict[str, list[SimpleNamespace]]:
    """Return the points of a measure by topic, best topic of the baseline first; empty for too few topics.

    `runs` has name, mark and colour of each run, in the order of their places, `baseline` the index of one of them;
    topics that the baseline lacks come last.
    """
    topics = dict.fromkeys(topic for of_run in values for topic in of_run)
    if len(topics) < _MIN_PLOTTED:
        return {}
    return {
        topic: [
            SimpleNamespace(run=run, mark=mark, ink=ink, place=place, value=values[place][topic])
            for place, (run, mark, ink) in enumerate(runs)
            if topic in values[place]
        ]
        for topic in sorted(topics, key=lambda topic: -values[baseline].get(topic, -1.0))
    }


# A row of a data frame, by column.
Row = Mapping[str, Any]


def measure_run(run: ParsedRun, first_stage: ParsedRun, qrels: Qrels, before: str) -> SimpleNamespace:
    """Evaluate a run and its first stage, named `before`, with recall at the depth of the first stage.

    The first stage has no stances and is compared by nDCG@5 only.

    Raises:
        DataError: No document of the run is judged.
    """
    depth = max(map(len, first_stage.rankings.values()))
    found = evaluate_run("run", run, qrels, depth)
    first = evaluate_run(before, first_stage, replace(qrels, stances={}), depth)
    compared = list_headline(replace(qrels, stances={}))
    estimates = {
        evaluation.name: {name: evaluation.estimates[name] for name in compared} for evaluation in (found, first)
    }
    measures = compare_measures([found, first], compare(before, estimates) if compared else DataFrame())
    notes = found.notes + describe_judging(found, first) + note_missing_intervals(measures)
    return SimpleNamespace(
        measures=measures,
        confusion=count_confusion(run, qrels).tolist() if qrels.stances else [],
        coverage=describe_all_coverage([found]),
        notes=notes,
    )


def compare_measures(evaluations: Sequence[Evaluation], differences: DataFrame) -> list[SimpleNamespace]:
    """Combine the evaluations of several runs, measure by measure.

    Args:
        evaluations: Evaluations of the runs, all by the same qrels; the first has all measures.
        differences: Differences from the baseline, as returned by `significance.compare`.

    Returns:
        Each measure: its `name`; whether it is a `headline` measure, at the top of the page; and `runs`, one for each
        evaluation or None if it lacks the measure. A run has its rows of `Evaluation.summary` and of
        `significance.compare` (None for the baseline and for measures that are not compared), and the values
        `by_topic` of a headline measure.
    """
    changes = {(row["run"], row["measure"]): row for row in differences.to_dict("records")}
    tables = [{row["measure"]: row for row in evaluation.summary().to_dict("records")} for evaluation in evaluations]
    headlines = list_headline(evaluations[0].qrels)

    def combine(evaluation: Evaluation, summary: Row | None, name: str) -> SimpleNamespace | None:
        if summary is None:
            return None
        by_topic: dict[str, float] = {}
        if name in headlines:
            estimate = evaluation.estimates[name]
            by_topic = dict(zip(estimate.topics, estimate.by_topic().tolist(), strict=True))
        return SimpleNamespace(
            summary=summary,
            difference=changes.get((evaluation.name, name)),
            by_topic=by_topic,
        )

    return [
        SimpleNamespace(
            name=name,
            headline=name in headlines,
            runs=[combine(each, table.get(name), name) for each, table in zip(evaluations, tables, strict=True)],
        )
        for name in tables[0]
    ]


def describe_all_coverage(evaluations: Sequence[Evaluation]) -> list[str]:
    """Describe how many of the judged topics are evaluated, a line for each aspect."""
    aspects = [name.split(" ", 1)[0] for name in list_headline(evaluations[0].qrels)]
    return [f"{aspect}: {line}" for aspect in aspects for line in describe_coverage(evaluations, aspect)]


def note_missing_intervals(measures: Iterable[SimpleNamespace]) -> list[str]:
    """Return a note if a value or a difference has no interval, else nothing."""
    results = [result for measure in measures for result in measure.runs if result is not None]
    rows = [row for result in results for row in (result.summary, result.difference) if row is not None]
    return describe_missing_intervals(rows)
