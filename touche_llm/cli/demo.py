"""The demo: each task on the project's own sample, replayed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.api.progress import SilentProgress
from touche_llm.cli import measured_runs as m
from touche_llm.cli import shared_options as o
from touche_llm.cli.evaluate import show_summary, summarize
from touche_llm.cli.output import show_lines
from touche_llm.cli.show import list_rows, read_run_topics, show_rankings
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.data.files import shorten_path
from touche_llm.errors import UsageError
from touche_llm.evaluation.qrels import find_qrels, read_qrels
from touche_llm.integrations.tira import detect_input
from touche_llm.interrupts import run_until_interrupted
from touche_llm.runs import directory as run_directory
from touche_llm.runs import stages as pipeline
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import record_evaluation
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.task import Task


def _measure(folder: Path, task: Task, files: dict[str, Path]) -> None:
    """Print the official measures of a run and of its first stage.

    Those of the run are kept in its folder, for `report`.
    """
    qrels = read_qrels(files, task)
    measured = m.given_runs([folder], qrels, task)
    evaluations = m.evaluate_runs(measured, qrels, m.find_recall_depth(measured))
    # The run comes after its first stage.
    record_evaluation(RunDirectory(folder), task, files, evaluations[-1])

    official = [task.official_measures[aspect] for aspect in files]
    rows = [row for row in summarize(evaluations) if row["measure"] in official]
    show_summary(rows, evaluations)


SAMPLES = Path(__file__).parent.parent / "samples"
# Names of the tasks with a sample.
SAMPLE_TASKS = [name for name in TASKS if (SAMPLES / name).is_dir()]


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for the demo's runs.")
    ] = Path("runs/demo"),
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Show only this task.")
    ] = None,
    overwrite: o.OverwriteOption = False,
) -> None:
    """Run the tasks on small samples, offline, and measure the runs.

    Answers and judgments are invented.
    """
    names = SAMPLE_TASKS if task is None else [get_task(task).name]
    if any(name not in SAMPLE_TASKS for name in names):
        raise UsageError(
            f"--task {task}: the demo has no sample of it; give {', '.join(SAMPLE_TASKS)}"
        )

    for name in names:
        _run_sample(TASKS[name], out / name, overwrite=overwrite)
    show_lines(_list_next_steps(names[0], out / names[0]))


def _run_sample(task: Task, folder: Path, *, overwrite: bool) -> None:
    """Run a task on its sample, and print its best documents and its measures."""
    config = sample_config(task.name, folder, {})
    # Notes would advise on models and corpora, which are invented here.
    progress = SilentProgress()
    run_until_interrupted(pipeline.run_all(config, folder, progress, overwrite=overwrite))

    topics = read_run_topics(folder, config)
    print(f"{task.title}\n")
    show_rankings(list_rows(folder, config, task, topics, top=3), task, topics)
    print()
    qrels_files = find_qrels(SAMPLES / task.name, task)
    if qrels_files:
        _measure(folder, task, qrels_files)


def _list_next_steps(task: str, folder: Path) -> list[str]:
    """Return the lines below the output: a warning, and commands to try on the run of a task."""
    config = sample_config(task, folder, {})
    run_folder = _quote(folder)
    run = _quote(folder / run_directory.RUN)
    topics = _quote(config.topics)
    corpus = _quote(config.corpus or config.topics)
    return [
        "The answers and judgments were invented for this demo; no model gave them, and nothing follows from them.",
        "Look at a run in a browser, check its file, or make a run with a model that vLLM serves:",
        f"    touche-llm report {run_folder} --open",
        f"    touche-llm validate {run} --task {task} --topics {topics}",
        f"    touche-llm run --task {task} --topics {topics} --corpus {corpus} --out runs/model",
    ]


def _quote(path: Path) -> str:
    """Return a path as it is written in a shell, from the current folder if it lies below."""
    return shlex.quote(shorten_path(path))


def sample_config(task: str, out: Path, flags: Mapping[str, Any]) -> Config:
    """Return the configuration of a sample's run in replay, overridden by `flags`."""
    sample = detect_input(SAMPLES / task)
    given: dict[str, Any] = {
        "task": task,
        "topics": sample.topics,
        "corpus": sample.corpus,
        "index": out / "index",
        "cache.file": SAMPLES / task / "cassette.jsonl",
        "cache.mode": "replay",
    }
    return load_config(SAMPLES / task / "demo.yaml", {**given, **flags})
