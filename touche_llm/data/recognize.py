"""Recognition of files: the kind of a file by its first record."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from touche_llm.data.files import open_maybe_gzip, report_unreadable
from touche_llm.errors import DataError

Kind = Literal[
    "topics",
    "documents",
    "arguments",
    "argument table",
    "rerank",
    "qrels",
    "run",
    "archive",
    "page",
]

# First bytes, which hold the first record of nearly all files.
_START = 2**18
# Quotation marks within a text are escaped, so that only keys match, with those of parts.
_KEY = re.compile(rb'"([\w-]+)"\s*:')
_NUMERIC = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")
DESCRIPTIONS: Mapping[Kind, str] = {
    "topics": 'topics (Touché\'s topics.xml, or TIRA\'s queries.xml or queries.jsonl: {"qid": "1", "query": "…"})',
    "documents": "documents in JSON Lines, one object a line",
    "arguments": "the arguments of args.me in JSON",
    "argument table": "the arguments of args.me as a table with their sentences (args_processed_04_01.csv)",
    "rerank": "TIRA's rerank.jsonl",
    "qrels": "qrels, with lines `qid 0 doc grade`",
    "run": "a run, with lines `qid Q0 doc rank score tag`",
    "archive": "a zip archive, to be unpacked",
    "page": "a web page",
}


class FileStart(NamedTuple):
    """Beginning of a file.

    Attributes:
        kind: Kind by the first record; None if it is of no known kind.
        text: First line, shortened.
        keys: Keys of the first record in JSON.
    """

    kind: Kind | None
    text: str
    keys: frozenset[str] = frozenset()


def recognize(path: Path) -> FileStart:
    """Recognize a file, which may be gzipped, by its first record."""
    with report_unreadable(path), open_maybe_gzip(path) as stream:
        content = stream.read(_START)
    start = content.removeprefix(BOM_UTF8).lstrip()
    first_line = start.partition(b"\n")[0]
    columns = first_line[:1000].decode(errors="replace").split()
    text = " ".join(columns)[:50]

    if start.startswith(b"PK\x03\x04"):
        return FileStart("archive", "PK")
    if start.startswith(b"id,conclusion,premises,") or is_tar(content):
        return FileStart("argument table", text)
    if start.startswith(b"<"):
        return FileStart(_recognize_markup(start), text)
    if re.match(rb'\{\s*"arguments"', start):
        return FileStart("arguments", text)
    if start.startswith(b"{"):
        keys = frozenset(key.decode() for key in _KEY.findall(first_line))
        return FileStart(_recognize_object(keys), text, keys)
    return FileStart(_recognize_columns(columns), text)


def _recognize_markup(start: bytes) -> Kind | None:
    if b"<topic" in start:
        return "topics"
    if b"<html" in start[:2000].lower():
        return "page"
    return None


def _recognize_object(keys: frozenset[str]) -> Kind | None:
    if "qid" in keys:
        return "rerank" if "docno" in keys else "topics"
    if "_id" in keys:
        # BEIR's topics have no title, its documents may have an empty one.
        return "arguments" if "title" in keys else "topics"
    return "documents" if keys else None


def _recognize_columns(columns: Sequence[str]) -> Kind | None:
    if len(columns) >= 6 and all(map(_NUMERIC.fullmatch, columns[3:5])):
        return "run"
    is_trec = len(columns) == 4 and _NUMERIC.fullmatch(columns[1].removeprefix("Q"))
    return "qrels" if is_trec or is_beir_header(columns) else None


def is_tar(content: bytes) -> bool:
    """Return whether the beginning of a file, at least 262 bytes, is that of a tar archive."""
    return content[257:262] == b"ustar"


def is_beir_header(columns: Sequence[str]) -> bool:
    """Return whether the columns of the first line are the names of those of BEIR's qrels."""
    return len(columns) == 3 and columns[2] == "score"


def require_kind(path: Path, *kinds: Kind, start: FileStart | None = None) -> None:
    """Raise DataError if a file is recognized as one of another kind.

    A file of no known kind is left to its reader.
    """
    start = start or recognize(path)
    if start.kind is None or start.kind in kinds:
        return
    found = DESCRIPTIONS[start.kind]
    expected = DESCRIPTIONS[kinds[0]]
    raise DataError(
        f"{path}: looks like {found}: {start.text!r}; expected {expected}; give another file"
    )
