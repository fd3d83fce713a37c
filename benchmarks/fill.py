"""Error of nDCG with unjudged documents, filled in by judges and by other means.

    python -m benchmarks.fill --judges FOLDER [--generator FILE] [--seeds 20] [--depth 5]
    python -m benchmarks.fill --made-up [--seeds 200] [--depth 5]

The constants of the estimates were chosen on seeds from 1000 on (`--first-seed 1000`).

Teams of made-up systems rank documents whose grades by people are known. Each team is left out in
turn: what it alone has among its first documents counts as unjudged and is filled in. The error is
that against the value with all of these documents judged.

FOLDER holds `human.txt` and the labels of a judge in each other file, all as qrels. FILE defines
`make_pools(rng, grades)`: it gets a random generator and the grades by topic and document, and
returns systems by team; a system is its documents by topic, best first. Teams and systems may be
dictionaries by name or lists. With `--made-up`, topics, grades and judges are made up too.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from benchmarks import pool_generator
from benchmarks.figures import at_least, machine
from touche_llm.evaluation.filling.alternatives import (
    estimate_as_judged,
    estimate_from_answers,
    estimate_from_one_team,
    estimate_without_prior,
    measure_bootstrapped,
    measure_condensed,
    measure_constant,
)
from touche_llm.evaluation.filling.draws import draw_documents
from touche_llm.evaluation.filling.estimates import (
    GradeEstimator,
    estimate_by_judge,
    estimate_with_drawn,
    estimate_without_judge,
    measure_drawn_half_widths,
    measure_filled,
    measure_half_widths,
)
from touche_llm.evaluation.filling.labels import measure_explained_share
from touche_llm.evaluation.filling.pool import NONE, Floats, Integers, SystemPool, make_pool
from touche_llm.evaluation.filling.systems import MAX_HALF_WIDTH, adds_nothing

HIGHEST = 3
# Numbers of drawn documents.
DRAWS = (20, 40)
# Share of the pools of a made-up judge in which no error may be above 0.04.
SMALL_POOLS = 0.9
OURS = "filled in by the judge"
WITHOUT_JUDGE = "no judge: mean predicted by team"
# Means that need no judge, and the others.
PLAIN: Mapping[str, Callable[[SystemPool, int], Floats]] = {
    "unjudged as 0": lambda pool, team: measure_constant(pool, team, 0.0),
    "unjudged as the highest": lambda pool, team: measure_constant(pool, team, HIGHEST),
    "condensed lists": measure_condensed,
    "bootstrapped": lambda pool, team: measure_bootstrapped(pool, team, np.random.default_rng(1)),
    "no judge: mean grade of one team's": lambda pool, team: measure_filled(
        pool, team, estimate_from_one_team
    ),
    WITHOUT_JUDGE: lambda pool, team: measure_filled(pool, team, estimate_without_judge),
}
BY_JUDGE: Mapping[str, GradeEstimator] = {
    "as judged": estimate_as_judged,
    "grade given the answer": estimate_from_answers,
    "confusion, mix without a prior": estimate_without_prior,
    OURS: estimate_by_judge,
}
Grades = dict[str, dict[str, int]]


class Generator(Protocol):
    """A file with `make_pools`."""

    def make_pools(self, rng: np.random.Generator, grades: Grades) -> Any:
        """Return systems by team."""


@dataclass
class Errors:
    """Errors of the systems of all pools, by one means with one judge.

    Attributes:
        errors: Errors of the systems of each pool.
        half_widths: Half widths of their intervals; empty if there are none.
        explained: Shares of the variance of grades that labels explain, of each left-out team.
    """

    errors: list[list[float]] = field(default_factory=list)
    half_widths: list[list[float]] = field(default_factory=list)
    explained: list[list[float]] = field(default_factory=list)

    def add_pool(self) -> None:
        """Begin the values of another pool."""
        for values in (self.errors, self.half_widths, self.explained):
            values.append([])

    @property
    def bias(self) -> float:
        """Mean error."""
        return float(np.mean(np.concatenate(self.errors)))

    @property
    def mean(self) -> float:
        """Mean absolute error."""
        return float(np.mean(np.abs(np.concatenate(self.errors))))

    @property
    def coverage(self) -> float:
        """Share of intervals that contain the value."""
        return float(np.mean(np.concatenate(self._list_hits())))

    @property
    def coverage_error(self) -> float:
        """Standard error of the coverage, clustered by pools."""
        shares = [np.mean(hits) for hits in self._list_hits()]
        if len(shares) < 2:
            return float("nan")
        return float(np.std(shares, ddof=1) / np.sqrt(len(shares)))

    @property
    def half_width(self) -> float:
        """Mean half width."""
        return float(np.mean(np.concatenate(self.half_widths)))

    @property
    def refused(self) -> float:
        """Share of systems whose interval is too wide."""
        return float(np.mean(np.concatenate(self.half_widths) > MAX_HALF_WIDTH))

    @property
    def small_pools(self) -> float:
        """Share of pools in which no error is above 0.04."""
        return float(np.mean([max(np.abs(errors)) <= 0.04 for errors in self.errors]))

    @property
    def adds_nothing(self) -> float:
        """Share of left-out teams for which the judge is said to add nothing."""
        return float(np.mean([adds_nothing(share) for share in np.concatenate(self.explained)]))

    def _list_hits(self) -> list[Any]:
        return [
            np.abs(errors) <= np.array(widths)
            for errors, widths in zip(self.errors, self.half_widths, strict=True)
        ]


@dataclass(frozen=True)
class Limits:
    """What must hold for a judge.

    Attributes:
        bias: Limit of the absolute mean error.
        error: Limit of the mean absolute error; None for made-up judges, with which no error of a
            pool may be above 0.04 in nine pools of ten.
    """

    bias: float
    error: float | None

    def is_error_above(self, errors: Errors) -> bool:
        """Return whether errors are beyond their limit."""
        if self.error is None:
            return errors.small_pools < SMALL_POOLS
        return errors.mean > self.error

    def __str__(self) -> str:
        if self.error is None:
            return f"bias above {self.bias}, an error above 0.04 in more than a tenth of the pools"
        return f"bias above {self.bias}, mean error above {self.error}"


def choose_limits(depth: int, *, is_made_up: bool) -> Limits:
    """Return the limits of made-up judges, or of real ones at a depth."""
    if is_made_up:
        return Limits(bias=0.02, error=None)
    return Limits(bias=0.01, error=0.036 if depth <= 5 else 0.026)


# Pools of a seed with the labels of each judge: pools of the same systems.
Case = dict[str, SystemPool]


def measure_cases(cases: Iterator[Case]) -> tuple[dict[str, dict[str, Errors]], list[float]]:
    """Return the errors by means and judge, and the shares of unjudged documents."""
    found: dict[str, dict[str, Errors]] = defaultdict(lambda: defaultdict(Errors))
    shares: list[float] = []
    for case in cases:
        for means, judge in _list_rows(case):
            found[means][judge].add_pool()
        for team in range(len(next(iter(case.values())).teams)):
            shares += _measure_team(case, team, found)
    return found, shares


def _list_rows(case: Case) -> Iterator[tuple[str, str]]:
    for means in PLAIN:
        yield means, ""
    for means in BY_JUDGE:
        for judge in case:
            yield means, judge


def _measure_team(case: Case, team: int, found: dict[str, dict[str, Errors]]) -> list[float]:
    """Add the errors of a team's systems, and return their shares of unjudged documents."""
    first = next(iter(case.values()))
    value = measure_constant(first, team, 0.0).mean(axis=1)
    hidden = first.hide_team(team)
    for means, measure in PLAIN.items():
        errors = measure(hidden, team).mean(axis=1) - value
        found[means][""].errors[-1].extend(errors)

    without = measure_half_widths(hidden, team, estimate_without_judge)
    found[WITHOUT_JUDGE][""].half_widths[-1].extend(without)
    for judge, pool in case.items():
        hidden = pool.hide_team(team)
        for means, estimator in BY_JUDGE.items():
            errors = measure_filled(hidden, team, estimator).mean(axis=1) - value
            found[means][judge].errors[-1].extend(errors)
        ours = found[OURS][judge]
        ours.half_widths[-1].extend(measure_half_widths(hidden, team, estimate_by_judge))
        ours.explained[-1].append(measure_explained_share(hidden))
    return list(hidden.measure_shares(team))


