"""Views of the bench that measure: a draft compared with its saved version over a sample of the choosing half."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from touche_llm.api.progress import SilentProgress
from touche_llm.data import concurrency
from touche_llm.data.files import shorten_path
from touche_llm.errors import DataError, PromptError, UsageError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.lab.bench import Benches
from touche_llm.lab.runs import make_page
from touche_llm.lab.runs_of_lab import run_apart
from touche_llm.llm.counts import Counts
from touche_llm.prompt_lab.comparison import (
    ComparisonInputs,
    PromptComparison,
    compare_prompts,
    estimate_comparison,
)
from touche_llm.prompt_lab.variants import Variant
from touche_llm.report.matrix import render_matrix

# Pages of comparisons that are kept.
_MAX_PAGES = 8


def _prepare(benches: Benches, run: str, name: str, text: str) -> ComparisonInputs:
    """Return the comparison of a text with its saved version, or of a saved text with the prompt of the run."""
    bench = benches.get(run)
    qrels = benches.lab.read_qrels([run], bench.context.task, bench.config)
    if qrels is None:
        raise UsageError("no qrels: evaluate the run, or start the lab with qrels")
    draft, saved = bench.load(name, text), bench.load(name)
    if draft.hash != saved.hash:
        variants = [Variant("saved", saved), Variant("draft", draft)]
    elif (baseline := bench.find_baseline(name)) is not None:
        variants = [Variant(prompt.label, prompt) for prompt in (bench.load(baseline), saved)]
    else:
        raise UsageError("Change the text to compare it with the saved version.")
    return ComparisonInputs(bench.config, variants, qrels)


async def estimate_sample(benches: Benches, *, run: str, name: str, text: str) -> dict[str, Any]:
    """Return the requests and tokens of a comparison of the sample; nothing is sent."""
    try:
        inputs = await benches.lab.apart(_prepare, benches, run, name, text)
    except (PromptError, UsageError) as error:
        return {"problem": str(error)}
    cost = await run_apart(estimate_comparison, inputs, SilentProgress())
    use = [each.usage for each in cost.costs]
    return {
        "requests": sum(each.requests for each in use),
        "tokens": sum(each.prompt_tokens + each.completion_tokens for each in use),
        "known": sum(cost.known.values()),
        "compared": [variant.name for variant in inputs.names if isinstance(variant, Variant)],
    }


class _LinesOfProgress:
    """Progress of a comparison as lines for the page; stages run in another thread."""

    def __init__(self) -> None:
        # None at the end.
        self.lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def warn(self, message: str) -> None:
        """Drop the message, which the result has too."""

    @contextmanager
    def stage(
        self, title: str, total: int, counts: Counts | None = None
    ) -> Iterator[Callable[[], None]]:
        """Add a line for each step of a stage."""
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            sent = (
                (0, 0, 0)
                if counts is None
                else (counts.requests, counts.cache_hits, counts.failures)
            )
            line = {"stage": title, "done": done, "total": total}
            line |= dict(zip(("requests", "cached", "failed"), sent, strict=True))
            self._loop.call_soon_threadsafe(self.lines.put_nowait, line)

        yield advance


async def judge_sample(
    benches: Benches, *, run: str, name: str, text: str
) -> AsyncIterator[dict[str, Any]]:
    """Yield the progress of a comparison of the sample, then its measures.

    Closing it cancels the requests.
    """
    progress = _LinesOfProgress()
    inputs = await benches.lab.apart(_prepare, benches, run, name, text)
    work = asyncio.ensure_future(concurrency.run_async(compare_prompts(inputs, progress)))
    try:
        work.add_done_callback(lambda _: progress.lines.put_nowait(None))
        while (line := await progress.lines.get()) is not None:
            yield line
        found = await work
        files = benches.lab.find_qrels([run], found.task, inputs.config)
        yield await asyncio.to_thread(_describe, benches, found, inputs.qrels, files)
    finally:
        work.cancel()


def _describe(
    benches: Benches, found: PromptComparison, qrels: Qrels, files: Mapping[str, Path]
) -> dict[str, Any]:
    """Return the measures of a comparison, and keep its page."""
    (part,), (base, draft) = found.parts, found.variants
    rows = []
    for measure in part.measures:
        change = part.differences[draft.name, measure]
        rows.append(
            {
                "measure": str(measure),
                "baseline": part.estimates[base.name][measure].value,
                "value": part.estimates[draft.name][measure].value,
                **{name: change[name] for name in ("n", "difference", "low", "high", "p")},
            }
        )
    page = secrets.token_urlsafe(8)
    shown = {aspect: Path(shorten_path(path)) for aspect, path in files.items()}
    benches.pages[page] = render_matrix(found, qrels, shown)
    for old in list(benches.pages)[:-_MAX_PAGES]:
        del benches.pages[old]
    return {
        "measures": rows,
        "names": [base.name, draft.name],
        "topics": len(part.topics),
        "documents": len(part.sample),
        "chance": part.chance,
        "notes": found.notes,
        "failures": Counter(failure.kind for failure in found.all_failures()),
        "page": f"/comparison?id={page}",
    }


def show_comparison(benches: Benches, *, id: str) -> web.Response:
    """Return the page of a comparison."""
    if id not in benches.pages:
        raise DataError(
            "this comparison is not kept any more; judge the sample again, all its answers are in the cache"
        )
    return make_page(benches.pages[id])
