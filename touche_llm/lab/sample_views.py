"""Views of the bench that measure: a draft compared with its saved version.

The records are sent to the page as JSON; their attributes are the names that its scripts read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from aiohttp import web

from touche_llm.api.progress import SilentProgress
from touche_llm.data import concurrency
from touche_llm.data.measure import Measure
from touche_llm.errors import DataError, PromptError, UsageError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.lab.bench import Bench, Benches
from touche_llm.lab.runs import make_page, shorten_paths
from touche_llm.lab.runs_of_lab import run_in_thread
from touche_llm.llm.counts import Counts
from touche_llm.prompt_lab.comparison import (
    ComparisonInputs,
    PromptComparison,
    compare_prompts,
    estimate_comparison,
)
from touche_llm.prompt_lab.variants import PartMeasures, Variant
from touche_llm.report.matrix import render_matrix
from touche_llm.report.measures import read_change

# Pages of comparisons that are kept.
_MAX_PAGES = 8
# Seconds between looks at the progress of a comparison.
_LINE_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class SampleEstimate:
    """Requests that a comparison of the sample would send.

    Attributes:
        requests: Number of requests.
        tokens: Tokens of prompts and completions.
        known: Number of answers that are in the cache.
        compared: Names of the compared prompts.
    """

    requests: int
    tokens: int
    known: int
    compared: list[str]


@dataclass(frozen=True, slots=True)
class SampleProblem:
    """Why nothing can be compared."""

    problem: str


@dataclass(frozen=True, slots=True)
class SampleProgress:
    """Progress of a stage of the comparison.

    Attributes:
        stage: Title of the stage.
        done: Number of finished steps.
        total: Number of steps.
        requests: Number of requests that were sent.
        cached: Number of answers from the cache.
        failed: Number of failed requests.
    """

    stage: str
    done: int
    total: int
    requests: int
    cached: int
    failed: int


@dataclass(frozen=True, slots=True)
class MeasureEntry:
    """Values of both prompts by a measure, and their difference.

    Attributes:
        measure: Name of the measure.
        baseline: Value of the first prompt.
        value: Value of the second prompt.
        n: Number of topics of the difference.
        difference: Value of the second prompt minus that of the first.
        low: Lower end of the difference's interval; NaN without an interval.
        high: Upper end of the interval.
        p: P-value; NaN without a test.
    """

    measure: str
    baseline: float
    value: float
    n: int
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Measures of a comparison over the sample.

    Attributes:
        measures: Values by measure.
        names: Names of the first and of the second prompt.
        topics: Number of topics.
        documents: Number of documents.
        chance: Expected nDCG@5 of a random order.
        notes: Limitations of the comparison.
        failures: Number of failed requests, by kind.
        page: Address of the page of the comparison.
    """

    measures: list[MeasureEntry]
    names: list[str]
    topics: int
    documents: int
    chance: float
    notes: list[str]
    failures: dict[str, int]
    page: str


def _prepare(benches: Benches, run: str, name: str, text: str) -> ComparisonInputs:
    """Return what a draft is compared with, and the judgments to measure by.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the prompt.
        text: Text of the draft.

    Raises:
        PromptError: The text is no valid prompt.
        UsageError: There are no qrels, or there is no other prompt to compare.
    """
    bench = benches.get(run)
    qrels = benches.lab.read_qrels([run], bench.context.task, bench.config)
    if qrels is None:
        raise UsageError("no qrels: evaluate the run, or start the lab with qrels")
    variants = _choose_variants(bench, name, text)
    return ComparisonInputs(bench.config, variants, qrels)


def _choose_variants(bench: Bench, name: str, text: str) -> list[Variant]:
    """Return the two prompts to compare, the baseline first.

    A changed text is compared with its saved version, a saved text with the prompt of the run.

    Raises:
        PromptError: The text is no valid prompt.
        UsageError: The text is saved, and it is the prompt of the run.
    """
    draft = bench.load(name, text)
    saved = bench.load(name)
    if draft.hash != saved.hash:
        return [Variant("saved", saved), Variant("draft", draft)]

    baseline_name = bench.find_baseline(name)
    if baseline_name is None:
        raise UsageError("Change the text to compare it with the saved version.")
    baseline = bench.load(baseline_name)
    return [Variant(baseline.label, baseline), Variant(saved.label, saved)]


async def estimate_sample(
    benches: Benches, *, run: str, name: str, text: str
) -> SampleEstimate | SampleProblem:
    """Return the requests and tokens that a comparison of a draft would need; nothing is sent.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the prompt.
        text: Text of the draft.
    """
    try:
        inputs = await benches.lab.call_in_thread(_prepare, benches, run, name, text)
    except (PromptError, UsageError) as error:
        return SampleProblem(str(error))

    dry_run = await run_in_thread(estimate_comparison, inputs, SilentProgress())
    usages = [cost.usage for cost in dry_run.costs]
    # `inputs.names` may contain names of prompts too, but `_prepare` gives it loaded ones alone.
    variants = [variant for variant in inputs.names if isinstance(variant, Variant)]
    return SampleEstimate(
        requests=sum(usage.requests for usage in usages),
        tokens=sum(usage.prompt_tokens + usage.completion_tokens for usage in usages),
        known=sum(dry_run.known.values()),
        compared=[variant.name for variant in variants],
    )


