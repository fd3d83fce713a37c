"""The default weights on recorded answers, beside the best ones of a grid on left-out topics.

    python -m benchmarks.defaults FOLDER

FOLDER holds the topics, passages and qrels of the comparative task, and a table of answers,
`stand_in.tsv`: `topic`, `document`, an expected grade for each aspect. BM25 retrieves as many
passages as the answers cover; the program's own functions rank and measure. Every measure has its
share of judged documents beside it, and a second view, in which unjudged documents are removed from
the ranking before it is cut off.

Weights are given as shares: `quality` of relevance and quality together (relevance has the rest),
and `first stage` on top of these. Leave-one-out takes the best cell of a grid on all other topics,
and measures it on the one left out. A difference between that value and the grid's best is what the
choice owes to the topics that it was made on.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import parse_sizes
from touche_llm import open_corpus, read_topics, retrieve
from touche_llm.api.progress import SilentProgress
from touche_llm.data.measure import CUTOFF, make_headline_ndcg
from touche_llm.data.records import Candidate, Judgment, ScoredDocument
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import ToucheError
from touche_llm.evaluation.measures import estimate_grades
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.evaluation.significance import compute_interval, estimate_mean
from touche_llm.ranking.scores import rank_by_first_stage, rank_by_judgment
from touche_llm.tasks import get_task
from touche_llm.tasks.parts import FIRST_STAGE, Objective

TASK = get_task("comparative")
ASPECTS = tuple(TASK.aspects)
NDCG = f"nDCG@{CUTOFF}"
JUDGED = f"judged@{CUTOFF}"
CONDENSED = f"condensed {NDCG}"
MEASURES = (NDCG, CONDENSED)
QUALITY = (0.0, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FIRST = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)

Answers = Mapping[str, Mapping[str, Judgment]]
# By aspect and measure, the values of the topics, (topics,).
Values = dict[tuple[str, str], NDArray[np.float64]]
Shares = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Material:
    """Answers of the judged topics, what they are ranked from, and people's judgments."""

    answers: Answers
    first_stage: Mapping[str, list[ScoredDocument]]
    qrels: Qrels

    def measure(self, weights: Mapping[str, float]) -> Values:
        """Rank by the answers with these weights, and measure each topic."""
        return self.measure_rankings(
            {
                topic: rank_by_judgment(
                    ranking, self.answers[topic], weights, TASK.aspects
                ).ranking.fill_scores()
                for topic, ranking in self.first_stage.items()
            }
        )

    def measure_rankings(self, rankings: Mapping[str, Sequence[ScoredDocument]]) -> Values:
        """Measure rankings of all topics in both views."""
        values: Values = {}
        for aspect, grades in self.qrels.grades.items():
            complete, condensed = _to_run(rankings), _to_run(rankings, grades)
            ndcg = make_headline_ndcg(aspect)
            of_complete = estimate_grades(complete, aspect, grades, CUTOFF)
            of_condensed = estimate_grades(condensed, aspect, grades, CUTOFF)
            values[aspect, NDCG] = of_complete[ndcg].by_topic()
            values[aspect, JUDGED] = of_complete[ndcg.judged].by_topic()
            values[aspect, CONDENSED] = of_condensed[ndcg].by_topic()
        return values


def _to_run(
    rankings: Mapping[str, Sequence[ScoredDocument]],
    judged: Mapping[str, Mapping[str, float]] | None = None,
) -> ParsedRun:
    """Return a run of the rankings, or of their judged documents only."""
    candidates = {}
    for topic, ranking in rankings.items():
        kept = [
            scored for scored in ranking if judged is None or scored.document_id in judged[topic]
        ]
        candidates[topic] = [
            Candidate(topic, each.document_id, rank, each.score)
            for rank, each in enumerate(kept, 1)
        ]
    return ParsedRun(candidates, {})


