"""What is published of the tasks: their files, by which downloads are checked, and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from touche_llm.data.files import open_regular, report_unreadable
from touche_llm.data.recognize import FileStart, Kind, recognize
from touche_llm.data.records import Model, Topic
from touche_llm.errors import DataError
from touche_llm.settings.yaml_text import load_yaml
from touche_llm.tasks.parts import TASK_FILE, Url
from touche_llm.tasks.task import Task

Role = Literal["corpus", "topics", "relevance", "quality", "stance", "coherence"]
# Max characters of a `prefix`: those of an id that name its corpus.
_PREFIX_CHARS = 12


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


def list_topic_tasks(topic: Topic) -> list[str]:
    """Return the tasks whose published topics begin with a topic of this number and title.

    Letter case is ignored. The list is empty for topics of another source, and for a translation.
    """
    number_and_title = f"{topic.id} {topic.title}".casefold()
    tasks: list[str] = []
    for file in read_published():
        if file.first is not None and file.first.casefold() == number_and_title:
            tasks += file.tasks
    return list(dict.fromkeys(tasks))


def describe_restriction(document_ids: Iterable[str]) -> str | None:
    """Return a note on documents whose texts may not be redistributed, by their corpora.

    None if no document is of such a corpus.
    """
    # Of many ids, few beginnings differ: these are compared with the prefixes instead of the ids.
    id_beginnings = {document_id[:_PREFIX_CHARS].lower() for document_id in document_ids}
    corpora: list[str] = []
    for file in read_published():
        if file.prefix is None:
            continue
        if any(beginning.startswith(file.prefix) for beginning in id_beginnings):
            corpora.append(f"{file.name} ({file.url})")
    if not corpora:
        return None
    return f"holds texts of {' and '.join(corpora)}, which may not be redistributed"


# What is wrong with a file that is not published, by its kind.
_PROBLEMS: Mapping[Kind | None, str] = {
    None: "neither a corpus nor topics, judgments or a run; give a file of one of these kinds",
    "archive": "an archive that is not published; unpack it, and check its files",
    "page": "a web page; download the file itself",
}


class CheckedFile(NamedTuple):
    """A file, compared with the published ones.

    Attributes:
        file: The file.
        kind: Its kind by its first record; None if it is of no known kind.
        tasks: Tasks of the published file that it equals byte for byte, in one text; None if it
            equals none.
        roles: Roles of that one.
        published: Whether it equals a published file.
        bytes: Its size.
        first: Start of its first line.
        problem: What is wrong with it; None for nothing.
    """

    file: Path
    kind: Kind | None
    tasks: str | None
    roles: str | None
    published: bool
    bytes: int
    first: str
    problem: str | None


def check_file(path: Path) -> CheckedFile:
    """Compare a file with the published ones, and recognize its kind.

    Raises:
        DataError: The file cannot be opened.
    """
    with report_unreadable(path):
        size = path.stat().st_size
        published = _find_published(path, size)

    start = FileStart(None, "")
    problem: str | None = None
    try:
        start = recognize(path)
    except DataError as error:
        problem = str(error).removeprefix(f"{path}: ")
    else:
        if not published:
            problem = _PROBLEMS.get(start.kind)

    problems = [] if problem is None else [problem]
    # Topics of any source are named `topics.xml`.
    if not published and start.kind != "topics":
        problems += _describe_damage(path.name, size)

    return CheckedFile(
        file=path,
        kind=start.kind,
        tasks=_join_different(task for file in published for task in file.tasks),
        roles=_join_different(file.role for file in published),
        published=bool(published),
        bytes=size,
        first=start.text,
        problem="; ".join(problems) or None,
    )


def _join_different(names: Iterable[str]) -> str | None:
    """Return the different names in one text; None if there are no names."""
    return " ".join(dict.fromkeys(names)) or None


def _find_published(path: Path, size: int) -> list[PublishedFile]:
    """Return the published files that a file equals by size and checksum, whatever its name."""
    same_size = [file for file in read_published() if file.bytes == size]
    if not same_size:
        return []
    with open_regular(path) as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    return [file for file in same_size if file.md5 == digest.hexdigest()]


def _describe_damage(name: str, size: int) -> list[str]:
    """Return how a file differs from the published files of its name, if there are any.

    Args:
        name: Name of a file that equals no published file.
        size: Its size in bytes.
    """
    damage: list[str] = []
    for file in read_published():
        if file.name != name or file.bytes is None:
            continue
        difference = f"{size:,} bytes, the published file has {file.bytes:,}"
        if file.bytes == size:
            difference = "another checksum than the published file"
        damage.append(f"{difference}; download it again: {file.url}")
    return list(dict.fromkeys(damage))


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
    rounded = round(value, DIGITS)
    better_runs = [run for run in table.runs if run.value > rounded]
    return len(better_runs) + 1
