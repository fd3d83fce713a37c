"""The demo: each task on the project's own sample, replayed."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from touche_llm.cli import options as o
from touche_llm.cli.demo_measures import describe_report, find_judgments, measure_run, show_places
from touche_llm.cli.output import Format, FormatOption, format_program, print_rows, say
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.rankings import list_rows, read_run_topics, show_rankings
from touche_llm.config import Config
from touche_llm.data.files import shorten_path
from touche_llm.errors import UsageError
from touche_llm.integrations.tira import detect_input
from touche_llm.pipeline import run_all as pipeline
from touche_llm.pipeline import run_files
from touche_llm.pipeline.config_file import load_config
from touche_llm.tasks import TASKS, get_task

SAMPLES = Path(__file__).parent.parent / "samples"
# Names of the tasks with a sample.
SAMPLE_TASKS = [name for name in TASKS if (SAMPLES / name).is_dir()]
_SHOWN_RANKS = 3
# Width of the tables where the output is not a terminal.
_WIDTH = 80
# Grades of all tasks.
_GRADES = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.question.grades))
_COLUMNS = ("topic", "title", "rank", "document", "stance", "object", *_GRADES, "text")


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the demo's runs.")] = Path(
        "runs/demo"
    ),
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Show only this task.")] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run the tasks on small samples, offline, and measure the runs.

    Answers and judgments are invented.
    """
    names = SAMPLE_TASKS if task is None else [get_task(task).name]
    if not set(names) <= set(SAMPLE_TASKS):
        raise UsageError(f"--task {task}: the demo has no sample of it; give {', '.join(SAMPLE_TASKS)}")
    rows: list[dict[str, Any]] = []
    for name in names:
        if output is Format.TABLE:
            print(f"{TASKS[name].title}\n")
        config = sample_config(name, out / name, {})
        done = asyncio.run(pipeline.run_all(config, out / name, CommandProgress(), overwrite=overwrite))
        known, by_id = get_task(name), read_run_topics(out / name, config)
        ranked = list_rows(out / name, config, known, by_id, _SHOWN_RANKS)
        judgments = find_judgments(SAMPLES / name, known)
        measured = measure_run(done, config, known, judgments, out / name) if judgments else []
        if output is Format.TABLE:
            show_rankings(ranked, known, by_id, width=_WIDTH)
            print()
            if measured:
                show_places(measured, _WIDTH)
                print()
        rows += ({"task": name} | {column: row.get(column) for column in _COLUMNS} for row in ranked)
    if output is not Format.TABLE:
        print_rows(output, rows)
    name = names[0]
    config = sample_config(name, out / name, {})
    files = (config.topics, config.corpus or config.topics, out / name / run_files.RUN)
    topics, corpus, run = (shlex.quote(shorten_path(file)) for file in files)
    command = format_program()
    for line in (
        "The answers above were invented for this demo; no model gave them,",
        "and nothing follows from them. The same is true of the judgments.",
        *describe_report(out / names[0], find_judgments(SAMPLES / names[0], TASKS[names[0]])),
        "Each run is a file; check one with",
        f"    {command} validate {run} \\",
        f"        --task {name} --topics {topics}",
        "For answers of a model, serve one with vLLM and run",
        f"    {command} run --task {name} --topics {topics} \\",
        f"        --corpus {corpus} \\",
        "        --base-url http://127.0.0.1:8000 --out runs/model",
    ):
        say(output, line)


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
