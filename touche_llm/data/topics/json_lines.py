"""Topics in JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from touche_llm.data.files import parse_json_object
from touche_llm.data.topics.fields import TOPIC_FIELDS, TopicFields


def parse_json_lines(content: bytes, path: Path) -> Iterator[tuple[str, TopicFields]]:
    """Yield the place and the fields of each topic of a file of JSON lines."""
    for line, raw in enumerate(content.splitlines(), start=1):
        if not raw.strip():
            continue
        record = parse_json_object(raw, path, line)
        keys = (
            ("qid", "query", "original_query")
            if "_id" not in record
            else ("_id", "text", "metadata")
        )
        number, query, original = map(record.get, keys)
        # Data frames turn digits into numbers.
        fields = {"number": str(number) if type(number) is int else number, "query": query}
        if isinstance(original, dict):
            fields |= {name: original.get(name) for name in TOPIC_FIELDS}
        yield f"in line {line}", fields
