"""How sure a estimate is: intervals, tests of differences, and what unjudged documents could change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touche_llm.data.records import HIGHEST_GRADE, Candidate
from touche_llm.errors import UsageError
from touche_llm.evaluation.estimate import Array, Estimate

CONFIDENCE = 0.95
RESAMPLES = 10_000
SEED = 0
# Resamples that are in memory at a time.
_BATCH = 500
# Values of topics that differ by less are equal: they are sums of a few terms, taken in any order.
_TIE = 1e-9
_DECIMALS = 12

Indices = NDArray[np.intp]


def compute_interval(estimate: Estimate, seed: int = SEED) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval: topics are drawn with replacement, a topic's documents stay together.

    NaN and NaN for fewer than two topics, which say nothing of others.
    """
    return _interval(estimate.counts, estimate.formula, seed)


def compare(
    baseline: str,
    runs: Mapping[str, Mapping[str, Estimate]],
    *,
    common: Mapping[str, Mapping[str, tuple[Estimate, Estimate]]] | None = None,
    seed: int = SEED,
) -> pd.DataFrame:
    """How each run differs from one of them, by each measure, over the topics that take part in both.

    Args:
        baseline: the name of the run that the others are held against.
        runs: the estimates of each run, by name and measure; all have the same measures.
        common: by run and measure, the run's and the baseline's estimate over the documents that both have; they take
            the places of those in `runs`.
        seed: of the resamples.

    Returns:
        a row for each other run and measure, with the columns `run`, `baseline`, `measure`, `value` and
        `baseline_value` (over the topics of both, so that they need not be those of the runs alone), `difference` (the
        first less the second), `low` and `high` (95 % percentile bootstrap interval over topics), `p` (two-sided
        paired randomisation test: each topic's two results change places or not, at random; exact where there are
        few topics), `p_holm` (Holm's correction over the runs that are compared by this measure), `wins`, `ties`
        and `losses` (topics), `n` (topics) and `documents` (of the estimates in `common`, else NaN). Undefined values,
        as for too few topics, are NaN.

    Raises:
        UsageError: the baseline is not there, there is no other run, or the runs have different measures.
    """
    if baseline not in runs:
        raise UsageError(f"the baseline {baseline!r} is none of the runs: {', '.join(runs)}")
    if len(runs) < 2:
        raise UsageError(f"nothing to compare {baseline!r} with; give another run")
    measures = list(runs[baseline])
    for name, estimates in runs.items():
        if list(estimates) != measures:
            raise UsageError(
                f"run {name!r} has the measures {', '.join(estimates)}, and {baseline!r} has {', '.join(measures)}; "
                "evaluate both with the same qrels and one depth"
            )
    rows = []
    for measure in measures:
        for name, estimates in runs.items():
            if name == baseline:
                continue
            pair = (common or {}).get(name, {}).get(measure)
            ours, theirs = pair or (estimates[measure], runs[baseline][measure])
            row = {"run": name, "baseline": baseline, "measure": measure} | _difference(ours, theirs, seed)
            rows.append(row | {"documents": ours.documents if pair else float("nan")})
    table = pd.DataFrame(rows)
    # A row of this for each measure, as the table's rows are in the order of the measures.
    corrected = [_holm(p) for p in table["p"].to_numpy().reshape(len(measures), len(runs) - 1)]
    table.insert(table.columns.get_loc("p") + 1, "p_holm", np.concatenate(corrected))
    return table


def compute_bounds(
    rankings: Mapping[str, Sequence[Candidate]], judged: Mapping[str, Mapping[str, float]], cutoff: int
) -> pd.DataFrame:
    """How low and how high nDCG could be if the unjudged documents at the top of a run were judged.

    Each of the unjudged documents among the first `cutoff` of a topic is given each of the grades 0 to 3, in all
    combinations; all other documents stay as they are. With each combination nDCG is computed as ever, its ideal
    ranking holding the new grades too. For this reason the lowest value need not be the one with unjudged = 0: a
    good document that comes late raises the ideal by more than the ranking.

    Args:
        rankings: by topic, the best first.
        judged: grades by topic and document; those below 0 count 0.
        cutoff: of nDCG, 5 at most, since 4^cutoff combinations are tried.

    Returns:
        a row for each judged topic, with the columns `topic`, `unjudged` (documents among the first `cutoff`),
        `lowest` and `highest`. The means of the last two are the bounds of the mean.
    """
    weights = 1.0 / np.log2(np.arange(cutoff) + 2.0)
    rows = []
    for topic, grades in judged.items():
        top = [candidate.document_id for candidate in rankings.get(topic, [])[:cutoff]]
        unknown = np.array([document not in grades for document in top], dtype=bool)
        known = np.array([max(grades.get(document, 0.0), 0.0) for document in top])
        best = sorted((max(grade, 0.0) for grade in grades.values()), reverse=True)[:cutoff]
        given = np.array(list(product(range(HIGHEST_GRADE + 1), repeat=int(unknown.sum()))), dtype=np.float64)
        gains = known @ weights[: len(top)] + given @ weights[: len(top)][unknown]
        pool = np.concatenate([np.tile(best, (len(given), 1)), given], axis=1)
        ideal = -np.sort(-pool, axis=1)[:, :cutoff]
        ideals = ideal @ weights[: ideal.shape[1]]
        values = np.divide(gains, ideals, out=np.zeros_like(gains), where=ideals > 0.0)
        rows.append((topic, int(unknown.sum()), float(values.min()), float(values.max())))
    return pd.DataFrame(rows, columns=["topic", "unjudged", "lowest", "highest"])


