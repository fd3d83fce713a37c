from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from touche_llm.corpus.json_lines import read_rerank_documents
from touche_llm.data.records import Document
from touche_llm.errors import BadLine


def line(topic: str, document: str, text: str, **more: Any) -> bytes:
    record = {
        "qid": topic,
        "query": f"Query {topic}",
        "original_query": {"query_id": topic, "title": f"Query {topic}"},
        "docno": document,
        "text": text,
        "original_document": [{"doc_id": document, "text": "other"}],
        "rank": 1,
        "score": 2.5,
    }
    return json.dumps(record | more).encode() + b"\n"


LINES = [line("1", "a", "Text a"), line("1", "b", "Text b"), line("2", "b", "Text b"), line("2", "c", "Text c")]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_each_document_comes_once_where_it_first_occurs(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "rerank.jsonl.gz"
    path.write_bytes(pack(b"".join(LINES)))
    assert list(read_rerank_documents(path)) == [
        (1, Document("a", "Text a")),
        (2, Document("b", "Text b")),
        (4, Document("c", "Text c")),
    ]


def test_another_text_for_the_same_document_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "rerank.jsonl"
    path.write_bytes(LINES[0] + LINES[1] + line("2", "a", "Text a ") + LINES[2])
    with raises_at(BadLine, f"{path}:3", "document a", "line 1"):
        list(read_rerank_documents(path))
    collected: list[BadLine] = []
    assert [found.text for _, found in read_rerank_documents(path, collected.append)] == ["Text a", "Text b"]
    assert [bad.line for bad in collected] == [3]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"broken\n", "not JSON"),
        (b"\n", "empty line"),
        (line("1", "a b", "x"), "`docno`"),
        (line("1", "a", ""), "document a: `text`"),
        (b'{"qid": "1", "docno": "a"}\n', "document a: none of the keys"),
    ],
)
def test_a_bad_line_stops_with_file_and_line(tmp_path: Path, bad: bytes, reason: str) -> None:
    path = tmp_path / "rerank.jsonl"
    path.write_bytes(LINES[1] + bad + LINES[2])
    with pytest.raises(BadLine) as caught:
        list(read_rerank_documents(path))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert reason in caught.value.reason
