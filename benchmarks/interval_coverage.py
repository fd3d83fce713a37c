"""Coverage of 95 % intervals over topics: how often they contain the true value, by measure and method.

    python -m benchmarks.interval_coverage [--trials 1000] [--resamples 1000]

Topics are drawn from a large population of simulated topics, whose value is the true one; a topic's
documents stay together. The interval of the program is that of the column `jackknife, log-odds`.
All seeds are fixed, so that the tables, which are those of docs/reference/measures.md, do not
change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr, ndtri, stdtrit

from benchmarks.figures import parse_sizes
from touche_llm.evaluation.intervals import (
    SHARE,
    Array,
    Bounds,
    Formula,
    compute_jackknife_interval,
)
from touche_llm.evaluation.judges.label_tables import (
    compute_kappa,
    compute_macro_f1,
    compute_quadratic_kappa,
)
from touche_llm.evaluation.significance import ratio

TOPICS = (5, 8, 12, 20, 25, 50)
POPULATION = 100_000
LABELS = 4
CORRELATION = Bounds(-1.0, 1.0)
LOWER, UPPER = 0.025, 0.975
Random = np.random.Generator
# Labels of people: as frequent as in TREC Deep Learning.
SHARES = np.array([0.45, 0.28, 0.18, 0.09])
# Labels of a judge by people's label, as of the published judges of LLMJudge.
CONFUSION = np.array(
    [
        [0.75, 0.15, 0.08, 0.02],
        [0.40, 0.30, 0.22, 0.08],
        [0.20, 0.30, 0.35, 0.15],
        [0.10, 0.20, 0.35, 0.35],
    ]
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure on a population of topics.

    Attributes:
        name: Name of the measure.
        counts: Contribution of each topic, (topics, counts).
        formula: Computes the value from sums over topics.
        bounds: Range of the value.
    """

    name: str
    counts: Array
    formula: Formula
    bounds: Bounds


def draw_tables(random: Random, sizes: tuple[int, int], spread: float) -> Array:
    """Draw a table of people's and the judge's labels for each topic, (topics, labels, labels).

    Args:
        random: Generator.
        sizes: Minimum and maximum number of documents of a topic.
        spread: How alike topics are in their shares of labels; the higher, the more alike.
    """
    documents = random.integers(sizes[0], sizes[1] + 1, POPULATION)
    shares = random.dirichlet(SHARES * spread, POPULATION)
    true = random.multinomial(documents, shares)
    tables = np.zeros((POPULATION, LABELS, LABELS))
    for label in range(LABELS):
        # Each topic has its own confusions.
        chances = random.dirichlet(CONFUSION[label] * 6.0, POPULATION)
        tables[:, label] = random.multinomial(true[:, label], chances)
    return tables


def flatten(compute: Callable[[Array], Array]) -> Formula:
    """Return the formula of flattened tables."""
    return lambda counts: compute(counts.reshape(*counts.shape[:-1], LABELS, LABELS))


def subtract(formula: Formula) -> Formula:
    """Return the formula of the second judge's value minus the first's, whose counts come first."""

    def difference(counts: Array) -> Array:
        first, second = np.split(counts, 2, axis=-1)
        return np.asarray(formula(second) - formula(first))

    return difference


def list_labels(random: Random) -> Iterator[Measured]:
    """Yield measures of labels, and differences of two judges of the same documents."""
    tables = draw_tables(random, sizes=(20, 300), spread=8.0)
    counts = tables.reshape(POPULATION, -1)
    kappa = flatten(compute_kappa)
    quadratic = flatten(compute_quadratic_kappa)
    yield Measured("kappa", counts, kappa, CORRELATION)
    yield Measured("quadratic kappa", counts, quadratic, CORRELATION)

    errors = np.subtract.outer(-np.arange(LABELS), -np.arange(LABELS)).ravel()
    error_counts = np.stack([counts @ errors, counts.sum(axis=1)], axis=1)
    yield Measured("mean error", error_counts, ratio, Bounds(-3.0, 3.0))

    stances = draw_tables(random, sizes=(10, 60), spread=4.0).reshape(POPULATION, -1)
    yield Measured("macro-F1", stances, flatten(compute_macro_f1), SHARE)
    hits = np.stack([stances[:, :: LABELS + 1].sum(axis=1), stances.sum(axis=1)], axis=1)
    yield Measured("accuracy", hits, ratio, SHARE)

    other = move_hits(random, tables).reshape(POPULATION, -1)
    both = np.concatenate([counts, other], axis=1)
    yield Measured("difference of kappa", both, subtract(kappa), CORRELATION.of_difference)
    yield Measured(
        "difference of quadratic kappa", both, subtract(quadratic), CORRELATION.of_difference
    )


