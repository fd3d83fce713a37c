"""Runs of a folder: a row for each, measured over the topics to choose on or over all, and their comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from touche_llm.api.dataset import read_run_topics
from touche_llm.data.files import shorten_path
from touche_llm.data.locks import LOCK
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.lab.runs_of_lab import Workplace
from touche_llm.prompt_lab.holdout import CHOICE, find_half, record_evaluations
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import COMPLETE, RunOverview, read_overview
from touche_llm.tasks import get_task

# Seconds between looks at the folders.
_LOOK = 2.0
_TOP = 20
_MEASURED = ("value", "low", "high", "n", "judged")
# When the files that a row depends on were changed.
_State = tuple[int, ...]


class RunList:
    """Rows of the runs; the measures of each are computed once for each state of its files."""

    def __init__(self, lab: Workplace) -> None:
        self._lab = lab
        self._measured: dict[tuple[str, _State, bool], dict[str, Any]] = {}

    def list(self, *, all: int = 0) -> dict[str, Any]:
        """Return the rows, with the measures that are known; the others are pending."""
        return {"rows": [self._make_row(name, bool(all)) for name in self._lab.list_runs()]}

    async def read(self, *, run: str, all: int = 0) -> dict[str, Any]:
        """Return the row of a run, measured over the topics to choose on, or over all, which is logged."""
        # In a thread of its own, since measuring takes a while.
        return await asyncio.to_thread(self._read, run, all)

    def _read(self, run: str, all: int) -> dict[str, Any]:
        overview, key = read_overview(self._lab.find_run(run).path), self._find_key(run, bool(all))
        if key not in self._measured and overview.state == COMPLETE:
            try:
                self._measured[key] = {
                    "measures": self._measure(run, overview, bool(all)),
                    "note": "",
                }
            except (ToucheError, OSError) as error:
                self._measured[key] = {"measures": {}, "note": str(error)}
        return self._make_row(run, bool(all))

    def _find_key(self, run: str, is_all: bool) -> tuple[str, _State, bool]:
        return run, read_state(self._lab.find_run(run)), is_all

    def _make_row(self, run: str, is_all: bool) -> dict[str, Any]:
        overview = read_overview(self._lab.find_run(run).path)
        unknown = {"measures": {}, "note": "", "pending": overview.state == COMPLETE}
        measured = self._measured.get(self._find_key(run, is_all), unknown)
        return {
            "run": run,
            "state": overview.state,
            "problem": overview.problem,
            "task": "" if overview.config is None else Path(overview.config.task).name,
            "model": overview.model,
            "prompt": overview.prompt,
            "topics": overview.topics,
            **overview.totals,
            "changed": overview.changed.astimezone().isoformat(timespec="seconds"),
            **measured,
        }

    def _measure(self, run: str, overview: RunOverview, is_all: bool) -> dict[str, Any]:
        if overview.config is None:
            return {}
        task = get_task(overview.config.task)
        qrels = self._lab.read_qrels([run], task, overview.config)
        if qrels is None:
            return {}
        # Imported late: pandas and scipy load slowly.
        from touche_llm.evaluation.measures import evaluate_run, list_headline

        if is_all:
            self._lab.log_evaluation(run, qrels)
        else:
            qrels = restrict_to_choice(qrels, overview)
        evaluation = evaluate_run(run, overview.directory.read_run(task.stances), qrels)
        rows = {row["measure"]: row for row in evaluation.summary().to_dict("records")}
        return {
            str(measure): {column: rows[measure][column] for column in _MEASURED}
            for measure in list_headline(qrels)
        }


def restrict_to_choice(qrels: Qrels, overview: RunOverview) -> Qrels:
    """Return the judgments of the topics of a run that are not held out."""
    assert overview.config is not None
    topics = read_run_topics(overview.config)
    return qrels.restrict_to({topic.id for topic in topics if find_half(topic.title) == CHOICE})


def read_state(directory: RunDirectory) -> _State:
    """Return when the files that a row depends on were changed."""
    files = (
        directory.metadata_file,
        directory.run_file,
        directory.evaluation_file,
        directory.config_file,
    )
    paths = (directory.path, *files, directory.path / LOCK)
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


async def watch_runs(lab: Workplace) -> AsyncIterator[str]:
    """Yield the name of each run that is new or changed, as long as the caller wants."""

    def look() -> dict[str, _State]:
        return {run: read_state(lab.find_run(run)) for run in lab.list_runs()}

    seen = await lab.apart(look)
    while True:
        await asyncio.sleep(_LOOK)
        states = await lab.apart(look)
        for run in states:
            if seen.get(run) != states[run]:
                yield run
        seen = states


def compare(lab: Workplace, *, run: list[str], all: int = 0) -> web.Response:
    """Return the page that compares runs with the first, over the topics to choose on or all, which is logged."""
    from touche_llm.evaluation.comparisons import compare_runs
    from touche_llm.evaluation.measures import evaluate_run
    from touche_llm.report.page import render
    from touche_llm.report.run_pages import check_number, gather_comparison

    runs = list(dict.fromkeys(run))
    overviews = [read_overview(lab.find_run(name).path) for name in runs]
    if (config := overviews[0].config) is None or len(overviews) < 2:
        raise UsageError(f"compare: name two runs or more; {overviews[0].problem}")
    task = get_task(config.task)
    files, qrels = lab.find_qrels(run, task, config), lab.read_qrels(run, task, config)
    if qrels is None:
        raise DataError(f"{run[0]}: no qrels; evaluate the run, or start the lab with qrels")
    check_number(len(overviews))
    remarks = []
    if not all:
        qrels = restrict_to_choice(qrels, overviews[0])
        remarks = ["Held-out topics have no judgments on this page."]
    rankings = {
        name: each.directory.read_run(task.stances)
        for name, each in zip(runs, overviews, strict=True)
    }
    folders = [overview.directory.path for overview in overviews]
    depth = max(
        len(ranking) for ranked in rankings.values() for ranking in ranked.rankings.values()
    )
    evaluations = [evaluate_run(name, ranked, qrels, depth) for name, ranked in rankings.items()]
    record_evaluations(folders, qrels, lab.warn)
    comparison = compare_runs(evaluations[0], evaluations[1:])
    notes = [*remarks, *comparison.notes]
    named = {aspect: Path(shorten_path(path)) for aspect, path in files.items()}
    return make_page(
        render(gather_comparison(evaluations, folders, task, named, comparison.rows, notes, _TOP))
    )


def make_page(text: str) -> web.Response:
    """Return a page about runs or prompts; its own policy allows the style and script within it."""
    policy = {"Content-Security-Policy": "frame-ancestors 'none'"}
    return web.Response(text=text, content_type="text/html", headers=policy)
