"""Small runs and judgments for the tests of the evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from touche_llm.data.records import Candidate
from touche_llm.data.runs.reading import ParsedRun, read_run
from touche_llm.evaluation.measures import Evaluation, evaluate_run
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.tasks import get_task

TASK = get_task("comparative")


def run_of(
    rankings: Mapping[str, Sequence[str]], stances: Mapping[tuple[str, str], str] | None = None
) -> ParsedRun:
    """A run with these documents, in their order, by topic."""
    return ParsedRun(
        {
            topic: [
                Candidate(topic, document, rank, float(-rank))
                for rank, document in enumerate(documents, start=1)
            ]
            for topic, documents in rankings.items()
        },
        dict(stances or {}),
    )


def qrels_of(
    grades: Mapping[str, Mapping[str, float]],
    stances: Mapping[str, Mapping[str, str]] | None = None,
) -> Qrels:
    """Judgments of relevance, and of stances where there are some."""
    plain = {topic: dict(judged) for topic, judged in grades.items()}
    labels = {topic: dict(judged) for topic, judged in (stances or {}).items()}
    return Qrels({"relevance": plain} if plain else {}, labels, TASK.stances, TASK.aspects)


def evaluated(folder: Path, run: str, qrels: str) -> Evaluation:
    """A run's text measured by relevance judgments' text."""
    (folder / "run.txt").write_text(run)
    (folder / "qrels.txt").write_text(qrels)
    return evaluate_run(
        "run",
        read_run(folder / "run.txt"),
        read_qrels({"relevance": folder / "qrels.txt"}, TASK),
        depth=10,
    )


def values_of(found: Evaluation) -> dict[str, float]:
    """The run's values by the text of the measure, without the aspect."""
    return {measure.short_text: estimate.value for measure, estimate in found.estimates.items()}
