"""Topics in XML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import fromstring

from touche_llm.data.recognize import DESCRIPTIONS
from touche_llm.data.topics.fields import TOPIC_FIELDS, TopicFields
from touche_llm.errors import DataError


def parse_xml(content: bytes, path: Path) -> Iterator[tuple[str, TopicFields]]:
    """Yield the place and the fields of each topic of an XML file."""
    try:
        root = fromstring(content, forbid_dtd=True)
    except (
        ParseError,
        ValueError,
        LookupError,
    ) as error:  # ValueError: it declares entities or a DTD
        raise DataError(
            f"{path}: not well-formed XML without a DTD: {error}; expected {DESCRIPTIONS['topics']}; is it cut off?"
        ) from error
    for position, element in enumerate(root.iter("topic"), start=1):
        fields = {"number": element.get("number")} | read_texts(
            element, ("number", "query", *TOPIC_FIELDS)
        )
        original = element.find("original_query")
        yield (
            f"at position {position}",
            fields | ({} if original is None else read_texts(original, TOPIC_FIELDS)),
        )


def read_texts(element: Element[Any], names: tuple[str, ...]) -> TopicFields:
    """Return the texts of the elements of a topic by name."""
    return {child.tag: "".join(child.itertext()) for child in element if child.tag in names}
