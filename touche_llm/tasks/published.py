"""Check of downloaded files: what they are, of which task, and whether they are complete."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from touche_llm.corpus.args_me import read_whole_arguments
from touche_llm.corpus.json_lines import read_collection
from touche_llm.data.io import read_table_lines, report_unreadable
from touche_llm.data.records import Topic
from touche_llm.data.topics import read_topics, recognize
from touche_llm.errors import DataError
from touche_llm.tasks.definition import Strict, Url, read_definition

Role = Literal["corpus", "topics", "relevance", "quality", "stance", "coherence"]
# Characters of an id that name its corpus.
_ID_CHARS = 12


class PublishedFile(Strict):
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


class RestrictedCorpus(Strict):
    """A corpus that is given out under an agreement.

    Attributes:
        url: Page that says how to get it.
        prefix: Beginning of the ids of its documents, in small letters.
    """

    name: str
    tasks: list[str] = Field(min_length=1)
    url: Url
    prefix: str = Field(min_length=1)


class DocumentIds(Strict):
    """Form of the ids of documents.

    Attributes:
        tasks: Tasks that rank such documents.
        stored: Tasks whose corpus has such documents, while they rank others.
        ids: Regular expression.
    """

    tasks: list[str] = Field(min_length=1)
    stored: list[str] = []
    ids: str


class Published(Strict):
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


def list_corpus_tasks(document_id: str) -> list[str]:
    """Return the tasks whose corpus has documents with ids of this form; none if it is of no known form."""
    form = read_published().find_form(document_id)
    return [] if form is None else [*form.tasks, *form.stored]


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
    return read_definition(Path(__file__).with_name("published.yaml"), Published)


Kind = Literal["corpus", "topics", "qrels", "run", "archive", "file"]
# Characters of a record that are shown.
_SHOWN = 70
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A checked file.

    Attributes:
        kind: What it holds.
        tasks: Tasks that it can belong to.
        roles: What it can be: a corpus, topics, or the judgments of one of these aspects.
        is_published: Whether it is a published file, byte for byte; else its content was compared.
        records: Number of documents, topics, judgments or lines; None if they were not counted.
        expected: Number as published; None if unknown.
        first: Start of the first record.
        problem: What is wrong; empty if nothing is.
    """

    path: Path
    bytes: int
    kind: Kind
    tasks: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    is_published: bool = False
    records: int | None = None
    expected: int | None = None
    first: str = ""
    problem: str = ""


class _Record(NamedTuple):
    topic: str
    document: str
    text: str


