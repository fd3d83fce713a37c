"""Runs of a folder: a row for each with its measures, and their comparison.

The rows are sent to the page as JSON; their attributes are the names that its scripts read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from touche_llm.api.dataset import read_run_topics
from touche_llm.config.configuration import Config
from touche_llm.data.files import shorten_path
from touche_llm.data.locks import LOCK
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.errors import DataError, ToucheError, UsageError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.lab.runs_of_lab import Workplace, check_inputs
from touche_llm.prompt_lab.holdout import CHOICE, find_half, record_evaluations
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import COMPLETE, RunOverview, read_overview
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

if TYPE_CHECKING:
    from touche_llm.evaluation.measures import Evaluation
    from touche_llm.report.comparison_page import ComparisonPage

# Seconds between looks at the folders.
_LOOK_INTERVAL = 2.0
_TOP = 20
# When the files that a row depends on were changed.
_State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeasureValue:
    """Value of a measure.

    Attributes:
        value: Value over the judged topics; NaN if it is undefined.
        low: Lower end of the 95 % interval; NaN without an interval.
        high: Upper end of the interval.
        n: Number of topics, or of documents for stances.
        judged: Share of judged documents at the measure's cutoff.
    """

    value: float
    low: float
    high: float
    n: int
    judged: float


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run in the list of runs.

    Attributes:
        run: Name of the run.
        state: State, as in `RunOverview`.
        problem: Why it is unfinished or broken; empty otherwise.
        task: Task of the run; empty if its configuration cannot be read.
        model: Model of the judgments; empty if there are none.
        prompt: Judge prompt; empty before the judge stage.
        topics: Number of topics; None before the first stage.
        requests: Requests of all stages.
        cached: Answers from the cache.
        prompt_tokens: Tokens of the prompts of requests.
        completion_tokens: Tokens of the completions of requests.
        failures: Failed requests.
        unread: Answers with unreadable labels.
        overruled: Stances unlike the written answer.
        seconds: Time of all stages.
        changed: When the run was last written, in ISO 8601.
        measures: Headline measures by name; empty unless they are known.
        note: Why the run cannot be measured; empty otherwise.
        pending: Whether the run can be measured and was not yet.
    """

    run: str
    state: str
    problem: str
    task: str
    model: str
    prompt: str
    topics: int | None
    requests: float
    cached: float
    prompt_tokens: float
    completion_tokens: float
    failures: float
    unread: float
    overruled: float
    seconds: float
    changed: str
    measures: Mapping[str, MeasureValue]
    note: str
    pending: bool


@dataclass(frozen=True, slots=True)
class RunEntries:
    """Rows of all runs."""

    rows: list[RunEntry]


@dataclass(frozen=True, slots=True)
class _Measured:
    """Headline measures of a run by name, or a note on why there are none."""

    measures: Mapping[str, MeasureValue] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class _MeasuredState:
    """What the measures of a run depend on.

    They are the state of its files, the settings of its folder that are used, and whether all
    topics count.
    """

    run: str
    files: _State
    settings: tuple[str, ...]
    is_all: bool


