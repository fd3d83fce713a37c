"""Reader for the topic files of all Touché editions, of TIRA and of BEIR, and writer of those of TIRA."""

from __future__ import annotations

import ast
import re
import unicodedata
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError
from xml.parsers.expat import errors

import orjson
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from touche_llm.data.files import open_atomic
from touche_llm.data.lines import open_maybe_gzip, parse_json_object, report_unreadable
from touche_llm.data.recognition import recognize_start, require_kind
from touche_llm.data.records import Topic
from touche_llm.errors import DataError

# In the order of the files that `write_topics` writes.
TOPIC_FIELDS = ("title", "description", "narrative", "objects")
# Max bytes of a file: the real ones have under 60,000. Parsed tags take a hundred times their size.
_MAX_BYTES = 4 * 2**20
# Characters of a line that an error quotes.
_QUOTED = 60
# A topic id is one column of a run: no white space, no control characters.
_NUMBER = re.compile(r"[!-~]{1,1000}")
# Max characters: the longest pair of the real files has under 100. Python's parser takes 500 times as much memory.
_MAX_OBJECTS_CHARS = 10_000
# Errors of the XML parser at the end of a file that has no end tag: between two tags, within one, within a character.
_ENDS = [
    errors.codes[error]
    for error in (errors.XML_ERROR_NO_ELEMENTS, errors.XML_ERROR_UNCLOSED_TOKEN, errors.XML_ERROR_PARTIAL_CHAR)
]
# Values of a topic by field; `objects` may be a list from JSON.
_Fields = dict[str, Any]


def read_topics(path: Path | str) -> list[Topic]:
    """Read the topics of a Touché `topics.xml`, of TIRA's `queries.xml` or `queries.jsonl`, or of BEIR's.

    The format is detected by content. White space is collapsed, unknown elements are ignored. TIRA stores the fields of
    the original topic under `original_query`; without a title there, `query` is the title. In BEIR's `queries.jsonl`
    these are `_id`, `text` and `metadata`.

    Returns:
        Topics in the order of the file.

    Raises:
        DataError: The file cannot be read or parsed or has no topic; or a topic lacks its number or title, repeats a
            number or an element, or does not name exactly two objects.
    """
    path = Path(path)
    with report_unreadable(path, "byte"), open_maybe_gzip(path) as stream:
        content = stream.read(_MAX_BYTES + 1)
    require_kind(path, "topics", start=recognize_start(content))
    if len(content) > _MAX_BYTES:
        raise DataError(f"{path}: larger than {_MAX_BYTES:,} bytes; is this a Touché topics file?")
    content = content.removeprefix(BOM_UTF8)
    is_json = content.lstrip().startswith(b"{")
    if not is_json:
        _check_format(content, path)
    topics: dict[str, Topic] = {}
    for where, fields in _parse_json_lines(content, path) if is_json else _parse_xml(content, path):
        topic = make_topic(fields, where, path)
        if topic.id in topics:
            raise DataError(f"{path}: topic {topic.id}: the number occurs twice; give each topic its own")
        topics[topic.id] = topic
    if not topics:
        raise DataError(f"{path}: no <topic> element; is this a Touché topics file?")
    return list(topics.values())


def _parse_xml(content: bytes, path: Path) -> Iterator[tuple[str, _Fields]]:
    try:
        root = fromstring(content, forbid_dtd=True)
    except ParseError as error:
        if error.code in _ENDS:
            problem = f"ends in line {error.position[0]:,}, before its last end tag" if content.strip() else "is empty"
            raise DataError(
                f"{path}: the file {problem}; expected a whole <topics> element; is it cut off? Download it again"
            ) from error
        raise DataError(f"{path}: not well-formed XML: {error}; correct it, or download it again") from error
    except DefusedXmlException as error:
        raise DataError(f"{path}: refused, the XML declares entities or a DTD; delete them: {error!r}") from error
    except (ValueError, LookupError) as error:
        raise DataError(f"{path}: cannot decode the XML: {error}") from error
    for position, element in enumerate(root.iter("topic"), start=1):
        where = f"at position {position}"
        number = element.get("number")
        fields = _read_texts(element, ("number", "query", *TOPIC_FIELDS), f"{path}: topic {number or where}")
        fields.setdefault("number", number)
        original = element.find("original_query")
        if original is not None:
            fields |= _read_texts(original, TOPIC_FIELDS, f"{path}: topic {number or where}: <original_query>")
        yield where, fields


