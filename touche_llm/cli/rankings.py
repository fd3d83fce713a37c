"""Rankings of a run: rows for programs, and tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from touche_llm.cli.tables import TEXT_WIDTH, Column, show_table
from touche_llm.config import Config
from touche_llm.data.records import Topic
from touche_llm.data.topics import read_topics
from touche_llm.errors import DataError
from touche_llm.pipeline.candidates import add_objects
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.run_overview import read_results, read_texts
from touche_llm.tasks.base import Task


def read_run_topics(folder: Path, config: Config) -> dict[str, Topic]:
    """Return the topics of a run by id, with the objects that the model found; empty if their file is missing."""
    try:
        topics = read_topics(config.topics)
    except DataError:
        return {}
    return {topic.id: topic for topic in add_objects(topics, RunDirectory(folder).read_objects())}


def list_rows(
    folder: Path, config: Config, task: Task, topics: Mapping[str, Topic], top: int | None, only: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return a row for each of the `top` documents of a topic, of the topics `only` if it is not empty.

    Raises:
        DataError: The results cannot be read.
    """
    rows = [row for row in read_results(RunDirectory(folder), task) if not only or row["topic"] in only]
    kept = [row for row in rows if top is None or row["rank"] <= top]
    known = {row["topic"]: topics.get(row["topic"], Topic(row["topic"], "")) for row in kept}
    texts = read_texts(config, task, ((known[row["topic"]], row["document"]) for row in kept))
    made = []
    for row in kept:
        topic = known[row["topic"]]
        objects = dict(zip(task.stances, topic.objects or (), strict=False))
        found = {"object": objects.get(row.get("stance", "")), "text": texts.get((topic.id, row["document"]))}
        made.append({"topic": topic.id, "title": topic.title or None} | row | found)
    return made


def show_rankings(
    rows: Sequence[Mapping[str, Any]],
    task: Task,
    topics: Mapping[str, Topic],
    *,
    has_grades: bool = True,
    file: IO[str] | None = None,
    width: int | None = None,
) -> None:
    """Print the first documents of topics, below the title and the objects of each topic, see `show_table`."""
    grades = task.question.grades if has_grades else ()
    # The id of a pair of sentences is longer than most terminals are wide.
    columns = [Column("rank"), Column("document", drop=4, is_text=True)]
    columns += [Column("stance", is_text=True)] * bool(task.stances)
    columns += [*place_grades(grades, 1, 7), Column("score", drop=6)]
    columns += [Column("text", drop=5, cut=TEXT_WIDTH)] * any(row["text"] for row in rows)
    cells: list[Sequence[str]] = []
    for name, group in groupby(rows, key=lambda row: row["topic"]):
        of_topic = list(group)
        topic = topics.get(name)
        objects = zip(task.stances, topic.objects or (), strict=False) if topic is not None else ()
        named = ", ".join(f"{label} ({each})" for label, each in objects)
        cells.append((" ".join(filter(None, (of_topic[0]["topic"], of_topic[0]["title"]))),))
        cells += [(f"  {named}",)] if named else []
        for row in of_topic:
            values = (format_grade(row[name]) for name in grades)
            texts = (f"{row['score']:.4f}", row["text"] or "")
            stance = (row["stance"],) if task.stances else ()
            cells.append((str(row["rank"]), row["document"], *stance, *values, *texts)[: len(columns)])
    show_table(columns, cells, file=file, width=width)


def place_grades(grades: Sequence[str], drop: int, later: int) -> list[Column]:
    """Return the columns of grades, dropped one by one: the first three from `drop` on, others from `later` on."""
    return [
        Column(name, drop=drop + number if number < 3 else later + number - 3) for number, name in enumerate(grades)
    ]


def format_grade(value: float | None) -> str:
    """Format a grade or a probability; a dash if it is unknown."""
    return "–" if value is None else f"{value:.2f}"