def read_answers(path: Path) -> dict[str, dict[str, Judgment]]:
    """Read the grades of a table of answers as judgments by topic and document."""
    answers: dict[str, dict[str, Judgment]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            grades = {aspect: float(row[aspect]) for aspect in ASPECTS}
            topic, document = row["topic"], row["document"]
            judgment = Judgment(
                topic_id=topic,
                document_id=document,
                grades=grades,
                stance="",
                source="value",
                prompt=path.name,
            )
            answers.setdefault(topic, {})[document] = judgment
    return answers


def read_material(folder: Path) -> Material:
    """Read answers and qrels, and retrieve the documents of the answers."""
    answers = folder / "stand_in.tsv"
    known = read_answers(answers)
    qrels = read_qrels({aspect: folder / f"qrels-{aspect}.txt" for aspect in ASPECTS}, task=TASK)
    topics = [topic for topic in read_topics(folder / "topics.xml") if topic.id in known]
    depth = max(map(len, known.values()))
    with (
        tempfile.TemporaryDirectory() as index,
        open_corpus(
            folder / "passages.jsonl.gz",
            task=TASK.name,
            index=index,
            skip_bad_lines=True,
            progress=SilentProgress(),
        ) as corpus,
    ):
        rankings = retrieve(topics, corpus, depth=depth, progress=SilentProgress()).rankings
    missing = sum(
        item.document_id not in known[topic]
        for topic, ranking in rankings.items()
        for item in ranking
    )
    if missing:
        sys.exit(
            f"{answers}: lacks {missing} of the first {depth} passages; give the answers to these"
        )
    return Material(
        known,
        {topic: rank_by_first_stage(list(ranking)) for topic, ranking in rankings.items()},
        qrels,
    )


def to_weights(shares: Shares) -> dict[str, float]:
    """Return the weights of a cell of the grid."""
    quality, first = shares
    return {"relevance": 1.0 - quality, "quality": quality, FIRST_STAGE: first}


def to_shares(weights: Mapping[str, float]) -> Shares:
    """Return the shares of weights, the inverse of `to_weights`."""
    graded = sum(weights[aspect] for aspect in ASPECTS)
    return weights["quality"] / graded, weights[FIRST_STAGE] / graded


def aim(values: Values, objective: Objective, measure: str) -> NDArray[np.float64]:
    """Return what an objective wants to be high, by topic: one aspect's measure, or the mean of both."""
    wanted = ASPECTS if objective == "both" else (objective,)
    mean: NDArray[np.float64] = np.mean([values[aspect, measure] for aspect in wanted], axis=0)
    return mean


def leave_one_out(cells: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[int]]:
    """Take the best of (cells, topics) on all topics but one.

    Return each left-out topic's value and cell.
    """
    others = cells.sum(axis=1, keepdims=True) - cells
    taken = others.argmax(axis=0)
    return cells[taken, np.arange(cells.shape[1])], taken.tolist()


def report_weights(material: Material) -> Iterator[str]:
    """Yield the lines: the defaults of each objective, and the choice of one share or both on left-out topics."""
    yield (
        "| ranking | "
        + " | ".join(f"{aspect} {name}" for aspect in ASPECTS for name in (*MEASURES, JUDGED))
        + " |"
    )
    yield "|---|" + "--:|" * (len(ASPECTS) * 3)
    yield _row("first stage", material.measure_rankings(material.first_stage))
    objectives: tuple[Objective, ...] = get_args(Objective)
    for objective in objectives:
        yield _row(f"objective {objective}, defaults", material.measure(TASK.objectives[objective]))
    yield ""
    yield "| objective, default | searched | measure | best | its value | left-out topics | less the default's |"
    yield "|---|---|---|---|--:|--:|--:|"
    grid = {
        (quality, first): material.measure(to_weights((quality, first)))
        for quality in QUALITY
        for first in FIRST
    }
    for objective in objectives:
        quality, first = default = to_shares(TASK.objectives[objective])
        baseline = material.measure(to_weights(default))
        searches = {
            "quality": {
                (share, first): material.measure(to_weights((share, first))) for share in QUALITY
            },
            "first stage": {
                (quality, share): material.measure(to_weights((quality, share))) for share in FIRST
            },
            "both": grid,
        }
        for name, cells in searches.items():
            for measure in MEASURES:
                values = np.array([aim(of_cell, objective, measure) for of_cell in cells.values()])
                held_out, _ = leave_one_out(values)
                best = int(values.mean(axis=1).argmax())
                found = f"{_name(list(cells)[best])} | {values[best].mean():.4f} | {held_out.mean():.4f}"
                difference = _difference(held_out - aim(baseline, objective, measure))
                yield f"| {objective}, {_name(default)} | {name} | {measure} | {found} | {difference} |"


def _row(name: str, values: Values) -> str:
    columns = [
        fmean(values[aspect, measure]) for aspect in ASPECTS for measure in (*MEASURES, JUDGED)
    ]
    return f"| {name} | " + " | ".join(f"{value:.4f}" for value in columns) + " |"


def _difference(by_topic: NDArray[np.float64]) -> str:
    low, high = compute_interval(estimate_mean(dict(enumerate(by_topic.tolist()))))  # type: ignore[arg-type]
    return f"{by_topic.mean():+.4f} ({low:+.3f} to {high:+.3f})"


def _name(shares: Shares) -> str:
    return f"{shares[0]:.2f}/{shares[1]:.2f}"


def main() -> None:
    """Print the report."""
    parser = parse_sizes(__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        material = read_material(options.folder)
    except (OSError, ToucheError) as error:
        sys.exit(str(error))
    for line in report_weights(material):
        print(line)


if __name__ == "__main__":
    main()
