"""Topics of the shared tasks: files of any format, and queries made of topics."""

from __future__ import annotations

import ast
import re
import unicodedata
from codecs import BOM_UTF8
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from touche_llm.data.files import open_atomic, open_maybe_gzip, report_unreadable
from touche_llm.data.recognize import require_kind
from touche_llm.data.records import Topic
from touche_llm.data.topics.fields import TOPIC_FIELDS
from touche_llm.data.topics.json_lines import parse_json_lines
from touche_llm.data.topics.xml import parse_xml
from touche_llm.errors import DataError

# Max bytes of a file: the real ones have under 60,000. Parsed tags take a hundred times their size.
_MAX_BYTES = 4 * 2**20
# A topic id is one column of a run: no white space, no control characters.
_NUMBER = re.compile(r"[!-~]{1,1000}")


def read_topics(path: Path | str) -> list[Topic]:
    """Read the topics of a Touché `topics.xml`, of TIRA's `queries.xml` or `queries.jsonl`, or of BEIR's.

    The format is detected by content. White space is collapsed, unknown elements are ignored. TIRA
    stores the fields of the original topic under `original_query`; without a title there, `query`
    is the title. In BEIR's `queries.jsonl` these are `_id`, `text` and `metadata`.
    """
    path = Path(path)
    require_kind(path, "topics")
    with report_unreadable(path), open_maybe_gzip(path) as stream:
        content = stream.read(_MAX_BYTES + 1).removeprefix(BOM_UTF8)
    if len(content) > _MAX_BYTES:
        problem = f"larger than {_MAX_BYTES:,} bytes, which is much for topics"
        remedy = "divide the topics among several files, make a run of each, and join the run files"
        raise DataError(f"{path}: {problem}; if these are topics, {remedy}")
    is_json = content.lstrip().startswith(b"{")
    topics: dict[str, Topic] = {}
    for where, fields in parse_json_lines(content, path) if is_json else parse_xml(content, path):
        topic = make_topic(fields, where, path)
        if topic.id in topics:
            raise DataError(
                f"{path}: topic {topic.id}: the number occurs twice; give each topic its own"
            )
        topics[topic.id] = topic
    if not topics:
        raise DataError(f"{path}: no <topic> element; is this a Touché topics file?")
    return list(topics.values())


def make_topic(fields: Mapping[str, Any], where: str, path: Path | str) -> Topic:
    """Make a topic of its fields: number, title or query, description, narrative, objects.

    Objects are two texts, or one with a comma between them. `where` is the place of the topic in
    its source, `path`.
    """
    place = f"{path}: topic {where}"

    def text(name: str) -> str:
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(f"{place}: <{name}> must be text, not {value!r:.80}")
        return " ".join((value or "").split())

    number = text("number")
    if not _NUMBER.fullmatch(number):
        raise DataError(
            f"{place}: <number> (TIRA: qid) {number!r:.80} is not one printable ASCII word (up to 1,000)"
        )
    place = f"{path}: topic {number}"
    title = text("title") or text("query")
    if not title:
        raise DataError(f"{place}: no <title> (TIRA: query); every topic needs one")
    objects = parse_objects(fields.get("objects"), place)
    return Topic(number, title, text("description"), text("narrative"), objects)


def normalise_title(title: str) -> str:
    """Return the words of a title in lower case, which are the same for a topic in all editions and tasks."""
    folded = unicodedata.normalize("NFKC", title).casefold()
    return " ".join(re.findall(r"\w+", folded)) or folded


def parse_objects(value: Any, place: str) -> tuple[str, str] | None:
    """Return the two objects of a topic, None if it names none."""
    parts = value.strip() if isinstance(value, str) else value
    if not parts:
        return None
    if isinstance(parts, str) and parts.startswith(("('", '("', "['", '["')):
        # TIRA's XML has the Python representation of a tuple.
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            parts = ast.literal_eval(parts)
    elif isinstance(parts, str):
        parts = parts.split(",")
    parts = parts if isinstance(parts, list | tuple) else ()
    objects = [" ".join(part.split()) for part in parts if isinstance(part, str)]
    if (
        len(objects) != 2
        or len(parts) != 2
        or not all(objects)
        or objects[0].casefold() == objects[1].casefold()
    ):
        raise DataError(
            f"{place}: <objects> must be two different texts, separated by a comma, not {value!r:.200}"
        )
    return objects[0], objects[1]


def write_topics(topics: list[Topic], path: Path) -> None:
    """Write topics in TIRA's format, which accepts any text."""
    with open_atomic(path) as stream:
        for topic in topics:
            original = {name: value for name in TOPIC_FIELDS if (value := getattr(topic, name))}
            line = {"qid": topic.id, "query": topic.title, "original_query": original}
            stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def build_query(topic: Topic, fields: tuple[str, ...]) -> str:
    """Return the query of a topic: the named fields, joined by spaces."""
    return " ".join(
        " ".join(topic.objects or ()) if name == "objects" else getattr(topic, name)
        for name in fields
    )