def measure_draws(cases: Iterator[Case], number: int) -> dict[str, Errors]:
    """Return the errors by judge if people judge `number` drawn documents of each left-out team.

    A last judge raises by a grade what the left-out team alone found.
    """
    found: dict[str, Errors] = defaultdict(Errors)
    for seed, case in enumerate(cases):
        first = next(iter(case))
        judges = [*case, f"{first}, raises what the team alone found"]
        for judge in judges:
            found[judge].add_pool()
        for team in range(len(case[first].teams)):
            for judge in judges:
                pool = case.get(judge) or _raise_labels(case[first], team)
                random = np.random.default_rng([seed, team, number])
                _add_draw(pool, team, number, random, found[judge])
    return found


def _add_draw(
    pool: SystemPool,
    team: int,
    number: int,
    random: np.random.Generator,
    found: Errors,
) -> None:
    value = measure_constant(pool, team, 0.0).mean(axis=1)
    hidden = pool.hide_team(team)
    drawn = draw_documents(hidden, team, number, random)
    grades = hidden.grades.copy()
    grades[drawn.documents] = pool.grades[drawn.documents]
    judged = replace(hidden, grades=grades)
    estimates = measure_filled(judged, team, estimate_with_drawn(drawn)).mean(axis=1)
    found.errors[-1].extend(estimates - value)
    found.half_widths[-1].extend(measure_drawn_half_widths(judged, team, drawn))


