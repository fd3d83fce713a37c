"""Runs of a folder: a row for each, measured over the topics to choose on, kept up to date; and their comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from touche_llm.data.io import shorten_path
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.evaluation.qrels import select_topics
from touche_llm.lab.workplace import Workplace
from touche_llm.pipeline.context import read_run_topics
from touche_llm.pipeline.run_directory import LOCK, RunDirectory
from touche_llm.pipeline.run_overview import COMPLETE, RunOverview, read_overview
from touche_llm.prompt_lab.holdout import CHOICE, find_half, record_evaluations
from touche_llm.report.page import replace_directions
from touche_llm.tasks import get_task

# Seconds between looks at the folders.
_LOOK = 2.0
_TOP = 20
Row = dict[str, Any]


class RunList:
    """Rows of the runs, each with the state of its files; measures are computed once for each state."""

    def __init__(self, lab: Workplace) -> None:
        self._lab = lab
        self._measured: dict[tuple[str, tuple[int, ...]], Row] = {}

    def list(self, *, all_topics: bool) -> Row:
        """Return the rows; those over all topics have the measures of each run's last evaluation, which is logged."""
        rows = [self.make_row(name, folder) for name, folder in self._lab.list_runs().items()]
        if all_topics:
            rows = [self._measure_all(row) for row in rows]
        return {"rows": rows, "half": "all" if all_topics else CHOICE}

    def make_row(self, name: str, folder: Path) -> Row:
        """Return the row of a run, with its measures if they are known."""
        overview, usage = (found := read_overview(folder)), found.usage
        row = {
            "run": name,
            "state": overview.state,
            "problem": overview.problem,
            "task": "" if overview.config is None else Path(overview.config.task).name,
            "model": overview.model,
            "prompt": overview.prompt,
            "topics": overview.topics,
            "requests": usage.requests,
            "cached": usage.cached,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "failures": usage.failures,
            "seconds": sum(float(facts.get("seconds") or 0.0) for facts in overview.stages.values()),
            "changed": overview.changed.astimezone().isoformat(timespec="seconds"),
        }
        missing = {"measures": {}, "note": "", "pending": overview.state == COMPLETE}
        return row | self._measured.get((name, _read_state(folder)), missing)

    def measure(self, name: str, folder: Path) -> Row:
        """Measure a run over the topics to choose on; return its row."""
        state, overview = _read_state(folder), read_overview(folder)
        measures: Row = {}
        note = ""
        try:
            measures = self._measure(name, overview)
        except (ToucheError, OSError) as error:
            note = str(error)
        self._measured[name, state] = {"measures": measures, "note": note, "pending": False}
        return self.make_row(name, folder)

    def _measure(self, name: str, overview: RunOverview) -> Row:
        if overview.config is None:
            return {}
        from touche_llm.evaluation.measures import evaluate_run, list_headline

        task = get_task(overview.config.task)
        qrels = self._lab.read_qrels(name, task, overview.config)
        if qrels is None:
            return {}
        run = overview.directory.read_run(task.stances)
        evaluation = evaluate_run(name, run, qrels.restrict_to(_list_chosen_topics(overview)))
        rows = {row["measure"]: row for row in evaluation.summary().to_dict("records")}
        columns = ("value", "low", "high", "n", "judged")
        return {name: {column: rows[name][column] for column in columns} for name in list_headline(qrels)}

    def _measure_all(self, row: Row) -> Row:
        """Return a row with the measures of the run's last evaluation, which is logged as an access."""
        from touche_llm.evaluation.measures import list_headline

        overview = read_overview(self._lab.find_run(row["run"]).path)
        if overview.evaluation is None or overview.config is None:
            return row | {"measures": {}, "note": "not evaluated", "pending": False}
        task = get_task(overview.config.task)
        try:
            qrels = self._lab.read_qrels(row["run"], task, overview.config)
            assert qrels is not None
            record_evaluations([overview.directory.path], qrels, self._lab.warn)
        except ToucheError as error:
            return row | {"measures": {}, "note": str(error), "pending": False}
        recorded = overview.evaluation.measures.items()
        measures = {name: each.model_dump() for name, each in recorded if name in list_headline(qrels)}
        return row | {"measures": measures, "note": "", "pending": False}