class RunList:
    """Rows of the runs.

    The measures of each are computed once for each state of its files.
    """

    def __init__(self, lab: Workplace) -> None:
        self._lab = lab
        self._measured: dict[_MeasuredState, _Measured] = {}

    def list(self, *, all: bool = False) -> RunEntries:
        """Return the rows, with the measures that are known; the others are pending."""
        return RunEntries([self._make_row(name, all) for name in self._lab.list_runs()])

    async def read(self, *, run: str, all: bool = False) -> RunEntry:
        """Return the row of a run, measured over the topics to choose on.

        With `all`, it is measured over all topics, which is logged.
        """
        # In a thread of its own, since measuring takes a while.
        return await asyncio.to_thread(self._read, run, all)

    def _read(self, run: str, is_all: bool) -> RunEntry:
        """Return the row of a run, measured now unless it already was in its present state.

        Args:
            run: Name of the run.
            is_all: Whether all topics count, or only those to choose on.
        """
        overview = self._read_overview(run)
        present_state = self._find_state(run, is_all)
        if overview.state == COMPLETE and present_state not in self._measured:
            self._measured[present_state] = self._measure(run, overview, is_all)
        return self._make_row(run, is_all)

    def _find_state(self, run: str, is_all: bool) -> _MeasuredState:
        """Return what the measures of a run depend on."""
        return _MeasuredState(
            run=run,
            files=read_state(self._lab.find_run(run)),
            settings=tuple(self._lab.list_used(run)),
            is_all=is_all,
        )

    def _read_overview(self, run: str) -> RunOverview:
        """Read the overview of a run, with what the user says about its folder."""
        return read_overview(self._lab.find_run(run).path, self._lab.make_user_options(run))

    def _make_row(self, run: str, is_all: bool) -> RunEntry:
        """Return the row of a run with the measures that are known.

        Args:
            run: Name of the run.
            is_all: Whether all topics count, or only those to choose on.
        """
        overview = self._read_overview(run)
        measured = self._measured.get(self._find_state(run, is_all))
        is_pending = measured is None and overview.state == COMPLETE
        if measured is None:
            measured = _Measured()

        config = overview.config
        totals = overview.totals
        return RunEntry(
            run=run,
            state=overview.state,
            problem=overview.problem,
            task="" if config is None else Path(config.task).name,
            model=overview.model,
            prompt=overview.prompt,
            topics=overview.topics,
            requests=totals["requests"],
            cached=totals["cached"],
            prompt_tokens=totals["prompt_tokens"],
            completion_tokens=totals["completion_tokens"],
            failures=totals["failures"],
            unread=totals["unread"],
            overruled=totals["overruled"],
            seconds=totals["seconds"],
            changed=overview.changed.astimezone().isoformat(timespec="seconds"),
            measures=measured.measures,
            note=measured.note,
            pending=is_pending,
        )

    def _measure(self, run: str, overview: RunOverview, is_all: bool) -> _Measured:
        """Measure a run, or note why it cannot be measured."""
        try:
            return _Measured(measures=self._compute_measures(run, overview, is_all))
        except (ToucheError, OSError) as error:
            return _Measured(note=str(error))

    def _compute_measures(
        self, run: str, overview: RunOverview, is_all: bool
    ) -> dict[str, MeasureValue]:
        """Return the headline measures of a run by name; empty without qrels.

        If all topics count, held-out ones are among them, so the access to their judgments is
        logged.

        Args:
            run: Name of the run.
            overview: Overview of the run.
            is_all: Whether all topics count, or only those to choose on.
        """
        config = overview.config
        if config is None:
            return {}
        task = get_task(config.task)
        qrels = self._lab.read_qrels([run], task, config)
        if qrels is None:
            return {}

        check_inputs(self._lab.load(run), "topics")
        if is_all:
            self._lab.log_evaluation(run, qrels)
        else:
            qrels = restrict_to_choice(qrels, config)
        parsed_run = overview.directory.read_run(task.stances)
        return _list_measures(run, parsed_run, qrels)


def _list_measures(name: str, run: ParsedRun, qrels: Qrels) -> dict[str, MeasureValue]:
    """Return the headline measures of a run by name."""
    # Imported late: pandas and scipy load slowly.
    from touche_llm.evaluation.measures import evaluate_run, list_headline

    summary = evaluate_run(name, run, qrels).summary()
    row_of_measure = {row["measure"]: row for row in summary.to_dict("records")}

    measures: dict[str, MeasureValue] = {}
    for measure in list_headline(qrels):
        row = row_of_measure[measure]
        measures[str(measure)] = MeasureValue(
            value=row["value"],
            low=row["low"],
            high=row["high"],
            n=row["n"],
            judged=row["judged"],
        )
    return measures


def restrict_to_choice(qrels: Qrels, config: Config) -> Qrels:
    """Return the judgments of the topics of a run that are not held out."""
    topics = read_run_topics(config)
    return qrels.restrict_to({topic.id for topic in topics if find_half(topic.title) == CHOICE})


def read_state(directory: RunDirectory) -> _State:
    """Return when the files that a run's row depends on were changed, in nanoseconds.

    A missing file counts as changed at 0.
    """
    paths = (
        directory.path,
        directory.metadata_file,
        directory.run_file,
        directory.evaluation_file,
        directory.config_file,
        directory.path / LOCK,
    )
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


async def watch_runs(lab: Workplace) -> AsyncGenerator[str]:
    """Yield the name of each run that is new or changed, as long as the caller wants.

    Begin with an empty name, so that the page knows that it is connected.
    """
    seen = await lab.call_in_thread(_read_states, lab)
    yield ""
    while True:
        await asyncio.sleep(_LOOK_INTERVAL)
        states = await lab.call_in_thread(_read_states, lab)
        for run, state in states.items():
            if seen.get(run) != state:
                yield run
        seen = states


def _read_states(lab: Workplace) -> dict[str, _State]:
    """Return the state of each run's files by name."""
    return {run: read_state(lab.find_run(run)) for run in lab.list_runs()}


