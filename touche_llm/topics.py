"""Reader for the topic files of all Touché editions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from touche_llm.errors import DataError
from touche_llm.records import Topic

_FIELDS = ("number", "title", "objects", "description", "narrative")
# The real files have under 60,000 bytes.
_MOST_BYTES = 16 * 2**20
# An identifier is one column of a run: no white space, nothing that a terminal would act on.
_NUMBER = re.compile(r"[!-~]+")


def read_topics(path: Path) -> list[Topic]:
    """All topics of a Touché `topics.xml`, in the order of the file.

    White space around and inside the texts is collapsed. Elements that are not of the format are ignored.

    Raises:
        DataError: the file cannot be read or parsed, holds no topic, or a topic lacks its number or title, repeats
            a number or an element, or names other than two objects. The message names the file and the topic.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: larger than {_MOST_BYTES:,} bytes; is this a Touché topics file?")
        root = fromstring(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot read the topics: {error.strerror}") from error
    except ParseError as error:
        raise DataError(f"{path}: not well-formed XML: {error}") from error
    except DefusedXmlException as error:
        raise DataError(f"{path}: refused, the XML declares entities or a DTD: {error!r}") from error
    except (ValueError, LookupError) as error:
        raise DataError(f"{path}: cannot decode the XML: {error}") from error
    topics: dict[str, Topic] = {}
    for position, element in enumerate(root.iter("topic"), start=1):
        topic = _topic(element, path, position)
        if topic.id in topics:
            raise DataError(f"{path}: topic {topic.id}: the number occurs twice; give each topic its own")
        topics[topic.id] = topic
    if not topics:
        raise DataError(f"{path}: no <topic> element; is this a Touché topics file?")
    return list(topics.values())


def _topic(element: Element[Any], path: Path, position: int) -> Topic:
    texts: dict[str, str] = {}
    for child in element:
        if child.tag not in _FIELDS:
            continue
        if child.tag in texts:
            raise DataError(f"{path}: topic {texts.get('number') or f'at position {position}'}: two <{child.tag}>")
        texts[child.tag] = " ".join("".join(child.itertext()).split())
    number = texts.get("number", "")
    if not number:
        raise DataError(f"{path}: topic at position {position}: no <number>; every topic needs one")
    if not _NUMBER.fullmatch(number):
        raise DataError(f"{path}: topic at position {position}: number {number!r} is not one printable ASCII word")
    if not texts.get("title"):
        raise DataError(f"{path}: topic {number}: no <title>; every topic needs one")
    return Topic(
        id=number,
        title=texts["title"],
        description=texts.get("description", ""),
        narrative=texts.get("narrative", ""),
        objects=_objects(texts["objects"], path, number) if texts.get("objects") else None,
    )


def _objects(text: str, path: Path, number: str) -> tuple[str, str]:
    objects = [part.strip() for part in text.split(",")]
    if len(objects) != 2 or not all(objects):
        raise DataError(f"{path}: topic {number}: <objects> must name two objects with a comma between, not {text!r}")
    return objects[0], objects[1]