class _ProgressLines:
    """Progress of a comparison as lines for the page; stages run in another thread.

    Attributes:
        lines: Lines that were not sent yet.
    """

    def __init__(self) -> None:
        self.lines: deque[SampleProgress] = deque()

    def take_lines(self) -> list[SampleProgress]:
        """Return the lines that were added since the last call."""
        return [self.lines.popleft() for _ in range(len(self.lines))]

    def warn(self, message: str) -> None:
        """Drop the message, which the result has too."""

    @contextmanager
    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> Iterator[Callable[[], None]]:
        """Yield a function for the steps of a stage: each call of it counts one, and adds a line.

        Args:
            title: Title of the stage.
            total: Number of steps.
            counts: Counts of requests, which the stage updates; None for a stage without requests.
        """
        step_numbers = count(1)

        def advance() -> None:
            done = next(step_numbers)
            self.lines.append(_describe_progress(title, done, total, counts))

        yield advance


def _describe_progress(title: str, done: int, total: int, counts: Counts | None) -> SampleProgress:
    """Return the progress of a stage; a stage without requests has no counts."""
    if counts is None:
        counts = Counts()
    return SampleProgress(
        stage=title,
        done=done,
        total=total,
        requests=counts.requests,
        cached=counts.cache_hits,
        failed=counts.failures,
    )


async def judge_sample(
    benches: Benches, *, run: str, name: str, text: str
) -> AsyncIterator[SampleProgress | SampleResult]:
    """Compare a draft on the sample: yield the progress of the comparison, then its measures.

    Closing the generator, as when the page goes away, cancels the requests.

    Args:
        benches: Benches.
        run: Name of the run.
        name: Name of the prompt.
        text: Text of the draft.
    """
    inputs = await benches.lab.call_in_thread(_prepare, benches, run, name, text)
    progress = _ProgressLines()
    running_comparison = asyncio.ensure_future(
        concurrency.run_async(compare_prompts(inputs, progress))
    )
    try:
        while not running_comparison.done():
            await asyncio.wait([running_comparison], timeout=_LINE_INTERVAL)
            for line in progress.take_lines():
                yield line
        comparison = running_comparison.result()
    finally:
        # Has no effect on a comparison that has ended.
        running_comparison.cancel()

    files = benches.lab.find_qrels([run], comparison.task, inputs.config)
    page = await asyncio.to_thread(_render_page, comparison, inputs.qrels, files)
    yield _describe_comparison(comparison, page=_keep_page(benches, page))


def _render_page(comparison: PromptComparison, qrels: Qrels, files: Mapping[str, Path]) -> str:
    """Render the page of a comparison, with short names of the qrels files."""
    return render_matrix(comparison, qrels, shorten_paths(files))


def _keep_page(benches: Benches, page: str) -> str:
    """Keep a page in place of the oldest one, and return its address."""
    page_id = secrets.token_urlsafe(8)
    benches.pages[page_id] = page
    for old_id in list(benches.pages)[:-_MAX_PAGES]:
        del benches.pages[old_id]
    return f"/api/comparison?id={page_id}"


def _describe_comparison(comparison: PromptComparison, *, page: str) -> SampleResult:
    """Return the measures of a comparison, as the lab's page shows them.

    Args:
        comparison: Comparison of two prompts over a sample that has one part.
        page: Address of the page of the comparison.
    """
    (part,) = comparison.parts
    baseline, variant = comparison.variants
    failures = Counter(failure.kind for failure in comparison.all_failures())
    return SampleResult(
        measures=[_describe_measure(part, measure, baseline, variant) for measure in part.measures],
        names=[baseline.name, variant.name],
        topics=len(part.topics),
        documents=len(part.sample),
        chance=part.chance,
        notes=list(comparison.notes),
        failures=dict(failures),
        page=page,
    )


def _describe_measure(
    part: PartMeasures, measure: Measure, baseline: Variant, variant: Variant
) -> MeasureEntry:
    """Return the values of two prompts by a measure, and their difference."""
    change = read_change(part.differences[variant.name, measure])
    return MeasureEntry(
        measure=str(measure),
        baseline=part.estimates[baseline.name][measure].value,
        value=part.estimates[variant.name][measure].value,
        n=change.topics,
        difference=change.difference,
        low=change.interval.low,
        high=change.interval.high,
        p=change.p,
    )


def show_comparison(benches: Benches, *, id: str) -> web.Response:
    """Return the page of a comparison.

    Raises:
        DataError: The page is not kept any more.
    """
    if id not in benches.pages:
        problem = "this comparison is not kept any more"
        raise DataError(f"{problem}; judge the sample again, all its answers are in the cache")
    return make_page(benches.pages[id])