def compare(lab: Workplace, *, run: list[str], all: bool = False) -> web.Response:
    """Return the page that compares runs with the first one.

    The access to judgments is logged.

    Args:
        lab: Workplace of the lab.
        run: Names of the runs.
        all: Whether all topics count, or only those to choose on.

    Raises:
        UsageError: There are fewer than two runs or too many.
        DataError: The first run cannot be read, or the runs have no qrels.
    """
    # Imported late: pandas and scipy load slowly.
    from touche_llm.report.page import render

    # The parameters are named as in the query of the request, where `run` is repeated.
    names = list(dict.fromkeys(run))
    page = _gather_page(lab, _select_runs(lab, names, is_all=all))
    return make_page(render(page))


@dataclass(frozen=True, slots=True)
class _ComparedRuns:
    """Runs to compare, with the judgments to measure them by.

    Attributes:
        directories: Folders of the runs by name; the first is the baseline.
        task: Task of the runs.
        qrels_files: Qrels files by aspect.
        qrels: Judgments of the topics that count.
        notes: Notes on the judgments.
    """

    directories: Mapping[str, RunDirectory]
    task: Task
    qrels_files: Mapping[str, Path]
    qrels: Qrels
    notes: list[str]


def _select_runs(lab: Workplace, names: Sequence[str], *, is_all: bool) -> _ComparedRuns:
    """Return runs to compare with the first one, with their judgments.

    Args:
        lab: Workplace of the lab.
        names: Names of the runs, each once.
        is_all: Whether all topics count, or only those to choose on.

    Raises:
        UsageError: There are fewer than two runs or too many.
        DataError: The first run cannot be read, or the runs have no qrels.
    """
    # Imported late: pandas and scipy load slowly.
    from touche_llm.report.comparison_page import check_number

    if len(names) < 2:
        raise UsageError(f"compare: number of runs is {len(names)}; select 2 or more")
    check_number(len(names))
    directories = {name: lab.find_run(name) for name in names}

    # The task, the topics and the qrels are those of the first run.
    baseline = names[0]
    overview = read_overview(directories[baseline].path, lab.make_user_options(baseline))
    config = overview.config
    if config is None:
        raise DataError(f"{baseline}: {overview.problem}")
    task = get_task(config.task)
    qrels = lab.read_qrels(names, task, config)
    if qrels is None:
        raise DataError(f"{baseline}: no qrels; evaluate the run, or start the lab with qrels")
    check_inputs(lab.load(baseline), "topics")

    notes: list[str] = []
    if not is_all:
        qrels = restrict_to_choice(qrels, config)
        notes.append("Held-out topics have no judgments on this page.")
    return _ComparedRuns(
        directories=directories,
        task=task,
        qrels_files=lab.find_qrels(names, task, config),
        qrels=qrels,
        notes=notes,
    )


def _gather_page(lab: Workplace, compared: _ComparedRuns) -> ComparisonPage:
    """Return the page that compares runs with the first one; the access to judgments is logged."""
    # Imported late: pandas and scipy load slowly.
    from touche_llm.evaluation.comparisons import compare_runs
    from touche_llm.report.comparison_page import gather_comparison

    evaluations = _evaluate_runs(compared)
    _record_access(lab, compared)

    baseline, *others = evaluations
    comparison = compare_runs(baseline, others)
    return gather_comparison(
        evaluations=evaluations,
        paths=[directory.path for directory in compared.directories.values()],
        task=compared.task,
        judged_by=shorten_paths(compared.qrels_files),
        comparison=replace(comparison, notes=[*compared.notes, *comparison.notes]),
        top=_TOP,
    )


def _record_access(lab: Workplace, compared: _ComparedRuns) -> None:
    """Log that the judgments are used to evaluate the runs."""
    user_options = {
        directory.path: lab.make_user_options(name)
        for name, directory in compared.directories.items()
    }
    record_evaluations(user_options, compared.qrels, lab.warn)


def shorten_paths(files: Mapping[str, Path]) -> dict[str, Path]:
    """Return the qrels files of aspects with short paths, as a page names them."""
    return {aspect: Path(shorten_path(file)) for aspect, file in files.items()}


def _evaluate_runs(compared: _ComparedRuns) -> list[Evaluation]:
    """Measure runs by the same judgments, with recall at the depth of the longest ranking."""
    # Imported late: pandas and scipy load slowly.
    from touche_llm.evaluation.measures import evaluate_run

    stances = compared.task.stances
    runs = {name: directory.read_run(stances) for name, directory in compared.directories.items()}
    depth = max(len(ranking) for run in runs.values() for ranking in run.rankings.values())
    return [evaluate_run(name, run, compared.qrels, depth) for name, run in runs.items()]


def make_page(text: str) -> web.Response:
    """Return a page about runs or prompts, which the lab's page shows in a tab of its own."""
    return web.Response(text=text, content_type="text/html")
