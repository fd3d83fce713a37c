"""Summaries of a run: facts, costs, rank movements and label shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from touche_llm.config import Config
from touche_llm.data.records import Candidate
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.evaluation.qrels import STANCE, Qrels
from touche_llm.evaluation.stance_measures import round_grade
from touche_llm.ranking.steps import JUDGE
from touche_llm.report.records import DocumentRow, DroppedCandidate
from touche_llm.tasks.base import Task

# Groups of final ranks, and the upper ends of the bands of ranks from which their documents came; one more is open.
GROUPS = ((1, 5), (6, 10), (11, 20))
BANDS = (5, 10, 20, 50, 100)
# Number of top candidates of each topic whose loss is reported.
_TOP = 5
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


def count_movements(
    topics: Mapping[str, list[DocumentRow]], candidates: Mapping[str, list[Candidate]]
) -> dict[str, dict[str, list[int]]]:
    """Count how the top documents of all topics moved between the stages, as in `RunReport.movements`."""
    counted: dict[str, dict[str, list[int]]] = {}

    def count(way: str, rank: int, other: float | None) -> None:
        group = next((f"{low}\N{EN DASH}{high}" for low, high in GROUPS if low <= rank <= high), None)
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


def find_dropped(
    candidates: list[Candidate], rows: list[DocumentRow], shown: int, qrels: Qrels | None
) -> list[DroppedCandidate]:
    """Return the top 5 candidates of a topic that are not among the first `shown` rows."""
    ranks = {row.document_id: row.rank for row in rows}
    return [
        DroppedCandidate(
            candidate.document_id,
            candidate.rank,
            ranks.get(candidate.document_id),
            get_assessments(qrels, candidate.topic_id, candidate.document_id),
        )
        for candidate in candidates[:_TOP]
        if ranks.get(candidate.document_id, math.inf) > shown
    ]


def get_assessments(qrels: Qrels | None, topic_id: str, document_id: str) -> dict[str, str]:
    """Return the judgments of a document by assessors: grades by aspect, and the stance."""
    if qrels is None:
        return {}
    found = {
        aspect: f"{grades[topic_id][document_id]:g}"
        for aspect, grades in qrels.grades.items()
        if document_id in grades.get(topic_id, {})
    }
    label = qrels.stances.get(topic_id, {}).get(document_id)
    return found if label is None else {**found, STANCE: label}


def find_differences(
    grades: Mapping[str, float], stance: str, people: Mapping[str, str], task: Task
) -> list[str] | None:
    """Return the aspects in which the model differs from the assessors, grades after rounding; None unless both judged.

    Args:
        grades: Grades of the model; empty without a judgment.
        stance: Stance in the run.
        people: Judgments by assessors, see `get_assessments`.
        task: Task, with the scales of both.
    """
    both = [aspect for aspect in people if aspect in grades or (aspect == STANCE and grades and stance)]

    def is_equal(aspect: str) -> bool:
        if aspect == STANCE:
            return people[aspect] == stance
        grade = task.scales[aspect].convert(grades[aspect], task.qrels_scales[aspect])
        return round_grade(grade) == round_grade(float(people[aspect]))

    return [aspect for aspect in both if not is_equal(aspect)] if both else None


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
