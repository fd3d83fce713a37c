"""Recognition of a file by its first record, and the error for a file of another kind than expected."""

from __future__ import annotations

import gzip
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import orjson

from touche_llm.data.lines import open_maybe_gzip, report_unreadable
from touche_llm.errors import DataError

Kind = Literal["topics", "documents", "arguments", "argument table", "rerank", "qrels", "run", "archive", "page"]

# First bytes, which hold the first record of nearly all files, and characters of it that an error quotes.
_START, _CHUNK, _QUOTED = 2**18, 2**12, 50
_ARGUMENTS = re.compile(rb'\{\s*"arguments"')
_KEY = re.compile(rb'"([\w-]+)"\s*:')
_PAGE = re.compile(rb"<!doctype html|<html", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")
_ITERATION = re.compile(r"Q?[0-9]+")
_LABEL = re.compile(r"[+-]?[0-9.]+|[A-Za-z][\w+-]*")
_LOOKS: Mapping[Kind, str] = {
    "topics": "topics",
    "documents": "documents in JSON Lines",
    "arguments": "the arguments of args.me in JSON",
    "argument table": "the arguments of args.me as a table",
    "rerank": "TIRA's rerank.jsonl",
    "qrels": "qrels",
    "run": "a run",
    "archive": "a zip archive",
    "page": "a web page",
}
# Settings that take files of a kind.
_SETTINGS: Mapping[Kind, str] = {
    "topics": "topics",
    **dict.fromkeys(("documents", "arguments", "argument table", "rerank"), "corpus"),
}
_EXPECTED: Mapping[Kind, str] = {
    "topics": (
        "topics: Touché's topics.xml, or TIRA's queries.xml or queries.jsonl, whose lines are "
        '{"qid": "1", "query": "…"}'
    ),
    "documents": "documents in JSON Lines, one object a line",
    "arguments": "the arguments of args.me, in JSON or as a table (.csv)",
    "argument table": "the arguments of args.me as a table with their sentences (args_processed_04_01.csv)",
    "qrels": "qrels, with lines `qid 0 doc grade`",
    "run": "a run, with lines `qid Q0 doc rank score tag`",
}


class FileStart(NamedTuple):
    """Beginning of a file.

    Attributes:
        kind: What the file holds, as far as its first record says; None if it is of no known kind.
        text: Beginning of the first record, for messages.
        keys: Keys of the first record, if it is a JSON object.
    """

    kind: Kind | None
    text: str
    keys: frozenset[str] = frozenset()


def recognize(path: Path) -> FileStart:
    """Recognize a file, which may be gzipped; raise DataError if it cannot be read."""
    content = b""
    with report_unreadable(path, "byte"), open_maybe_gzip(path) as stream:
        # What is read before any damage is enough; the reader of the file says where the damage is.
        with suppress(EOFError, gzip.BadGzipFile, zlib.error):
            while len(content) < _START and (chunk := stream.read(_CHUNK)):
                content += chunk
    return recognize_start(content)


def recognize_start(content: bytes) -> FileStart:
    """Recognize a file by its first bytes."""
    start = content[:_START].removeprefix(BOM_UTF8).lstrip()
    line = start.partition(b"\n")[0]
    text = " ".join(line.decode(errors="replace").split())
    text = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
    if start.startswith(b"PK\x03\x04"):
        return FileStart("archive", "PK")
    if start.startswith(b"id,conclusion,premises,") or content[257:262] == b"ustar":
        return FileStart("argument table", text)
    if start.startswith(b"<"):
        return FileStart("topics" if b"<topic" in start else "page" if _PAGE.search(start[:2000]) else None, text)
    if _ARGUMENTS.match(start):
        return FileStart("arguments", text)
    if start.startswith(b"{"):
        keys = _list_keys(line)
        return FileStart(_recognize_object(keys), text, keys)
    return FileStart(_recognize_columns(line.decode(errors="replace").split()), text)


def _list_keys(line: bytes) -> frozenset[str]:
    """Return the keys of a JSON object; those of its parts too if the line is cut off or damaged."""
    try:
        return frozenset(orjson.loads(line))
    except orjson.JSONDecodeError:
        # Quotation marks within a text are escaped, so that only keys match.
        return frozenset(key.decode() for key in _KEY.findall(line))


def _recognize_object(keys: Collection[str]) -> Kind | None:
    if "qid" in keys:
        return "rerank" if "docno" in keys else "topics"
    if "_id" in keys:
        # BEIR's topics have no title, its documents may have an empty one.
        return "arguments" if "title" in keys else "topics"
    return "documents" if keys else None


def _recognize_columns(columns: list[str]) -> Kind | None:
    if len(columns) >= 6 and all(map(_NUMBER.fullmatch, columns[3:5])):
        return "run"
    is_beir = len(columns) == 3 and columns[2] == "score"
    return (
        "qrels"
        if is_beir or (len(columns) == 4 and _ITERATION.fullmatch(columns[1]) and _LABEL.fullmatch(columns[3]))
        else None
    )


def require_kind(path: Path, *kinds: Kind, start: FileStart | None = None) -> None:
    """Raise DataError if a file is recognized as one of another kind; a file of no known kind is left to its reader.

    Args:
        path: The file.
        kinds: What it may hold; the first one is the expected kind in the message.
        start: Its beginning, if that is known.
    """
    found, text, _ = start or recognize(path)
    if found is None or found in kinds:
        return
    expected = kinds[0]
    advice = "give another file"
    if found == "archive":
        advice = "unpack it, and give the file in it"
    elif found == "page":
        advice = "download the file itself"
    elif {found, expected} <= _SETTINGS.keys():
        setting, other = _SETTINGS[expected], _SETTINGS[found]
        advice = f"give them as `{setting}: FILE`, and this file as `{other}: FILE`"
        if setting == other:
            reader = "args_me" if found.startswith("argument") else "json_lines"
            advice = f"give `task: NAME` of another task, with the reader {reader} (`touche-llm tasks list`)"
    elif expected in _SETTINGS:
        advice = f"give them as `{_SETTINGS[expected]}: FILE`"
    raise DataError(f"{path}: looks like {_LOOKS[found]} ({text!r}); expected {_EXPECTED[expected]}; {advice}")
