"""What is published of the tasks: their files, by which downloads are checked, and their results."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from touche_llm.corpus.args_me import read_whole_arguments
from touche_llm.corpus.json_lines import read_collection
from touche_llm.data.io import read_table_lines, report_unreadable
from touche_llm.data.records import Model, Topic
from touche_llm.data.settings import load_yaml
from touche_llm.data.topics import read_topics, recognize
from touche_llm.errors import DataError
from touche_llm.tasks.definition import TASK_FILE, Url
from touche_llm.tasks.task import Task

Role = Literal["corpus", "topics", "relevance", "quality", "stance", "coherence"]
# Characters of an id that name its corpus.
_ID_CHARS = 12


class PublishedFile(Model, strict=True):
    """A published file.

    Attributes:
        role: What it holds: a corpus, topics, or the qrels of an aspect.
        url: Where it is.
        bytes: Its size; None if its source states none.
        md5: Its checksum; likewise.
        records: Number of documents, topics or judgments in it; None if unknown.
        holds: Name of the file inside an archive.
        first: Number and title of the first topic.
        numbers: Lowest and highest number of the topics.
        licence: Its licence; None if its source states none.
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
    numbers: tuple[int, int] | None = Field(None, strict=False)
    licence: str | None = None


class RestrictedCorpus(Model, strict=True):
    """A corpus that is given out under an agreement.

    Attributes:
        url: Page that says how to get it.
        prefix: Beginning of the ids of its documents, in small letters.
    """

    name: str
    tasks: list[str] = Field(min_length=1)
    url: Url
    prefix: str = Field(min_length=1)


class DocumentIds(Model, strict=True):
    """Form of the ids of documents.

    Attributes:
        tasks: Tasks that rank such documents.
        stored: Tasks whose corpus has such documents, while they rank others.
        ids: Regular expression.
    """

    tasks: list[str] = Field(min_length=1)
    stored: list[str] = []
    ids: str


class Published(Model, strict=True):
    """All published files of the tasks."""

    files: list[PublishedFile]
    restricted: list[RestrictedCorpus]
    documents: list[DocumentIds]

    def list_topics(self, number: str, title: str) -> list[PublishedFile]:
        """Return the files of topics whose first one has this number and title, in any letter case."""
        first = f"{number} {title}".casefold()
        return [file for file in self.files if file.first is not None and file.first.casefold() == first]

    def find_form(self, document: str) -> DocumentIds | None:
        """Return the form that an id has; None if it has none of them."""
        return next((form for form in self.documents if re.fullmatch(form.ids, document)), None)


def list_topic_tasks(topic: Topic) -> list[str]:
    """Return the tasks whose published topics begin with this one; none if it is another, or a translation."""
    files = read_published().list_topics(topic.id, topic.title)
    return list(dict.fromkeys(task for file in files for task in file.tasks))


def describe_restriction(document_ids: Iterable[str]) -> str:
    """Return a note on texts that may not be redistributed; empty if none of the documents is of such a corpus."""
    beginnings = {document_id[:_ID_CHARS].lower() for document_id in document_ids}
    corpora = [
        f"{corpus.name} ({corpus.url})"
        for corpus in read_published().restricted
        if any(beginning.startswith(corpus.prefix) for beginning in beginnings)
    ]
    return f"holds texts of {' and '.join(corpora)}, which may not be redistributed" if corpora else ""


@cache
def read_published() -> Published:
    """Read the list of published files."""
    return load_yaml(Path(__file__).with_name("published.yaml"), Published)


# Characters of a record that are shown.
_SHOWN = 70
# Digits of a topic number: Python converts no number of thousands of them.
_DIGITS = 10


Kind = Literal["corpus", "topics", "qrels", "run", "archive", "file"]


