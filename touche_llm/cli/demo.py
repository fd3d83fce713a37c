"""The demo: each task on the project's own sample, replayed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from touche_llm.cli import options as o
from touche_llm.cli.output import Format, FormatOption, plain, print_rows, say, show_table
from touche_llm.config import Config, load_config
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment, Objects
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_run
from touche_llm.integrations.tira import detect_input
from touche_llm.pipeline import run_all as pipeline
from touche_llm.pipeline import run_files
from touche_llm.pipeline.corpora import open_corpus
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.tasks import TASKS, get_task
from touche_llm.tasks.base import Task

SAMPLES = Path(__file__).parent.parent / "samples"
_SHOWN_RANKS = 3
_SHOWN_LINES = 2
_SHOWN_CHARS = 200
# Of all tasks.
_GRADES = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.question.grades))


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the demo's runs.")] = Path("runs/demo"),
    task: Annotated[str | None, typer.Option("--task", help="Show only this task.")] = None,
    overwrite: o.OverwriteOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run every task on a small sample, offline, with answers that were invented for the demo."""
    names = list(TASKS) if task is None else [get_task(task).name]
    rows: list[dict[str, Any]] = []
    for name in names:
        if output is Format.TABLE:
            print(f"{TASKS[name].title}\n")
        config = sample_config(name, out / name, {})
        asyncio.run(pipeline.run_all(config, out / name, ConsoleProgress(), overwrite=overwrite))
        shown = list(_shown(config, out / name))
        if output is Format.TABLE:
            _show(shown, get_task(name))
        rows += shown
    if output is not Format.TABLE:
        print_rows(output, rows)
    # Named so that the lines can be copied: the command may lie in an environment that is not active.
    command = "touche-llm" if shutil.which("touche-llm") else _short(Path(sys.argv[0]))
    name = names[0]
    config = sample_config(name, out / name, {})
    topics, corpus = _short(config.topics), _short(config.corpus or config.topics)
    for line in (
        "The answers above were invented for this demo, no served model gave them, and no figure follows from them.",
        "Each run is a file; check one with",
        f"    {command} validate {out / name / run_files.RUN} --task {name} --topics {topics}",
        "For answers of a model, serve one with vLLM and run",
        f"    {command} run --task {name} --topics {topics} --corpus {corpus} \\",
        "        --base-url http://127.0.0.1:8000 --out runs/first",
    ):
        say(output, line)


def sample_config(task: str, out: Path, flags: Mapping[str, Any]) -> Config:
    """The configuration of a sample's run in replay; `flags` go before it."""
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


def _short(path: Path) -> str:
    """The shorter way to write a path from here."""
    return min(os.path.relpath(path), os.path.abspath(path), key=len)


def _shown(config: Config, out: Path) -> Iterator[dict[str, Any]]:
    """A row for each of the first documents of each topic; grades that the task does not have are None."""
    task = get_task(config.task)
    judgments = {
        (each.topic_id, each.document_id): each
        for each in read_records(out / run_files.JUDGMENTS, Judgment, "judgments")
    }
    objects_file = out / run_files.OBJECTS
    objects_found = read_records(objects_file, Objects, "objects") if objects_file.exists() else []
    found = {each.topic_id: each.objects for each in objects_found}
    run = read_run(out / run_files.RUN)
    with open_corpus(config, task, ConsoleProgress().warn) as corpus:
        for titled in read_topics(config.topics):
            topic = replace(titled, objects=titled.objects or found.get(titled.id))
            objects = dict(zip(task.stances, topic.objects or (), strict=False))
            for each in run.rankings[topic.id][:_SHOWN_RANKS]:
                judgment = judgments[topic.id, each.document_id]
                label = run.stances[topic.id, each.document_id]
                shown = task.question.render(topic, corpus.documents.get(each.document_id))
                seen = shown.document if isinstance(shown.document, str) else shown.document.passage
                yield {
                    "task": task.name,
                    "topic": topic.id,
                    "title": topic.title,
                    "rank": each.rank,
                    "document": each.document_id,
                    "stance": label,
                    "object": objects.get(label),
                    **{name: judgment.grades.get(name) for name in _GRADES},
                    "text": "\n".join(line[:_SHOWN_CHARS] for line in seen.splitlines()[:_SHOWN_LINES]),
                }


def _show(rows: list[dict[str, Any]], task: Task) -> None:
    """Print a table for each topic."""
    for _, of_topic in groupby(rows, key=itemgetter("topic")):
        first, *others = of_topic
        text = Column("text", ratio=1, no_wrap=True, overflow="ellipsis")
        table = Table("", "stance", *task.question.grades, text, title=plain(first["title"]), expand=True)
        table.title_justify = "left"
        for row in (first, *others):
            stance = row["stance"] if row["object"] is None else f"{row['stance']} ({row['object']})"
            grades = (f"{row[name]:.2f}" for name in task.question.grades)
            table.add_row(*(plain(cell) for cell in (str(row["rank"]), stance, *grades, row["text"])))
        show_table(table)