def _read_texts(element: Element[Any], names: tuple[str, ...], where: str) -> _Fields:
    texts: _Fields = {}
    for child in element:
        if child.tag in names:
            if child.tag in texts:
                raise DataError(f"{where}: two <{child.tag}>")
            texts[child.tag] = "".join(child.itertext())
    return texts


def _parse_json_lines(content: bytes, path: Path) -> Iterator[tuple[str, _Fields]]:
    for line, raw in enumerate(content.splitlines(), start=1):
        if not raw.strip():
            continue
        record = parse_json_object(raw, path, line)
        keys = ("qid", "query", "original_query") if "_id" not in record else ("_id", "text", "metadata")
        number, query, original = map(record.get, keys)
        # Data frames turn digits into numbers.
        fields = {"number": str(number) if type(number) is int else number, "query": query}
        if isinstance(original, dict):
            fields |= {name: original.get(name) for name in TOPIC_FIELDS}
        yield f"in line {line}", fields


def make_topic(fields: Mapping[str, Any], where: str, path: Path | str) -> Topic:
    """Make a topic of its fields: number, title or query, description, narrative, objects.

    Args:
        fields: Values by name; None for missing ones. Objects are two texts, or one with a comma between them.
        where: Place of the topic in the file, for errors.
        path: File, or another name of the source, for errors.

    Raises:
        DataError: A field is malformed, or number and title are missing.
    """
    number = _collapse_white_space(fields.get("number"), f"{path}: topic {where}: the number")
    if not number:
        raise DataError(f"{path}: topic {where}: no <number> (TIRA: qid); every topic needs one")
    if not _NUMBER.fullmatch(number):
        raise DataError(f"{path}: topic {where}: number {number!r:.80} is not one printable ASCII word (up to 1,000)")

    def text(name: str) -> str:
        return _collapse_white_space(fields.get(name), f"{path}: topic {number}: <{name}>")

    title = text("title") or text("query")
    if not title:
        raise DataError(f"{path}: topic {number}: no <title> (TIRA: query); every topic needs one")
    return Topic(
        id=number,
        title=title,
        description=text("description"),
        narrative=text("narrative"),
        objects=_parse_objects(fields.get("objects"), f"{path}: topic {number}: <objects>"),
    )


def normalise_title(title: str) -> str:
    """Return the words of a title in lower case, which are the same for a topic in all editions and tasks."""
    folded = unicodedata.normalize("NFKC", title).casefold()
    return " ".join(re.findall(r"\w+", folded)) or folded


def _collapse_white_space(value: object, what: str) -> str:
    if value is not None and not isinstance(value, str):
        raise DataError(f"{what} must be text, not {value!r:.80}")
    return " ".join((value or "").split())


def _parse_objects(value: Any, what: str) -> tuple[str, str] | None:
    if isinstance(value, str):
        text = _collapse_white_space(value, what)
        if len(text) > _MAX_OBJECTS_CHARS:
            raise DataError(
                f"{what} has {len(text):,} characters, more than {_MAX_OBJECTS_CHARS:,}; it names two objects"
            )
        # TIRA's XML has the Python representation of a tuple.
        value = (
            _parse_sequence(text, what)
            if text.startswith(("('", '("', "['", '["'))
            else text.split(",")
            if text
            else None
        )
    if not value:
        return None
    if not isinstance(value, list | tuple):
        raise DataError(f"{what} must be text or a list, not {value!r:.80}")
    objects = [_collapse_white_space(part, f"{what}: an object") for part in value]
    if len(objects) != 2 or not all(objects):
        raise DataError(f"{what} must name two objects, separated by a comma, not {', '.join(objects)!r:.200}")
    if objects[0].casefold() == objects[1].casefold():
        raise DataError(f"{what} must name two different objects, not {objects[0]!r:.100} twice")
    return objects[0], objects[1]


def _parse_sequence(text: str, what: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise DataError(f"{what} is not a pair of texts: {text!r:.80}") from error


def _check_format(content: bytes, path: Path) -> None:
    """Raise DataError if a text is neither XML nor JSON Lines but, say, a table."""
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


def write_topics(topics: list[Topic], path: Path) -> None:
    """Write topics in TIRA's format, which accepts any text."""
    with open_atomic(path) as stream:
        for topic in topics:
            original = {name: value for name in TOPIC_FIELDS if (value := getattr(topic, name))}
            line = {"qid": topic.id, "query": topic.title, "original_query": original}
            stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def build_query(topic: Topic, fields: tuple[str, ...]) -> str:
    """Return the query of a topic: the named fields, joined by spaces."""
    parts = []
    for name in fields:
        value = getattr(topic, name)
        parts.append(" ".join(value or ()) if name == "objects" else value)
    return " ".join(parts)