def _raise_labels(pool: SystemPool, team: int) -> SystemPool:
    """Return the pool with labels that are a grade higher for what a team alone found."""
    is_alone = pool.is_found[team] & (pool.is_found.sum(axis=0) == 1)
    labels = np.where(is_alone & (pool.labels != NONE), pool.labels + 1, pool.labels)
    return replace(pool, labels=np.minimum(labels, pool.label_count - 1))


# Real judges


def read_labels(path: Path) -> Grades:
    """Read labels in the form of qrels; those outside 0 to 3 are left out."""
    labels: Grades = defaultdict(dict)
    for line in path.read_text(encoding="utf-8").splitlines():
        topic, _, document, label = line.split()
        if 0 <= int(label) <= HIGHEST:
            labels[topic][document] = int(label)
    return dict(labels)


def make_real_cases(
    folder: Path, generator: Generator, seeds: Sequence[int], depth: int
) -> Iterator[Case]:
    """Yield the pools of each seed with the labels of each judge of a folder."""
    human = read_labels(folder / "human.txt")
    judges = {
        path.stem: read_labels(path)
        for path in sorted(folder.glob("*.txt"))
        if path.name != "human.txt"
    }
    for seed in seeds:
        systems = name_systems(generator.make_pools(np.random.default_rng(seed), human))
        yield {
            judge: restrict_to_found(
                make_pool(
                    systems,
                    human,
                    labels,
                    depth=depth,
                    highest_grade=HIGHEST,
                    label_count=HIGHEST + 1,
                )
            )
            for judge, labels in judges.items()
        }


def name_systems(teams: Any) -> dict[str, dict[str, Any]]:
    """Return systems by the names of their teams and their own; lists are numbered."""
    named: dict[str, dict[str, Any]] = {}
    for team, systems in _name(teams, "team").items():
        named[team] = _name(systems, f"{team}-")
    return named


def _name(values: Any, prefix: str) -> dict[str, Any]:
    if isinstance(values, Mapping):
        return {str(name): value for name, value in values.items()}
    return {f"{prefix}{number:03d}": value for number, value in enumerate(values)}


def restrict_to_found(pool: SystemPool) -> SystemPool:
    """Return the pool in which people judged what a team has among its first, and nothing else."""
    is_found = pool.is_found.any(axis=0)
    return replace(pool, grades=np.where(is_found, pool.grades, NONE))


