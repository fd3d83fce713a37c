"""The demo: the comparative task on the project's own sample, replayed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.table import Column, Table

from touche_llm import pipeline
from touche_llm.cli import options as o
from touche_llm.cli.console import ConsoleObserver
from touche_llm.config import load_config
from touche_llm.corpus.store import DocumentStore
from touche_llm.files import read_records
from touche_llm.metadata import FILE_NAME as METADATA
from touche_llm.records import Judgment
from touche_llm.runs import read_candidates
from touche_llm.tasks import get_task

SAMPLES = Path(__file__).parent.parent / "samples"
_SHOWN_RANKS = 3
_SHOWN_CHARS = 200


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the demo's run.")] = Path("runs/demo"),
) -> None:
    """Run the comparative task on a small sample, offline, with answers that were invented for the demo."""
    sample = SAMPLES / "comparative"
    config = load_config(
        None,
        {
            "topics": sample / "topics.xml",
            "corpus": sample / "passages.jsonl",
            "index": out / "index",
            "tag": "demo",
            "cache.file": sample / "cassette.jsonl",
            "cache.mode": "replay",
        },
    )
    asyncio.run(pipeline.run_all(config, out, ConsoleObserver()))
    _show(config.topics, out)
    run = out / pipeline.RUN
    # Named so that the lines can be copied: the command may lie in an environment that is not active.
    command = "touche-llm" if shutil.which("touche-llm") else _short(Path(sys.argv[0]))
    topics, corpus = (_short(sample / name) for name in ("topics.xml", "passages.jsonl"))
    print("The answers above were invented for this demo, no served model gave them, and no figure follows from them.")
    print(f"The run is in {run}; check it with")
    print(f"    {command} validate {run} --task comparative --topics {topics}")
    print("For answers of a model, serve one with vLLM and run")
    print(f"    {command} run --task comparative --topics {topics} --corpus {corpus} \\")
    print("        --base-url http://127.0.0.1:8000 --out runs/first")


def _short(path: Path) -> str:
    """The shorter way to write a path from here."""
    return min(os.path.relpath(path), os.path.abspath(path), key=len)


def _show(topics: Path, out: Path) -> None:
    judgments = {
        (each.topic_id, each.document_id): each
        for each in read_records(out / pipeline.JUDGMENTS, Judgment, "judgments")
    }
    metadata = yaml.safe_load((out / METADATA).read_bytes())
    found = metadata["stages"]["judge"]["objects found by the model"]
    ranking = read_candidates(out / pipeline.RUN, _SHOWN_RANKS)
    with DocumentStore(out / "index") as store:
        for topic in get_task("comparative").read_topics(topics):
            passage = Column("passage", ratio=1, no_wrap=True, overflow="ellipsis")
            table = Table(
                "", "stance", "rel.", "qual.", passage, title=o.plain(topic.title), title_justify="left", expand=True
            )
            objects = dict(zip(("FIRST", "SECOND"), topic.objects or found[topic.id], strict=True))
            for each in ranking[topic.id]:
                judgment = judgments[topic.id, each.document_id]
                stance = judgment.stance + (f" ({objects[judgment.stance]})" if judgment.stance in objects else "")
                grades = (f"{judgment.relevance:.2f}", f"{judgment.quality:.2f}")
                text = store.get(each.document_id).text[:_SHOWN_CHARS]
                table.add_row(*(o.plain(cell) for cell in (str(each.rank), stance, *grades, text)))
            o.show(table)