def move_hits(random: Random, tables: Array) -> Array:
    """Return the tables of a better judge: a part of each error, which varies by topic, is right."""
    shares = random.beta(1.0, 3.0, len(tables))
    better = tables.copy()
    for label in range(LABELS):
        for chosen in range(LABELS):
            if chosen == label:
                continue
            wrong = tables[:, label, chosen].astype(np.int64)
            mended = random.binomial(wrong, shares)
            better[:, label, chosen] -= mended
            better[:, label, label] += mended
    return better


def list_means(random: Random) -> Iterator[Measured]:
    """Yield means of values by topic, of several shapes."""
    size = POPULATION

    def replace_some(values: Array, share: float, constant: float) -> Array:
        return np.where(random.random(size) < share, constant, values)

    shapes = {
        "nDCG, beta(2.5, 1.2)": random.beta(2.5, 1.2, size),
        "nDCG, 30 % zeros, else beta(0.8, 0.8)": replace_some(
            random.beta(0.8, 0.8, size), 0.3, 0.0
        ),
        "nDCG, half ones, else beta(4, 1)": replace_some(random.beta(4.0, 1.0, size), 0.5, 1.0),
        "nDCG, beta(1, 6), skewed": random.beta(1.0, 6.0, size),
        "P@5, steps of 0.2": random.binomial(5, random.beta(2.0, 2.0, size)) / 5.0,
        "nDCG, 80 % zeros, else beta(2, 2)": replace_some(random.beta(2.0, 2.0, size), 0.8, 0.0),
    }
    for name, values in shapes.items():
        yield Measured(name, np.stack([values, np.ones(size)], axis=1), ratio, SHARE)

    differences = {
        "difference, normal": np.clip(random.normal(0.02, 0.2, size), -1.0, 1.0),
        "difference, 80 % ties": replace_some(
            np.clip(random.normal(0.02, 0.2, size), -1, 1), 0.8, 0
        ),
    }
    for name, values in differences.items():
        counts = np.stack([values, np.ones(size)], axis=1)
        yield Measured(name, counts, ratio, SHARE.of_difference)


def compute_percentile(drawn: Array, values: Array, measured: Measured) -> tuple[float, float]:
    """Return the percentile bootstrap interval."""
    low, high = np.quantile(values, (LOWER, UPPER))
    return float(low), float(high)


def compute_bca(drawn: Array, values: Array, measured: Measured) -> tuple[float, float]:
    """Return the bias-corrected and accelerated bootstrap interval (B. Efron, 1987)."""
    sums = drawn.sum(axis=0)
    value = measured.formula(sums)
    without = measured.formula(sums - drawn)
    deviations = without.mean() - without
    spread = float(np.square(deviations).sum())
    if spread == 0.0:
        return float(value), float(value)
    acceleration = float((deviations**3).sum()) / (6.0 * spread**1.5)
    share_below = (np.mean(values < value) + np.mean(values <= value)) / 2.0
    bias = ndtri(np.clip(share_below, 1e-4, 1.0 - 1e-4))
    shifted = bias + ndtri(np.array([LOWER, UPPER]))
    low, high = np.quantile(values, ndtr(bias + shifted / (1.0 - acceleration * shifted)))
    return float(low), float(high)


def compute_student(drawn: Array, values: Array, measured: Measured) -> tuple[float, float]:
    """Return Student's interval with the error of the jackknife, which can leave the range."""
    sums = drawn.sum(axis=0)
    value = float(measured.formula(sums))
    half_width = find_quantile(drawn) * float(find_error(measured.formula(sums - drawn)))
    return value - half_width, value + half_width


def compute_transformed(drawn: Array, values: Array, measured: Measured) -> tuple[float, float]:
    """Return the interval of the jackknife of log-odds: each value without a topic is transformed."""
    sums = drawn.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = to_share(measured.formula(sums), measured.bounds)
        without = logit(to_share(measured.formula(sums - drawn), measured.bounds))
        half_width = find_quantile(drawn) * find_error(without)
        ends = expit(logit(share) + np.array([-half_width, half_width]))
    values_of_ends = measured.bounds.lowest + ends * measured.bounds.width
    return float(values_of_ends[0]), float(values_of_ends[1])


