"""Coverage of 95 % intervals over topics: how often they contain the true value, by shape of the data and topics.

    python -m benchmarks.interval_coverage [--trials 2000]

Topics are drawn from a large population of simulated topics, whose value is the true one. A mean of
values by topic has Student's t interval beside the percentile bootstrap, a measure of pooled
documents the bootstrap alone. All seeds are fixed, so that the tables, which are those of
docs/reference/measures.md, do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import parse_sizes
from touche_llm.evaluation.agreement import estimate_kappa, macro_f1
from touche_llm.evaluation.significance import Array, compute_bootstrap, compute_half_width, ratio

TOPICS = (2, 3, 5, 8, 10, 12, 20, 30, 50)
POPULATION = 100_000
LABELS = 4
Random = np.random.Generator
Formula = Callable[[Array], Array]


def simulate_means(random: Random) -> Iterator[tuple[str, Array]]:
    """Yield shapes of values by topic, with a population of each."""

    def leave_out(values: Array, share: float) -> Array:
        return np.where(random.random(POPULATION) < share, 0.0, values)

    yield "normal", random.normal(size=POPULATION)
    yield "beta(2, 2)", random.beta(2.0, 2.0, POPULATION)
    yield "beta(0.5, 0.5), most near 0 or 1", random.beta(0.5, 0.5, POPULATION)
    yield "beta(1, 6), skewed", random.beta(1.0, 6.0, POPULATION)
    yield "steps of 0.2, as P@5", random.binomial(5, random.beta(2.0, 2.0, POPULATION)) / 5.0
    yield "half zeros, else beta(2, 2)", leave_out(random.beta(2.0, 2.0, POPULATION), 0.5)
    yield "80 % zeros, else beta(2, 2)", leave_out(random.beta(2.0, 2.0, POPULATION), 0.8)
    yield "difference, half ties, else normal", leave_out(random.normal(size=POPULATION), 0.5)
    yield "difference, 80 % ties, else normal", leave_out(random.normal(size=POPULATION), 0.8)


def simulate_pooled(random: Random) -> Iterator[tuple[str, Array, Formula]]:
    """Yield measures of pooled documents, with the counts of a population of topics, and their formulas.

    A topic has 3 to 40 judged documents, label shares of its own, and its own probability of a
    right answer. The second run of a difference is right for other documents, more often.
    """
    sizes = random.integers(3, 41, POPULATION)
    ease = random.beta(4.0, 2.0, POPULATION)
    shares = random.dirichlet(np.ones(LABELS), POPULATION)
    right = [draw_tables(random, sizes, shares, chance) for chance in (ease, np.sqrt(ease))]
    for name, formula in (("accuracy", accuracy), ("macro-F1", pooled_macro_f1)):
        yield f"{name} of 4 labels", right[0], formula
        yield f"difference of {name}", np.concatenate(right, axis=1), subtract(formula)
    sums = [sum_grades(tables) for tables in right]
    kappa = estimate_kappa({}).formula
    yield "quadratic kappa of grades 0 to 3", sums[0], kappa
    yield "difference of kappa", np.concatenate(sums, axis=1), subtract(kappa)


def draw_tables(random: Random, sizes: NDArray[np.int64], shares: Array, ease: Array) -> Array:
    """Draw a confusion matrix for each topic, (topics, labels * labels).

    A wrong answer is any label.
    """
    true = random.multinomial(sizes, shares)
    tables = np.zeros((len(sizes), LABELS, LABELS))
    for label in range(LABELS):
        right = random.binomial(true[:, label], ease)
        tables[:, label] = random.multinomial(true[:, label] - right, np.full(LABELS, 1.0 / LABELS))
        tables[:, label, label] += right
    return tables.reshape(len(sizes), -1)


def sum_grades(tables: Array) -> Array:
    """Return the sums that kappa is computed from, the labels taken as grades: see `estimate_kappa`."""
    one, other = np.divmod(np.arange(LABELS**2), LABELS)
    return np.asarray(
        tables @ np.stack([np.ones(LABELS**2), one, other, one**2 + other**2, one * other], axis=1)
    )


def accuracy(counts: Array) -> Array:
    """Compute the share of right labels, (…, labels * labels) to (…)."""
    return np.asarray(counts[..., :: LABELS + 1].sum(axis=-1) / counts.sum(axis=-1))


def pooled_macro_f1(counts: Array) -> Array:
    """Compute macro-F1, (…, labels * labels) to (…)."""
    tables = counts.reshape(*counts.shape[:-1], LABELS, LABELS)
    return macro_f1(counts[..., :: LABELS + 1], tables.sum(axis=-2), tables.sum(axis=-1))


def subtract(formula: Formula) -> Formula:
    """Return the formula of the second run's value minus the first's, whose counts come first."""

    def difference(counts: Array) -> Array:
        first, second = np.split(counts, 2, axis=-1)
        return np.asarray(formula(second) - formula(first))

    return difference


def measure_coverage(
    counts: Array, formula: Formula, drawn_topics: NDArray[np.int64], *, is_mean: bool
) -> str:
    """Return the share of t intervals, for means, and of bootstrap intervals that contain the value of the population.

    Counts are (topics, counts), drawn topics (samples, topics).
    """
    truth = float(formula(counts.sum(axis=0)))
    student = bootstrap = 0
    for places in drawn_topics:
        drawn = counts[places]
        if is_mean:
            values = drawn[:, 0]
            student += abs(values.mean() - truth) <= compute_half_width(values)
        low, high = compute_bootstrap(drawn, formula)
        bootstrap += low <= truth <= high
    shares = [student, bootstrap] if is_mean else [bootstrap]
    return " / ".join(f"{share / len(drawn_topics):.2f}" for share in shares)


def show(
    title: str, rows: Iterator[tuple[str, Array, Formula]], trials: int, *, is_mean: bool
) -> None:
    """Print a table as Markdown, a row as soon as it is measured."""
    print(f"| {title} | {' | '.join(map(str, TOPICS))} |\n|---|{'--:|' * len(TOPICS)}", flush=True)
    for row, (name, counts, formula) in enumerate(rows):
        random = np.random.default_rng(row)
        samples = (random.integers(POPULATION, size=(trials, topics)) for topics in TOPICS)
        cells = [measure_coverage(counts, formula, drawn, is_mean=is_mean) for drawn in samples]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()


def main() -> None:
    """Print the tables of means and of pooled measures."""
    trials = parse_sizes(__doc__, trials=(1, 2000)).parse_args().trials
    means = simulate_means(np.random.default_rng(1))
    rows = (
        (name, np.stack([values, np.ones(POPULATION)], axis=1), ratio) for name, values in means
    )
    show("mean: t / bootstrap", rows, trials, is_mean=True)
    show("pooled: bootstrap", simulate_pooled(np.random.default_rng(2)), trials, is_mean=False)


if __name__ == "__main__":
    main()
