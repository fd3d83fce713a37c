"""What is published of the tasks: their files, by which downloads are checked, and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from touche_llm.corpus.args_me import read_whole_arguments
from touche_llm.corpus.json_lines import read_passages
from touche_llm.data.io import read_table_lines, report_unreadable
from touche_llm.data.recognize import recognize
from touche_llm.data.records import Model, Topic
from touche_llm.data.settings import load_yaml
from touche_llm.data.topics import read_topics
from touche_llm.errors import DataError
from touche_llm.tasks.definition import TASK_FILE, Url
from touche_llm.tasks.task import Task

Role = Literal["corpus", "topics", "relevance", "quality", "stance", "coherence"]
# Characters of an id that name its corpus.
_ID_CHARS = 12


class PublishedFile(Model, strict=True):
    """A published file; its size, checksum and licence are None if its source states none.

    Attributes:
        records: Number of documents, topics or judgments in it; None if unknown.
        holds: Name of the file inside an archive.
        first: Number and title of the first topic.
        prefix: Beginning of the ids of documents that may not be redistributed, in small letters.
    """

    name: str
    tasks: list[str] = Field(min_length=1)
    role: Role
    url: Url
    bytes: int | None = Field(None, ge=1)
    md5: str | None = Field(None, pattern=r"^[0-9a-f]{32}$")
    records: int | None = Field(None, ge=1)
    holds: str | None = None
    first: str | None = None
    licence: str | None = None
    prefix: str | None = None


class Published(Model, strict=True):
    """All published files of the tasks."""

    files: list[PublishedFile]


@cache
def read_published() -> list[PublishedFile]:
    """Read the list of published files."""
    return load_yaml(Path(__file__).with_name("published.yaml"), Published).files


def _list_topics(number: str, title: str) -> list[PublishedFile]:
    """Return the files of topics whose first one has this number and title, in any letter case."""
    first = f"{number} {title}".casefold()
    return [
        file
        for file in read_published()
        if file.first is not None and file.first.casefold() == first
    ]


def list_topic_tasks(topic: Topic) -> list[str]:
    """Return the tasks whose published topics begin with this one.

    None if it is another, or a translation.
    """
    return list(
        dict.fromkeys(task for file in _list_topics(topic.id, topic.title) for task in file.tasks)
    )


def describe_restriction(document_ids: Iterable[str]) -> str:
    """Return a note on texts that may not be redistributed.

    Empty if none of the documents is of such a corpus.
    """
    beginnings = {document_id[:_ID_CHARS].lower() for document_id in document_ids}
    corpora = [
        f"{file.name} ({file.url})"
        for file in read_published()
        if file.prefix and any(beginning.startswith(file.prefix) for beginning in beginnings)
    ]
    return (
        f"holds texts of {' and '.join(corpora)}, which may not be redistributed" if corpora else ""
    )


# Characters of a record that are shown.
_SHOWN = 70


def check_file(path: Path) -> dict[str, Any]:
    """Check a file by its checksum, and topics also by the first of them; return a row about it.

    `kind` is what it holds, `tasks` and `roles` are those of the published files that it can be;
    `published` is whether it is one byte for byte, `first` the start of its first record, and
    `problem` what is wrong, if anything.

    Raises:
        DataError: The file cannot be opened.
    """
    files: list[PublishedFile] = []
    with report_unreadable(path):
        size = path.stat().st_size
        if same_size := [file for file in read_published() if file.bytes == size]:
            with path.open("rb") as stream:
                md5 = hashlib.file_digest(
                    stream, lambda: hashlib.md5(usedforsecurity=False)
                ).hexdigest()
            files = [file for file in same_size if file.md5 == md5]
    is_published, problem = bool(files), ""
    try:
        kind, record = _read_first_record(path)
    except DataError as error:
        kind, record, problem = "file", [], str(error).removeprefix(f"{path}: ")
    if kind == "topics":
        files = files or _list_topics(*record)
    elif not is_published:
        if kind == "archive":
            problem = "an archive that is not published; unpack it, and check its files"
        for file in read_published():
            if file.name == path.name and file.bytes not in (None, size):
                wrong_size = (
                    f"{size:,} bytes, {file.bytes:,} are published as {file.url}: download it again"
                )
                problem = f"{problem}; {wrong_size}" if problem else wrong_size
    first = " ".join(record)
    return {
        "file": path,
        "kind": kind,
        "tasks": " ".join(dict.fromkeys(task for file in files for task in file.tasks)) or None,
        "roles": " ".join(dict.fromkeys(file.role for file in files)) or None,
        "published": is_published,
        "bytes": size,
        "first": first if len(first) <= _SHOWN else f"{first[:_SHOWN]}…",
        "problem": problem or None,
    }


def _read_first_record(path: Path) -> tuple[str, list[str]]:
    """Return the kind of a file, and its first record: id and title of a topic, id and text of a document, columns."""
    kind = recognize(path).kind or ""
    if kind == "archive":
        return kind, []
    if kind == "topics":
        topic = read_topics(path)[0]
        return kind, [topic.id, topic.title]
    if kind in ("arguments", "argument table", "documents", "rerank"):
        for _, document in (read_whole_arguments if kind.startswith("argument") else read_passages)(
            path, None
        ):
            return "corpus", [document.id, document.title or document.text]
    for _, line in read_table_lines(path, "a table"):
        if kind in ("qrels", "run"):
            return kind, line.split()
    raise DataError(f"{path}: neither a corpus nor topics, judgments or a run")


LEADERBOARD_FILE = "leaderboard.yaml"
# Decimal places of the published values.
DIGITS = 3


class PublishedRun(Model, strict=True, extra="ignore"):
    """A line of a published table: value of the table's measure, from 0 to 1, and name of the run."""

    value: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
    team: str
    tag: str


class Table(Model, strict=True, extra="ignore"):
    """The published results of one task by one measure, best first.

    Attributes:
        measure: Aspect that was measured, or `stance`; the task's official measure of it is
            compared with the values.
        url: Page with the table.
    """

    measure: str
    url: Url
    runs: list[PublishedRun] = Field(min_length=1)


class Board(Model, strict=True, extra="ignore"):
    """The published results of one task; other keys of the file are for its readers."""

    tables: list[Table]


def read_tables(task: Task) -> list[Table]:
    """Read the published tables of a task; none if nothing is published.

    Raises:
        DataError: The file is invalid, or has a table without an official measure; names file and
            key.
    """
    path = task.folder / LEADERBOARD_FILE
    if not path.is_file():
        return []
    tables = load_yaml(path, Board).tables
    for table in tables:
        if table.measure not in task.measures:
            known = ", ".join(task.measures) or "none"
            raise DataError(
                f"{path}: tables: {table.measure!r:.40} has no official measure in {TASK_FILE}; it must be {known}"
            )
    return tables


def find_place(table: Table, value: float) -> int:
    """Find the place, from 1, of a run with this value of the measure; of tied places the best one.

    The value is rounded like the published ones, so that differences they would not show do not
    separate runs.
    """
    return 1 + sum(run.value > round(value, DIGITS) for run in table.runs)