def compute_bootstrap_t(drawn: Array, values: Array, measured: Measured) -> tuple[float, float]:
    """Return the bootstrap-t interval, with the jackknife's error of each of 200 resamples."""
    topics = len(drawn)
    random = np.random.default_rng(0)
    resampled = drawn[random.integers(topics, size=(200, topics))]
    sums = resampled.sum(axis=1)
    of_resamples = measured.formula(sums)
    errors = find_error(measured.formula(sums[:, np.newaxis] - resampled))
    all_sums = drawn.sum(axis=0)
    value = float(measured.formula(all_sums))
    error = float(find_error(measured.formula(all_sums - drawn)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (of_resamples - value) / errors
    defined = ratios[np.isfinite(ratios)]
    if len(defined) == 0:
        return value, value
    low, high = np.quantile(defined, (LOWER, UPPER))
    return value - float(high * error), value - float(low * error)


def compute_adopted(drawn: Array, values: Array, measured: Measured) -> tuple[float, float]:
    """Return the interval of the program."""
    return compute_jackknife_interval(drawn, measured.formula, measured.bounds)


def to_share(values: Array, bounds: Bounds) -> Array:
    """Return the places of values between the bounds, from 0 to 1."""
    return np.asarray((values - bounds.lowest) / bounds.width)


def find_error(without: Array) -> NDArray[np.float64]:
    """Return the jackknife's error from the values without each topic, on the last axis."""
    topics = without.shape[-1]
    deviations = without - without.mean(axis=-1, keepdims=True)
    return np.asarray(np.sqrt((topics - 1) / topics * np.square(deviations).sum(axis=-1)))


def find_quantile(drawn: Array) -> float:
    """Return Student's quantile for the topics."""
    return float(stdtrit(len(drawn) - 1, UPPER))


METHODS = {
    "jackknife, log-odds": compute_adopted,
    "jackknife, Student": compute_student,
    "jackknife of log-odds": compute_transformed,
    "percentile": compute_percentile,
    "BCa": compute_bca,
    "bootstrap-t": compute_bootstrap_t,
}


def measure_coverage(
    measured: Measured, topics: int, trials: int, resamples: int
) -> dict[str, float]:
    """Return the share of samples of topics whose interval contains the population's value, by method."""
    truth = float(measured.formula(measured.counts.sum(axis=0)))
    random = np.random.default_rng(topics)
    hits = dict.fromkeys(METHODS, 0)
    for _ in range(trials):
        drawn = measured.counts[random.integers(POPULATION, size=topics)]
        times = random.multinomial(topics, np.full(topics, 1.0 / topics), size=resamples)
        values = measured.formula(times.astype(np.float64) @ drawn)
        for name, compute in METHODS.items():
            low, high = compute(drawn, values, measured)
            hits[name] += low <= truth <= high
    return {name: count / trials for name, count in hits.items()}


def show(title: str, measures: Iterator[Measured], trials: int, resamples: int) -> None:
    """Print a table for each method as Markdown, with a row for each measure."""
    cells: dict[str, dict[str, list[str]]] = {name: {} for name in METHODS}
    for measured in measures:
        for topics in TOPICS:
            coverage = measure_coverage(measured, topics, trials, resamples)
            for name, share in coverage.items():
                cells[name].setdefault(measured.name, []).append(f"{share:.3f}")
    for name, rows in cells.items():
        print(f"| {title}: {name} | {' | '.join(map(str, TOPICS))} |")
        print(f"|---|{'--:|' * len(TOPICS)}")
        for measure, shares in rows.items():
            print(f"| {measure} | {' | '.join(shares)} |")
        print(flush=True)


def main() -> None:
    """Print the tables of labels and of means."""
    sizes = parse_sizes(__doc__, trials=(1, 1000), resamples=(1, 1000)).parse_args()
    show("labels", list_labels(np.random.default_rng(1)), sizes.trials, sizes.resamples)
    show("means", list_means(np.random.default_rng(2)), sizes.trials, sizes.resamples)


if __name__ == "__main__":
    main()