def load_generator(path: Path | None) -> Generator:
    """Load a file with `make_pools`; without one, the project's own."""
    if path is None:
        return pool_generator
    spec = importlib.util.spec_from_file_location("generator", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a file of Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "make_pools"):
        raise SystemExit(f"{path}: defines no function make_pools(rng, grades)")
    return module


# Made-up judges

TOPICS, DOCUMENTS = 50, 120
# A document's relevance is normal; a topic has an ease of its own.
EASE = 0.5
THRESHOLDS = (0.0, 0.75, 1.5)
# Standard deviation of a judge's error, in grades.
NOISE = {"good": 0.55, "weak": 1.6, "uninformative": 4.5}
# Leniency by topic, in grades.
LENIENCY = 0.5
MADE_UP_TEAMS = (3, 3, 3, 3, 3, 2, 2, 2)


def make_made_up_cases(seeds: Sequence[int], depth: int) -> Iterator[Case]:
    """Yield made-up pools with the labels of made-up judges.

    The grades are those of a normal relevance by three thresholds. A judge sees the grade with an
    error and rounds it; the over-rating one rounds up by a grade, another is lenient by topic, and
    the last raises by a grade what a single team found.
    """
    for seed in seeds:
        random = np.random.default_rng(seed)
        ease = random.normal(0.0, EASE, (TOPICS, 1))
        relevance = random.normal(0.0, 1.0, (TOPICS, DOCUMENTS)) + ease
        grades = np.searchsorted(THRESHOLDS, relevance)
        human = {
            f"{topic:02d}": {f"{number:03d}": int(grade) for number, grade in enumerate(row)}
            for topic, row in enumerate(grades)
        }
        pool_generator.TEAM_SIZES = MADE_UP_TEAMS
        systems = pool_generator.make_pools(random, human)
        pool = make_pool(
            systems,
            human,
            human,
            depth=depth,
            highest_grade=HIGHEST,
            label_count=HIGHEST + 1,
        )
        yield _label(restrict_to_found(pool), random)


def _label(pool: SystemPool, random: np.random.Generator) -> Case:
    """Return the pool with the labels of each made-up judge."""
    # The labels are the grades of all documents, so far.
    grades = pool.labels
    error = random.normal(0.0, 1.0, len(grades))
    leniency = random.normal(0.0, LENIENCY, len(pool.topics))
    topics = {topic: number for number, topic in enumerate(pool.topics)}
    topic_of = np.array([topics[topic] for topic, _ in pool.documents])

    seen = {name: grades + noise * error for name, noise in NOISE.items()}
    good = seen["good"]
    labels = {
        "good": _round(good),
        "over-rating": _round(good + 1.0),
        "weak": _round(seen["weak"]),
        "uninformative": _round(seen["uninformative"]),
        "good, lenient by topic": _round(good + leniency[topic_of]),
        "good, favours what one team found": _round(good + (pool.is_found.sum(axis=0) == 1)),
    }
    return {name: replace(pool, labels=values) for name, values in labels.items()}


def _round(values: Floats) -> Integers:
    return np.clip(np.rint(values), 0, HIGHEST).astype(np.int64)


def measure_correlations(case: Case) -> dict[str, float]:
    """Return Pearson's correlation of labels and grades, over the judged documents, by judge."""
    correlations: dict[str, float] = {}
    for judge, pool in case.items():
        is_usable = pool.is_judged & (pool.labels != NONE)
        matrix = np.corrcoef(pool.labels[is_usable], pool.grades[is_usable])
        correlations[judge] = float(matrix[0, 1])
    return correlations


# Output


def show_errors(found: Mapping[str, Mapping[str, Errors]]) -> None:
    """Print the errors of all means, and those of ours by judge."""
    console = Console(highlight=False, markup=False, width=120)
    console.print(f"{'':36}{'bias':>8}{'worst':>8}{'error':>8}{'worst':>8}")
    for means, by_judge in found.items():
        biases = [errors.bias for errors in by_judge.values()]
        means_of_errors = [errors.mean for errors in by_judge.values()]
        worst_bias = max(biases, key=abs)
        console.print(
            f"{means:36}{np.mean(biases):+8.3f}{worst_bias:+8.3f}"
            f"{np.mean(means_of_errors):8.4f}{max(means_of_errors):8.4f}"
        )
    print(f"half width without a judge: {found[WITHOUT_JUDGE][''].half_width:.4f}")
    show_judges(OURS, found[OURS])


