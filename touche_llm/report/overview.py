"""What a report says of a run as a whole, judgments of people apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from touche_llm.config import Config
from touche_llm.data.records import Candidate
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.ranking.steps import JUDGE
from touche_llm.report.records import Left, Row
from touche_llm.tasks.base import Task

# Final ranks that are looked at together, and the bands of ranks that their documents came from; the last is open.
GROUPS = ((1, 5), (6, 10), (11, 20))
BANDS = (5, 10, 20, 50, 100)
# Candidates of each topic that are looked for in the run.
_TOP = 5
_COSTS = ("seconds", "judgments per second", "documents cut", "peak memory MiB")
_SPENT = ("asked", "cache_hits", "prompt_tokens", "prefix_cached_tokens", "completion_tokens", "cached_prompt_tokens")


def facts_of(config: Config, task: Task, stages: Mapping[str, Mapping[str, Any]], run: ParsedRun) -> dict[str, str]:
    """What a run is, by name."""
    judge = stages.get("judge", {})
    engine = config.chatnoir or config.elasticsearch
    corpus = config.corpus or config.index or (engine.index if engine is not None else "")
    facts = {
        "task": task.title,
        "model": " ".join(str(judge.get(name, "")) for name in ("model", "revision")).strip(),
        "engine": str(judge.get("engine", "")),
        "ranked by": ", ".join(config.rank),
        "for": config.aim,
        "corpus": str(corpus),
        "topics": f"{len(run.rankings):,}",
        "lines": f"{sum(map(len, run.rankings.values())):,}",
        "tag": config.tag,
    }
    return {name: value for name, value in facts.items() if value}


def cost_of(stage: Mapping[str, Any]) -> dict[str, float | None]:
    """What a stage took, by name; None for what its metadata does not tell."""
    spent = stage.get("requests")
    figures = {name: stage.get(name) for name in _COSTS}
    figures |= {name: spent.get(name) if isinstance(spent, dict) else None for name in _SPENT}
    return {name: value if isinstance(value, int | float) else None for name, value in figures.items()}


def moved(
    topics: Mapping[str, list[Row]], candidates: Mapping[str, list[Candidate]]
) -> dict[str, dict[str, list[int]]]:
    """Where the first lines of all topics came from, and where their first candidates went to; see `Report.moved`."""
    counted: dict[str, dict[str, list[int]]] = {}

    def count(way: str, rank: int, other: float | None) -> None:
        group = next((f"{least}\N{EN DASH}{most}" for least, most in GROUPS if least <= rank <= most), None)
        if group is not None and other is not None:
            counts = counted.setdefault(way, {}).setdefault(group, [0] * (len(BANDS) + 1))
            counts[sum(other > band for band in BANDS)] += 1

    for topic, rows in topics.items():
        for row in rows:
            count("candidates", row.rank, row.first)
            count(JUDGE, row.rank, row.judge)
        ranks = {row.document_id: row.rank for row in rows}
        for candidate in candidates.get(topic, []):
            count("run", candidate.rank, ranks.get(candidate.document_id, math.inf))
    return counted


def left(candidates: list[Candidate], rows: list[Row], shown: int, qrels: Qrels | None) -> list[Left]:
    """What stood among a topic's first 5 candidates and is not among the run's first lines, those that are shown."""
    ranks = {row.document_id: row.rank for row in rows}
    return [
        Left(
            each.document_id, each.rank, ranks.get(each.document_id), people_of(qrels, each.topic_id, each.document_id)
        )
        for each in candidates[:_TOP]
        if ranks.get(each.document_id, math.inf) > shown
    ]


def imputed_of(stages: Mapping[str, Mapping[str, Any]]) -> int:
    """How many stances of the run are no model's, by its metadata."""
    imputed = stages.get("rank", {}).get("imputed stances", 0)
    return imputed if isinstance(imputed, int) else 0


def people_of(qrels: Qrels | None, topic_id: str, document_id: str) -> dict[str, str]:
    """What people said of a document: grades by aspect, and the stance."""
    if qrels is None:
        return {}
    found = {
        aspect: f"{grades[topic_id][document_id]:g}"
        for aspect, grades in qrels.grades.items()
        if document_id in grades.get(topic_id, {})
    }
    label = qrels.stances.get(topic_id, {}).get(document_id)
    return found if label is None else {**found, STANCE: label}


def label_sets(run: ParsedRun) -> dict[str, list[str]]:
    """The labels that the run gave: all of them, and those of the first documents of each topic."""
    sets = {"all lines": list(run.stances.values())}
    for most in (5, 20):
        heads = [each for ranking in run.rankings.values() for each in ranking[:most]]
        sets[f"first {most}"] = [
            label for each in heads if (label := run.stances.get((each.topic_id, each.document_id))) is not None
        ]
    return sets


def people_labels(qrels: Qrels | None) -> list[str]:
    """The labels that people gave."""
    return [] if qrels is None else [label for truth in qrels.stances.values() for label in truth.values()]


def shares_of(sets: Mapping[str, list[str]], labels: Iterable[str]) -> dict[str, dict[str, float]]:
    """How often each label was given in sets of them, which are named with their sizes; empty ones are left out."""
    counts = {f"{name} ({len(given):,})": Counter(given) for name, given in sets.items() if given}
    return {name: {label: count[label] / count.total() for label in labels} for name, count in counts.items()}