@dataclass(slots=True)
class _FileContent:
    """Content of a file: all of it, or the first record only."""

    kind: Kind
    is_table: bool = False
    first: _Record = _Record("", "", "")
    records: int = 0
    topics: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks whose documents have ids like the first one."""
        form = read_published().find_form(self.first.document)
        if form is None:
            return ()
        return (*form.tasks, *(form.stored if self.kind == "corpus" else ()))


def check_file(path: Path) -> FileCheck:
    """Check a file by its checksum, else by its content.

    Raises:
        DataError: The file cannot be opened.
    """
    with report_unreadable(path):
        size = path.stat().st_size
        published = _find_published(path, size)
    try:
        content = _read_content(path, first_only=published is not None)
    except DataError as error:
        problem = str(error).removeprefix(f"{path}: ") + _compare_size(path, size)
        return FileCheck(path, size, "file", problem=problem)
    first = " ".join(filter(None, content.first))
    first = first if len(first) <= _SHOWN else f"{first[:_SHOWN]}\N{HORIZONTAL ELLIPSIS}"
    if published is not None:
        tasks, count = tuple(published.tasks), published.records
        return FileCheck(path, size, content.kind, tasks, (published.role,), True, count, count, first)
    candidates = _find_candidates(content)
    expected, problem = _compare_records(content, candidates)
    if content.kind == "archive":
        problem = f"an archive that is not published; unpack it, and check its files{_compare_size(path, size)}"
    tasks = tuple(dict.fromkeys(task for file in candidates for task in file.tasks)) or content.tasks
    roles = tuple(dict.fromkeys(file.role for file in candidates))
    return FileCheck(path, size, content.kind, tasks, roles, False, content.records, expected, first, problem)


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


def _read_content(path: Path, *, first_only: bool) -> _FileContent:
    content, records = _open_records(path)
    for content.records, record in enumerate(records, 1):
        if content.records == 1:
            content.first = record
        if first_only:
            break
        if content.kind in ("topics", "qrels"):
            content.topics.add(record.topic)
            content.values.add(record.text)
    return content


def _open_records(path: Path) -> tuple[_FileContent, Iterator[_Record]]:
    """Open a file with the reader that its first record calls for."""
    start = recognize(path)
    rows = (line.split() for _, line in read_table_lines(path, "a table"))
    match start.kind:
        case "archive":
            return _FileContent("archive"), iter(())
        case "topics":
            return _FileContent("topics"), (_Record(topic.id, "", topic.title) for topic in read_topics(path))
        case "arguments" | "argument table" | "documents" | "rerank":
            read = read_whole_arguments if start.kind.startswith("argument") else read_collection
            documents = (_Record("", each.id, each.title or each.text) for _, each in read(path))
            return _FileContent("corpus", start.kind == "argument table"), documents
        case "qrels" | "run":
            if len(columns := start.text.split()) == 3 and columns[2] == "score":
                # BEIR's tables have no second column.
                return _FileContent("qrels"), (_Record(*row) for row in islice(rows, 1, None) if len(row) == 3)
            return _FileContent(start.kind), (
                _Record(row[0], row[2], row[3]) for row in rows if len(row) >= (4 if start.kind == "qrels" else 6)
            )
    # Damage is an error of its own.
    next(rows, None)
    raise DataError(f"{path}: neither a corpus nor topics, judgments or a run")


def _find_candidates(content: _FileContent) -> list[PublishedFile]:
    """Return the published files that the content can come from."""
    files = read_published().files
    if content.kind == "topics":
        files = read_published().list_topics(content.first.topic, content.first.text)
        return [file for file in files if file.records == content.records] or files
    tasks = {task for task in content.tasks if _has_topics(task, content.topics)}
    files = [file for file in files if tasks & set(file.tasks) and file.role != "topics"]
    if content.kind == "corpus":
        tables = [file for file in files if (file.holds or "").endswith(".csv")]
        return tables if content.is_table else [file for file in files if file.role == "corpus" and file not in tables]
    if content.kind != "qrels":
        return []
    is_stance = not all(re.fullmatch(r"-?\d+", value) for value in content.values)
    return [file for file in files if file.role != "corpus" and (file.role == "stance") == is_stance]


def _has_topics(task: str, topics: Iterable[str]) -> bool:
    """Return whether the topics of a task have these numbers."""
    ranges = [file.numbers for file in read_published().files if task in file.tasks and file.numbers is not None]
    # Python converts no number of thousands of digits.
    numbers = [int(topic) for topic in topics if topic.isdecimal() and len(topic) < _DIGITS]
    return all(low <= number <= high for low, high in ranges for number in numbers)


def _compare_records(content: _FileContent, candidates: list[PublishedFile]) -> tuple[int | None, str]:
    """Return the published number of records, and what is wrong with that of the content."""
    counts = {file.records for file in candidates if file.records is not None}
    if content.kind == "corpus" and counts:
        # The files of a corpus can be joined to one.
        counts.add(sum(counts))
    if not counts or content.records in counts:
        return next(iter(counts & {content.records}), None), ""
    expected = min((count for count in counts if count > content.records), default=max(counts))
    return (
        expected,
        f"{content.records:,} of {expected:,} records: a part, or cut off; download it again for all of them",
    )
