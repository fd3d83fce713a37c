"""Measures of the demo's runs, with the invented judgments of the samples."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from touche_llm.cli.tables import Column, format_value, show_table
from touche_llm.config import Config
from touche_llm.data.files import shorten_path
from touche_llm.data.trec_runs import ParsedRun
from touche_llm.errors import UsageError
from touche_llm.evaluation.qrels import STANCE, Qrels, read_qrels
from touche_llm.pipeline.recorded_evaluation import record_evaluation
from touche_llm.pipeline.run_all import RunResult
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_files import REPORT
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task

# Documents of a topic with their text in the report.
_REPORTED = 20


def find_judgments(sample: Path, task: Task) -> dict[str, Path]:
    """Return the qrels files of a sample by aspect; empty if nobody invented any."""
    files = {aspect: sample / f"qrels-{aspect}.txt" for aspect in task.judged_aspects}
    return {aspect: file for aspect, file in files.items() if file.is_file()}


def measure_run(
    result: RunResult, config: Config, task: Task, files: dict[str, Path], folder: Path
) -> list[tuple[str, dict[str, float]]]:
    """Measure the first stage, the order by the judge prompt alone and the run, best first by its first measure.

    The values of the run are kept in its folder, for `report`.

    Returns:
        For each ranking its name and its values by measure: the official ones of the task, and judged@5.
    """
    from touche_llm.evaluation.measures import JUDGED, evaluate_run
    from touche_llm.pipeline.library import rank
    from touche_llm.pipeline.progress import SilentProgress

    qrels = read_qrels(files, task)
    by_judge = rank(result.candidates, result.judgments, steps=["judge"], progress=SilentProgress())
    rankings: list[tuple[str, ParsedRun, Qrels]] = [
        (task.before_judging, ParsedRun(dict(result.candidates.rankings), {}), replace(qrels, stances={})),
        ("judge", by_judge, qrels),
        (", ".join(config.rank), result.ranking, qrels),
    ]
    evaluations = [evaluate_run(name, run, judged) for name, run, judged in rankings]
    record_evaluation(RunDirectory(folder), task, files, evaluations[-1])
    measures = [f"{aspect} {task.definition.measures[aspect]}" for aspect in files]
    measures.append(f"{next(iter(files))} {JUDGED}")
    values = []
    for evaluation in evaluations:
        found = evaluation.estimates
        values.append((evaluation.name, {name: found[name].value if name in found else math.nan for name in measures}))
    return sorted(values, key=lambda item: -item[1][measures[0]])


def show_places(values: list[tuple[str, dict[str, float]]], width: int) -> None:
    """Print a table like that of a shared task."""
    measures = list(values[0][1])
    aspects = [measure.split(" ", 1) for measure in measures]
    title = ", ".join(f"{name} of {'stances' if aspect == STANCE else aspect}" for aspect, name in aspects[:-1])
    columns = [Column("place"), Column("ranking", is_text=True)]
    columns += [*(Column(aspect) for aspect, _ in aspects[:-1]), Column(aspects[-1][1])]
    show_table(
        columns,
        (
            (str(place), name, *("" if math.isnan(value) else format_value(value) for value in of_run.values()))
            for place, (name, of_run) in enumerate(values, 1)
        ),
        title=title,
        below=["by judgments that were invented with the sample, so the values mean nothing"],
        width=width,
    )


def describe_report(folder: Path, files: dict[str, Path]) -> list[str]:
    """Write the report of a run, and return lines that say where it is, or which extra it needs."""
    # Only here: matplotlib takes half a second to load.
    from touche_llm.report.page import write_page
    from touche_llm.report.run_page import render_report
    from touche_llm.report.run_report import gather_report

    task = get_task(RunDirectory(folder).read_config().task)
    report = gather_report(folder, read_qrels(files, task) if files else None, _REPORTED)
    try:
        page = render_report(report)
    except UsageError as error:
        return [f"No report: {error}"]
    write_page(page, folder / REPORT)
    return [f"Report of the first run, a page for a browser: {shorten_path(folder / REPORT)}"]