def _difference(run: Estimate, baseline: Estimate, seed: int) -> dict[str, Any]:
    other = set(baseline.topics)
    topics = [topic for topic in run.topics if topic in other]
    if not topics:
        undefined = dict.fromkeys(("value", "baseline_value", "difference", "low", "high", "p"), float("nan"))
        return undefined | {"wins": 0, "ties": 0, "losses": 0, "n": 0}
    ours, theirs = run.select(topics), baseline.select(topics)
    width = ours.shape[1]

    def difference(counts: Array) -> Array:
        return run.formula(counts[..., :width]) - baseline.formula(counts[..., width:])

    both = np.concatenate([ours, theirs], axis=1)
    low, high = _interval(both, difference, seed)
    by_topic = run.formula(ours) - baseline.formula(theirs)
    wins, losses = int((by_topic > _TIE).sum()), int((by_topic < -_TIE).sum())
    value, baseline_value = (
        float(each.formula(counts.sum(axis=0))) for each, counts in ((run, ours), (baseline, theirs))
    )
    return {
        "value": value,
        "baseline_value": baseline_value,
        "difference": value - baseline_value,
        "low": low,
        "high": high,
        "p": _randomisation(run, ours, theirs, seed),
        "wins": wins,
        "ties": len(topics) - wins - losses,
        "losses": losses,
        "n": len(topics),
    }


def _interval(counts: Array, formula: Callable[[Array], Array], seed: int) -> tuple[float, float]:
    if len(counts) < 2:
        return float("nan"), float("nan")
    # scipy.stats.bootstrap draws the same resamples (a test compares the intervals) in as many lines. It makes
    # `evaluate` of 50 topics of 1,000 documents 1.8 times as expensive: 2.24 s of processor time, not 1.26 s.
    times = _drawn(RESAMPLES, len(counts), seed)
    values = np.concatenate([formula(some @ counts) for some in np.split(times, range(_BATCH, RESAMPLES, _BATCH))])
    low, high = np.quantile(values, ((1.0 - CONFIDENCE) / 2.0, (1.0 + CONFIDENCE) / 2.0))
    return float(low), float(high)


@lru_cache(maxsize=4)
def _drawn(resamples: int, rows: int, seed: int) -> NDArray[np.int32]:
    """How often each of so many rows is drawn with replacement, in each resample: (resamples, rows)."""
    generator = np.random.default_rng(seed)
    times = np.empty((resamples, rows), dtype=np.int32)
    for start in range(0, resamples, _BATCH):
        some = times[start : start + _BATCH]
        some[:] = _counted(generator.integers(0, rows, some.shape), rows)
    return times


def _counted(drawn: Indices, rows: int) -> NDArray[np.intp]:
    """How often each row is drawn: (draws, rows drawn) to (draws, rows)."""
    places = drawn + rows * np.arange(len(drawn))[:, np.newaxis]
    return np.bincount(places.ravel(), minlength=len(drawn) * rows).reshape(len(drawn), rows)


def _sums(counts: Array, drawn: Indices) -> Array:
    """The sums of the rows that are drawn: (…, rows drawn) of `(rows, counts)` to (…, counts).

    How often each row is drawn, times the rows: several times faster than to take the rows out and add them.
    """
    times = _counted(drawn.reshape(-1, drawn.shape[-1]), len(counts))
    return (times @ counts).reshape(*drawn.shape[:-1], counts.shape[1])


def _randomisation(estimate: Estimate, ours: Array, theirs: Array, seed: int) -> float:
    if len(ours) < 2:
        return float("nan")
    # Only here, since it takes a second to load, and only a comparison needs it.
    from scipy.stats import permutation_test

    counts = np.concatenate([ours, theirs])

    def difference(one: Indices, other: Indices, axis: int) -> Array:
        first, second = (_sums(counts, np.moveaxis(each, axis, -1)) for each in (one, other))
        # Equal differences must be equal in the last digit too, or the rounding of sums would part them.
        return np.round(estimate.formula(first) - estimate.formula(second), _DECIMALS)

    places = np.arange(len(counts))
    return float(
        permutation_test(
            (places[: len(ours)], places[len(ours) :]),
            difference,
            permutation_type="samples",
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=_BATCH,
            rng=np.random.default_rng(seed),
        ).pvalue
    )


def _holm(p: Array) -> Array:
    """Holm's step-down correction of the values that are defined; the others are no tests and stay NaN."""
    defined = ~np.isnan(p)
    if defined.sum() < 2:
        return p
    # Only here, since it takes a quarter of a second to load, and a comparison of two runs does not need it.
    from statsmodels.stats.multitest import multipletests

    corrected = np.full_like(p, np.nan)
    corrected[defined] = multipletests(p[defined], method="holm")[1]
    return corrected
