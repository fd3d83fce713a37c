"""nDCG@5 and requests of each way of ranking, with an engine that answers from people's judgments with given errors.

    python -m benchmarks.ranking_methods [../shared/data/comparative] [--pool 50]

The documents of a topic are its judged passages as far as the corpus holds them, or with `--pool`
the first so many of the first stage, where a passage that nobody judged has grade 0. The first
stage is BM25 over the whole corpus; judged passages that it does not find come last. Topics without
a passage of a grade above 0 are left out. The engine is `tests.oracle_engine.OracleEngine`, without
a position bias and with one of 1.5 grades. Prints a table of `docs/explanation/ranking-methods.md`.
It compares methods and says nothing about a language model.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.figures import at_least, parse_sizes
from tests.oracle_engine import Grades, OracleEngine, judge_with, mean_ndcg, rank_with
from touche_llm.corpus.json_lines import CorpusFile
from touche_llm.corpus.store import ensure_store
from touche_llm.data.records import Comparison
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import ToucheError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.retrieval.bm25 import open_index
from touche_llm.retrieval.first_stages import RetrieverConfig
from touche_llm.tasks import get_task

ERROR_RATES = (0.0, 0.1, 0.2, 0.3)
BIASES = (0.0, 1.5)
SEEDS = 3
FIRST_STAGE = "(first stage)"
ONE_ORDER = {"pairwise": {"both_orders": False}}
THREE_SHUFFLES = {"listwise": {"shuffles": 3}}
# Name in the table, steps, settings of the ranking other than the defaults.
WAYS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("judge", "judge", {}),
    ("pairwise:10, one order", "pairwise:10", ONE_ORDER),
    ("pairwise:10", "pairwise:10", {}),
    ("pairwise:20", "pairwise:20", {}),
    ("sliding:30", "sliding:30", {}),
    ("setwise:30", "setwise:30", {}),
    ("insertion:30", "insertion:30", {}),
    ("listwise:30", "listwise:30", {}),
    ("listwise:30, 3 shuffles", "listwise:30", THREE_SHUFFLES),
    ("tournament:30", "tournament:30", {}),
    ("judge,fusion:30", "judge,fusion:30", {}),
    ("judge,pairwise:10, one order", "judge,pairwise:10", ONE_ORDER),
    ("judge,pairwise:10", "judge,pairwise:10", {}),
    ("judge,pairwise:10,fusion:10", "judge,pairwise:10,fusion:10", {}),
    ("judge,setwise:20", "judge,setwise:20", {}),
    ("judge,listwise:20", "judge,listwise:20", {}),
    ("judge,listwise:20, 3 shuffles", "judge,listwise:20", THREE_SHUFFLES),
    ("judge,tournament:20", "judge,tournament:20", {}),
)
# The way whose pairs tell how often an answer about two documents is wrong.
OF_PAIRS = "pairwise:20"

Cell = tuple[float, float]


@dataclass(slots=True)
class Measured:
    """Of one way of ranking: by bias and error rate, the figures of the seeds."""

    ndcg: dict[Cell, list[float]] = field(default_factory=dict)
    requests: dict[Cell, list[float]] = field(default_factory=dict)


def documents_of(
    folder: Path, pool: int | None
) -> tuple[dict[str, list[str]], dict[str, dict[str, float]]]:
    """The documents of each judged topic in the order of the first stage, and their grades."""
    task, retriever = get_task("comparative"), RetrieverConfig()
    grades = read_qrels({"relevance": folder / "qrels-relevance.txt"}, task).grades["relevance"]
    topics = [topic for topic in read_topics(folder / "topics.xml") if topic.id in grades]
    rankings: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as index:
        corpus = folder / "passages.jsonl.gz"
        with ensure_store(
            CorpusFile(corpus, task.read_corpus), Path(index), skip_bad_lines=False, warn=_tell
        ) as store:
            found = open_index(store, retriever.bm25, _tell).retrieve(
                topics, fields=retriever.query, depth=len(store)
            )
            for topic, candidates in zip(topics, found, strict=True):
                known = grades[topic.id]
                first = [
                    each.document_id for each in candidates if pool or each.document_id in known
                ]
                if pool is None:
                    missing = store.find_unknown(known)
                    first += [each for each in known if each not in first and each not in missing]
                if any(known.get(each) for each in first[:pool]):
                    rankings[topic.id] = first[:pool]
    return rankings, {
        topic: {each: grades[topic].get(each, 0.0) for each in ranking}
        for topic, ranking in rankings.items()
    }


async def measure(rankings: Mapping[str, Sequence[str]], grades: Grades) -> Iterator[str]:
    """The lines of the report."""
    ways = {FIRST_STAGE: Measured(), **{name: Measured() for name, _, _ in WAYS}}
    wrong: dict[Cell, list[float]] = {}
    for bias in BIASES:
        for rate in ERROR_RATES:
            cell = (bias, rate)
            ways[FIRST_STAGE].ndcg[cell] = [mean_ndcg(rankings, grades)]
            ways[FIRST_STAGE].requests[cell] = [0.0]
            # Without errors the seed changes nothing.
            for seed in range(SEEDS if rate else 1):
                _tell(f"bias {bias:g}, error rate {rate:g}, seed {seed}")
                engine = OracleEngine(grades, rate, bias, seed)
                judgments = await judge_with(engine, rankings)
                judging = len(engine.requests)
                for name, steps, settings in WAYS:
                    engine.requests.clear()
                    outcome = await rank_with(engine, rankings, steps, settings, judgments)
                    assert not outcome.failures
                    requests = outcome.requests + judging * steps.startswith("judge")
                    ways[name].ndcg.setdefault(cell, []).append(mean_ndcg(outcome.rankings, grades))
                    ways[name].requests.setdefault(cell, []).append(requests / len(rankings))
                    if name == OF_PAIRS:
                        wrong.setdefault(cell, []).append(share_wrong(outcome.comparisons, grades))
    return _report(ways, wrong)


def share_wrong(comparisons: Sequence[Comparison], grades: Grades) -> float:
    """How much of the questions about two documents of unequal grades name the worse.

    An undecided one counts half.
    """
    wrong = []
    for each in comparisons:
        first, second = (grades[each.topic_id][document] for document in each.documents)
        assert each.best is not None and each.best.probabilities is not None
        lead = each.best.probabilities["A"] - each.best.probabilities["B"]
        if first != second:
            wrong.append(0.5 if not lead else float((lead > 0) != (first > second)))
    return fmean(wrong)


def _report(ways: Mapping[str, Measured], wrong: Mapping[Cell, Sequence[float]]) -> Iterator[str]:
    cells = [(bias, rate) for bias in BIASES for rate in ERROR_RATES]
    heads = [f"{rate:.0%}{', bias' if bias else ''}" for bias, rate in cells]
    yield f"| ranking | requests per topic | {' | '.join(heads)} |"
    yield f"|---|{'--:|' * (len(cells) + 1)}"
    for name, measured in ways.items():
        requests = sorted(fmean(measured.requests[cell]) for cell in cells)
        least, most = f"{requests[0]:.0f}", f"{requests[-1]:.0f}"
        figures = " | ".join(f"{fmean(measured.ndcg[cell]):.3f}" for cell in cells)
        steps = (
            name
            if name == FIRST_STAGE
            else f"`{name.split(', ')[0]}`{name[len(name.split(', ')[0]) :]}"
        )
        yield f"| {steps} | {least if least == most else f'{least} to {most}'} | {figures} |"
    figures = " | ".join(f"{fmean(wrong[cell]):.1%}" for cell in cells)
    yield f"| *answers about two unequal documents that name the worse* | | {figures} |"
    spread = [
        stdev(figures)
        for each in ways.values()
        for figures in each.ndcg.values()
        if len(figures) > 1
    ]
    yield ""
    yield f"Standard deviation between seeds: {fmean(spread):.3f} in the mean, {max(spread):.3f} at most."


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Print the table."""
    parser = parse_sizes(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data/comparative"))
    parser.add_argument("--pool", type=at_least(2))
    options = parser.parse_args()
    try:
        rankings, grades = documents_of(options.folder, options.pool)
    except ToucheError as error:
        sys.exit(str(error))
    values = [grade for known in grades.values() for grade in known.values()]
    shares = ", ".join(f"{values.count(grade)} of grade {grade:g}" for grade in sorted(set(values)))
    sizes = sorted(len(ranking) for ranking in rankings.values())
    print(
        f"{len(rankings)} topics, {len(values):,} documents ({shares}), {sizes[0]} to {sizes[-1]} a topic, "
        f"{SEEDS} seeds\n"
    )
    for line in asyncio.run(measure(rankings, grades)):
        print(line)


if __name__ == "__main__":
    main()