def _list_chosen_topics(overview: RunOverview) -> set[str]:
    assert overview.config is not None
    return {topic.id for topic in read_run_topics(overview.config) if find_half(topic.title) == CHOICE}


def _read_state(folder: Path) -> tuple[int, ...]:
    """Return when the files that a row depends on were changed."""
    directory = RunDirectory(folder)
    files = (directory.metadata_file, directory.run_file, directory.evaluation_file, directory.config_file)
    paths = (folder, *files, folder / LOCK)
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


async def watch_runs(lab: Workplace, rows: RunList) -> AsyncIterator[Row]:
    """Yield the row of each run that is new, changed or measured, as long as the caller wants."""
    seen: dict[str, tuple[int, ...]] = {}

    def look() -> list[tuple[str, Path]]:
        folders = lab.list_runs()
        states = {name: _read_state(folder) for name, folder in folders.items()}
        changed = [name for name, state in states.items() if seen.get(name) != state]
        seen.update(states)
        return [(name, folders[name]) for name in changed]

    is_first = True
    while True:
        for name, folder in await lab.apart(look):
            row = await lab.apart(rows.make_row, name, folder)
            if not is_first:
                yield row
            if row["pending"]:
                yield await lab.apart(rows.measure, name, folder)
        is_first = False
        await asyncio.sleep(_LOOK)


def compare(lab: Workplace, *, run: list[str], all: int = 0) -> web.Response:
    """Return the page that compares runs with the first, over the topics to choose on or all, which is logged."""
    from touche_llm.evaluation.measures import compare_runs, evaluate_run
    from touche_llm.report.run_comparison import NamedRun, check_runs, gather_comparison, render_comparison

    if len(set(run)) < 2:
        raise UsageError("compare: name two runs or more, each once")
    overviews = [read_overview(lab.find_run(name).path) for name in run]
    if (config := overviews[0].config) is None:
        raise DataError(f"{run[0]}: {overviews[0].problem}")
    task = get_task(config.task)
    sides = [
        NamedRun(name, overview.directory.read_run(task.stances), overview.directory.path)
        for name, overview in zip(run, overviews, strict=True)
    ]
    check_runs(sides, task)
    files = _find_shared_qrels(lab, run, overviews)
    qrels = lab.read_qrels(run[0], task, config)
    if qrels is None:
        raise DataError(f"{run[0]}: no qrels; evaluate the run, or start the lab with qrels")
    if not all:
        qrels = qrels.restrict_to(_list_chosen_topics(overviews[0]))
    qrels = select_topics(qrels, [side.run for side in sides])
    depth = max(len(ranking) for side in sides for ranking in side.run.rankings.values())
    evaluations = [evaluate_run(side.name, side.run, qrels, depth) for side in sides]
    record_evaluations((side.folder for side in sides), qrels, lab.warn)
    frame, remarks = compare_runs(evaluations[0], evaluations[1:])
    if not all:
        remarks = ["Held-out topics have no judgments on this page.", *remarks]
    found = gather_comparison(sides, task, files, evaluations, frame, remarks, _TOP)
    return make_page(render_comparison(found))


def _find_shared_qrels(lab: Workplace, run: list[str], overviews: list[RunOverview]) -> Mapping[str, Path]:
    """Return the qrels of the first run, as short paths; raise UsageError if another run has other ones."""
    found = [
        {} if each.config is None else lab.find_qrels(name, get_task(each.config.task), each.config)
        for name, each in zip(run, overviews, strict=True)
    ]
    if different := [name for name, files in zip(run, found, strict=True) if files and files != found[0]]:
        raise UsageError(f"{run[0]}, {different[0]}: evaluated with different qrels; start the lab with the right ones")
    return {aspect: Path(shorten_path(path)) for aspect, path in found[0].items()}


def make_page(text: str) -> web.Response:
    """Return a page about runs or prompts; its own policy allows the style and script within it."""
    policy = {"Content-Security-Policy": "frame-ancestors 'none'"}
    return web.Response(text=replace_directions(text), content_type="text/html", headers=policy)