def show_failures(found: Mapping[str, Mapping[str, Errors]], limits: Limits) -> None:
    """Print for all means with which judges they miss a limit."""
    print(f"\nwhere each one fails ({limits}):")
    for means, by_judge in found.items():
        is_biased = {name: abs(errors.bias) > limits.bias for name, errors in by_judge.items()}
        is_wrong = {name: limits.is_error_above(errors) for name, errors in by_judge.items()}
        print(f"  {means}: bias {_list_names(is_biased)}; error {_list_names(is_wrong)}")


def _list_names(is_chosen: Mapping[str, bool]) -> str:
    """Return the names of the chosen ones."""
    if not any(is_chosen.values()):
        return "nowhere"
    if all(is_chosen.values()):
        return "everywhere"
    return "with " + ", ".join(name for name, is_one in is_chosen.items() if is_one)


def show_judges(title: str, by_judge: Mapping[str, Errors]) -> None:
    """Print the errors and intervals of each judge."""
    console = Console(highlight=False, markup=False, width=120)
    console.print(
        f"\n{title:44}{'bias':>8}{'error':>8}{'<=0.04':>8}{'covered':>8}{'(s.e.)':>8}"
        f"{'width':>8}{'refused':>8}{'nothing':>8}"
    )
    for judge, errors in by_judge.items():
        nothing = f"{errors.adds_nothing:8.2f}" if any(errors.explained) else f"{'':8}"
        console.print(
            f"{judge:44}{errors.bias:+8.4f}{errors.mean:8.4f}{errors.small_pools:8.2f}"
            f"{errors.coverage:8.3f}{errors.coverage_error:8.3f}{errors.half_width:8.4f}"
            f"{errors.refused:8.3f}{nothing}"
        )
    coverage = np.mean([errors.coverage for errors in by_judge.values()])
    error = np.mean([errors.mean for errors in by_judge.values()])
    width = np.mean([errors.half_width for errors in by_judge.values()])
    console.print(f"{'all':44}{'':8}{error:8.4f}{'':8}{coverage:8.3f}{'':8}{width:8.4f}")


def main() -> None:
    """Measure, and print tables with the parameters."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--judges", type=Path, metavar="FOLDER")
    source.add_argument("--made-up", action="store_true")
    parser.add_argument("--generator", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=at_least(1), default=20)
    parser.add_argument("--first-seed", type=at_least(0), default=0)
    parser.add_argument("--depth", type=at_least(1), default=5)
    options = parser.parse_args()

    seeds = range(options.first_seed, options.first_seed + options.seeds)

    def make_cases() -> Iterator[Case]:
        if options.made_up:
            return make_made_up_cases(seeds, options.depth)
        generator = load_generator(options.generator)
        return make_real_cases(options.judges, generator, seeds, options.depth)

    print(
        f"seeds {seeds.start} to {seeds.stop - 1}, depth {options.depth}, generator {options.generator or 'own'}"
    )
    if options.generator is None:
        print(pool_generator.describe())
    if options.made_up:
        print(f"topics {TOPICS}, documents {DOCUMENTS}, thresholds {THRESHOLDS}, ease {EASE}")
        print(f"noise of judges {NOISE}, leniency {LENIENCY}, systems of teams {MADE_UP_TEAMS}")
    correlations = measure_correlations(next(make_cases()))
    print("r of labels and grades, first seed:")
    for judge, correlation in correlations.items():
        print(f"  {judge}: {correlation:.2f}")
    found, shares = measure_cases(make_cases())
    print(f"share of unjudged documents: {np.mean(shares):.3f}")
    show_errors(found)
    show_failures(found, choose_limits(options.depth, is_made_up=options.made_up))
    if not options.made_up:
        for number in DRAWS:
            by_judge = measure_draws(make_cases(), number)
            show_judges(f"{number} documents of each team drawn and judged", by_judge)
    print(machine())


if __name__ == "__main__":
    main()