class _FirstRecord(NamedTuple):
    kind: Kind
    topic: str = ""
    document: str = ""
    text: str = ""
    is_table: bool = False
    # Number of topics: editions begin with the same one.
    topics: int = 0


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A checked file.

    Attributes:
        kind: What it holds.
        tasks: Tasks that it can belong to.
        roles: What it can be: a corpus, topics, or the judgments of one of these aspects.
        is_published: Whether it is a published file, byte for byte; else its first record was compared.
        first: Start of the first record.
        problem: What is wrong; empty if nothing is.
    """

    path: Path
    bytes: int
    kind: Kind
    tasks: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    is_published: bool = False
    first: str = ""
    problem: str = ""


def check_file(path: Path) -> FileCheck:
    """Check a file by its checksum, else by its first record.

    Raises:
        DataError: The file cannot be opened.
    """
    with report_unreadable(path):
        size = path.stat().st_size
        published = _find_published(path, size)
    try:
        record = _read_first_record(path)
    except DataError as error:
        return FileCheck(path, size, "file", problem=str(error).removeprefix(f"{path}: ") + _compare_size(path, size))
    files = _find_candidates(record) if published is None else [published]
    problem = ""
    if record.kind == "archive" and published is None:
        problem = f"an archive that is not published; unpack it, and check its files{_compare_size(path, size)}"
    elif record.kind != "topics" and any(file.name == path.name for file in files):
        problem = _compare_size(path, size).removeprefix("; ")
    form = read_published().find_form(record.document)
    by_form = [] if form is None else [*form.tasks, *(form.stored if record.kind == "corpus" else ())]
    tasks = tuple(dict.fromkeys([task for file in files for task in file.tasks] or by_form))
    roles = tuple(dict.fromkeys(file.role for file in files))
    first = " ".join(filter(None, (record.topic, record.document, record.text)))
    first = first if len(first) <= _SHOWN else f"{first[:_SHOWN]}…"
    return FileCheck(path, size, record.kind, tasks, roles, published is not None, first, problem)


def _find_published(path: Path, size: int) -> PublishedFile | None:
    same_size = [file for file in read_published().files if file.bytes == size]
    if not same_size:
        return None
    with path.open("rb") as stream:
        md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return next((file for file in same_size if file.md5 == md5), None)


def _compare_size(path: Path, size: int) -> str:
    known = next((file for file in read_published().files if file.name == path.name), None)
    if known is None or known.bytes in (None, size):
        return ""
    return f"; {size:,} bytes, {known.bytes:,} are published as {known.url}: download it again"


def _read_first_record(path: Path) -> _FirstRecord:
    start = recognize(path)
    match start.kind:
        case "archive":
            return _FirstRecord("archive")
        case "topics":
            topics = read_topics(path)
            return _FirstRecord("topics", topics[0].id, "", topics[0].title, topics=len(topics))
        case "arguments" | "argument table" | "documents" | "rerank":
            read = read_whole_arguments if start.kind.startswith("argument") else read_collection
            for _, document in read(path, None):
                is_table = start.kind == "argument table"
                return _FirstRecord("corpus", "", document.id, document.title or document.text, is_table)
        case "qrels" | "run":
            for _, line in read_table_lines(path, "a table"):
                columns = line.split()
                if len(columns) == 3 and columns[2] != "score":  # BEIR's tables have a header and no second column
                    return _FirstRecord(start.kind, columns[0], columns[1], columns[2])
                if len(columns) > 3:
                    return _FirstRecord(start.kind, columns[0], columns[2], columns[3])
    # Damage is an error of its own.
    next(read_table_lines(path, "a table"), None)
    raise DataError(f"{path}: neither a corpus nor topics, judgments or a run")


def _find_candidates(record: _FirstRecord) -> list[PublishedFile]:
    """Return the published files that the record can come from."""
    published = read_published()
    form = published.find_form(record.document)
    if record.kind == "topics":
        files = published.list_topics(record.topic, record.text)
        return [file for file in files if file.records == record.topics] or files
    if form is None or record.kind not in ("corpus", "qrels"):
        return []
    if record.kind == "corpus":
        files = [file for file in published.files if {*form.tasks, *form.stored} & set(file.tasks)]
        tables = [file for file in files if (file.holds or "").endswith(".csv")]
        return tables if record.is_table else [file for file in files if file.role == "corpus" and file not in tables]
    tasks = {task for task in form.tasks if _has_topic(task, record.topic)}
    is_stance = re.fullmatch(r"-?\d+", record.text) is None
    return [
        file
        for file in published.files
        if tasks & set(file.tasks) and file.role not in ("topics", "corpus") and (file.role == "stance") == is_stance
    ]


def _has_topic(task: str, topic: str) -> bool:
    """Return whether the topics of a task have this number."""
    ranges = [file.numbers for file in read_published().files if task in file.tasks and file.numbers is not None]
    is_number = topic.isdecimal() and len(topic) < _DIGITS
    return not is_number or all(low <= int(topic) <= high for low, high in ranges)


LEADERBOARD_FILE = "leaderboard.yaml"
# Decimal places of the published values.
DIGITS = 3

_Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]


class PublishedRun(Model, strict=True):
    """A line of a published table.

    Attributes:
        value: Value of the table's measure, from 0 to 1.
        low: Lower end of the published 95 % interval; None if none is published.
        high: Upper end of the interval; None if none is published.
        judged: Number of the run's stance labels that were judged; only for stance.
        team: Team that submitted the run.
        tag: Name of the run.
    """

    value: _Share
    low: _Share | None = None
    high: _Share | None = None
    judged: int | None = Field(default=None, ge=1)
    team: _Name
    tag: _Name


class Table(Model, strict=True):
    """The published results of one task by one measure, best first.

    Attributes:
        measure: Aspect that was measured, or `stance`; the task's official measure of it is compared with the values.
        published_as: Name of the column in the source.
        url: Page with the table.
        runs: All runs of the table.
    """

    measure: _Name
    published_as: _Name
    url: Url
    runs: list[PublishedRun] = Field(min_length=1)


class Board(Model, strict=True):
    """The published results of one task: title, year and page of the source, notes, and a table per measure."""

    title: _Name
    year: int
    url: Url
    notes: list[_Name] = []
    tables: list[Table] = Field(min_length=1)


@cache
def read_board(path: Path) -> Board:
    """Read a file of published results; raises DataError if it is invalid."""
    return load_yaml(path, Board)


def read_tables(task: Task) -> list[Table]:
    """Read the published tables of a task; none if nothing is published.

    Raises:
        DataError: The file is invalid, or has a table without an official measure; names file and key.
    """
    path = task.folder / LEADERBOARD_FILE
    if not path.is_file():
        return []
    tables = read_board(path).tables
    for table in tables:
        if table.measure not in task.measures:
            known = ", ".join(task.measures) or "none"
            raise DataError(
                f"{path}: tables: {table.measure!r:.40} has no official measure in {TASK_FILE}; it must be {known}"
            )
    return tables


def find_place(table: Table, value: float) -> int:
    """Find the place, from 1, of a run with this value of the measure; of tied places the best one.

    The value is rounded like the published ones, so that differences they would not show do not separate runs.
    """
    return 1 + sum(run.value > round(value, DIGITS) for run in table.runs)
