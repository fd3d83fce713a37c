"""Reader for the topic files of all Touché editions, and for TIRA's forms of them."""

from __future__ import annotations

import ast
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError

import orjson
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from touche_llm.data.records import Topic
from touche_llm.errors import DataError

_FIELDS = ("title", "objects", "description", "narrative")
# The real files have under 60,000 bytes. Of XML with nothing but tags a hundred times as many are made.
_MOST_BYTES = 4 * 2**20
# Characters of a line that an error repeats.
_QUOTED = 60
# An identifier is one column of a run: no white space, nothing that a terminal would act on.
_NUMBER = re.compile(r"[!-~]{1,1000}")
# The longest pair of the real files has under 100 characters; Python's parser takes 500 times what it parses.
_MOST_OBJECTS = 10_000
# What a topic says, by field; `objects` may be a list where JSON has one.
_Fields = dict[str, Any]


def read_topics(path: Path) -> list[Topic]:
    """All topics of a Touché `topics.xml`, or of TIRA's `queries.xml` or `queries.jsonl`, in the order of the file.

    The form is told by content. White space around and inside the texts is collapsed. What is not of the format is
    ignored. TIRA has the fields of the original topic under `original_query`; where it lacks them, or its title, the
    title is `query`.

    Raises:
        DataError: the file cannot be read or parsed, holds no topic, or a topic lacks its number or title, repeats
            a number or an element, or names other than two objects. The message names the file and the topic.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot read the topics: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path}: larger than {_MOST_BYTES:,} bytes; is this a Touché topics file?")
    content = content.removeprefix(BOM_UTF8)
    is_json = content.lstrip().startswith(b"{")
    if not is_json:
        _check_form(content, path)
    topics: dict[str, Topic] = {}
    for where, fields in _json_topics(content, path) if is_json else _xml_topics(content, path):
        topic = _topic(fields, where, path)
        if topic.id in topics:
            raise DataError(f"{path}: topic {topic.id}: the number occurs twice; give each topic its own")
        topics[topic.id] = topic
    if not topics:
        raise DataError(f"{path}: no <topic> element; is this a Touché topics file?")
    return list(topics.values())


def _xml_topics(content: bytes, path: Path) -> Iterator[tuple[str, _Fields]]:
    try:
        root = fromstring(content, forbid_dtd=True)
    except ParseError as error:
        raise DataError(f"{path}: not well-formed XML: {error}") from error
    except DefusedXmlException as error:
        raise DataError(f"{path}: refused, the XML declares entities or a DTD; delete them: {error!r}") from error
    except (ValueError, LookupError) as error:
        raise DataError(f"{path}: cannot decode the XML: {error}") from error
    for position, element in enumerate(root.iter("topic"), start=1):
        where = f"at position {position}"
        number = element.get("number")
        fields = _texts(element, ("number", "query", *_FIELDS), f"{path}: topic {number or where}")
        fields.setdefault("number", number)
        original = element.find("original_query")
        if original is not None:
            fields |= _texts(original, _FIELDS, f"{path}: topic {number or where}: <original_query>")
        yield where, fields


def _texts(element: Element[Any], names: tuple[str, ...], where: str) -> _Fields:
    texts: _Fields = {}
    for child in element:
        if child.tag in names:
            if child.tag in texts:
                raise DataError(f"{where}: two <{child.tag}>")
            texts[child.tag] = "".join(child.itertext())
    return texts


def _json_topics(content: bytes, path: Path) -> Iterator[tuple[str, _Fields]]:
    for line, raw in enumerate(content.splitlines(), start=1):
        if not raw.strip():
            continue
        try:
            record = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{path}:{line}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}:{line}: not a JSON object but {type(record).__name__}")
        fields = {"number": record.get("qid"), "query": record.get("query")}
        if type(fields["number"]) is int:
            fields["number"] = str(fields["number"])  # data frames turn digits into numbers
        original = record.get("original_query")
        if isinstance(original, dict):
            fields |= {name: original.get(name) for name in _FIELDS}
        yield f"in line {line}", fields


def _topic(fields: _Fields, where: str, path: Path) -> Topic:
    number = _one_line(fields.get("number"), f"{path}: topic {where}: the number")
    if not number:
        raise DataError(f"{path}: topic {where}: no <number> (TIRA: qid); every topic needs one")
    if not _NUMBER.fullmatch(number):
        raise DataError(f"{path}: topic {where}: number {number!r:.80} is not one printable ASCII word (up to 1,000)")

    def text(name: str) -> str:
        return _one_line(fields.get(name), f"{path}: topic {number}: <{name}>")

    title = text("title") or text("query")
    if not title:
        raise DataError(f"{path}: topic {number}: no <title> (TIRA: query); every topic needs one")
    return Topic(
        id=number,
        title=title,
        description=text("description"),
        narrative=text("narrative"),
        objects=_objects(fields.get("objects"), f"{path}: topic {number}: <objects>"),
    )


def _one_line(value: object, what: str) -> str:
    if value is not None and not isinstance(value, str):
        raise DataError(f"{what} must be text, not {value!r:.80}")
    return " ".join((value or "").split())


def _objects(value: Any, what: str) -> tuple[str, str] | None:
    if isinstance(value, str):
        text = _one_line(value, what)
        if len(text) > _MOST_OBJECTS:
            raise DataError(f"{what} has {len(text):,} characters, more than {_MOST_OBJECTS:,}; it names two objects")
        # In TIRA's XML a tuple is written as Python writes it.
        value = (
            _sequence(text, what) if text.startswith(("('", '("', "['", '["')) else text.split(",") if text else None
        )
    if not value:
        return None
    if not isinstance(value, list | tuple):
        raise DataError(f"{what} must be text or a list, not {value!r:.80}")
    objects = [_one_line(part, f"{what}: an object") for part in value]
    if len(objects) != 2 or not all(objects):
        raise DataError(f"{what} must name two objects with a comma between, not {', '.join(objects)!r:.200}")
    if objects[0].casefold() == objects[1].casefold():
        raise DataError(f"{what} must name two different objects, not {objects[0]!r:.100} twice")
    return objects[0], objects[1]


def _sequence(text: str, what: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise DataError(f"{what} is not a pair of texts: {text!r:.80}") from error


def _check_form(content: bytes, path: Path) -> None:
    """Raise DataError where a text is neither XML nor JSON Lines, a table for instance."""
    try:
        line = next(iter(content.decode("utf-8-sig").split("\n", 1)), "").strip("\r")
    except UnicodeDecodeError:
        return  # XML may be in another encoding
    if not line.strip() or line.lstrip().startswith("<"):
        return
    kind = "tab-separated columns" if "\t" in line else "a JSON list" if line.lstrip().startswith("[") else "text"
    raise DataError(
        f"{path}:1: {kind} ({line.strip()[:_QUOTED]!r}), not topics; give Touché's topics.xml or TIRA's queries.xml or "
        'queries.jsonl, whose lines are {"qid": "1", "query": "…"}'
    )


def build_query(topic: Topic, fields: tuple[str, ...]) -> str:
    """The query of a topic: the named fields one after the other."""
    parts = []
    for name in fields:
        value = getattr(topic, name)
        parts.append(" ".join(value or ()) if name == "objects" else value)
    return " ".join(parts)
