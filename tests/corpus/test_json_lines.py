from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from touche_llm.corpus.json_lines import read_passages
from touche_llm.data.records import Document
from touche_llm.errors import BadLine

LINES = [
    json.dumps({"id": f"d{n}", "contents": f"Text {n}, ä."}).encode() + b"\n" for n in range(1, 401)
]
DOCUMENTS = [(n, Document(f"d{n}", f"Text {n}, ä.")) for n in range(1, 401)]


def plain(data: bytes) -> bytes:
    return data


def in_two_members(data: bytes) -> bytes:
    return gzip.compress(data[:1000]) + gzip.compress(data[1000:])


@pytest.mark.parametrize("pack", [plain, gzip.compress, in_two_members])
def test_gzip_is_told_by_content_whatever_the_name(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    for name in ("passages.jsonl", "passages.jsonl.gz"):
        (tmp_path / name).write_bytes(pack(b"".join(LINES)))
        assert list(read_passages(tmp_path / name)) == DOCUMENTS


def test_other_keys_are_ignored_and_the_text_is_kept_as_it_is(tmp_path: Path) -> None:
    records = [
        {"id": "a___1", "contents": " two\n lines \u2028\t", "chatNoirUrl": None},
        {
            "contents": "x",
            "extra": [1, {"id": "no"}],
            "id": "clueweb12-0000wb-00-00000___7",
            "chatNoirUrl": "http://x",
        },
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    assert list(read_passages(path)) == [
        (1, Document("a___1", " two\n lines \u2028\t")),
        (2, Document("clueweb12-0000wb-00-00000___7", "x")),
    ]


def test_id_and_text_may_have_any_of_their_names(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    for identifier, text in zip(
        ({"id": "x"}, {"docno": "x"}, {"ClueWeb22-ID": "x"}, {"id": "x", "docno": "x"}),
        ({"contents": "y"}, {"text": "y"}, {"Clean-Text": "y"}, {"text": "y", "contents": "y"}),
        strict=True,
    ):
        path.write_text(
            json.dumps(
                {"URL": "http://x", **text, **identifier, "original_document": {"id": "other"}}
            )
        )
        assert list(read_passages(path)) == [(1, Document("x", "y"))]


BAD = [
    (b"id,contents", "not JSON"),
    (b'{"id": "x", "contents": "\xff"}', "not JSON"),
    (b'{"id": "\\ud800", "contents": "y"}', "not JSON"),
    (b'["x", "y"]', "not a JSON object but list"),
    (b'{"contents": "y"}', "`id`"),
    (b'{"id": "", "contents": "y"}', "`id`"),
    (b'{"id": "x y", "contents": "y"}', "'x y'"),
    (b'{"id": "x\\u00a0y", "contents": "y"}', "`id`"),
    (b'{"id": 7, "contents": "y"}', "`id`"),
    (
        b'{"id": "x", "body": "y"}',
        "none of the keys `contents`, `text`, `Clean-Text`, but `id`, `body`; ",
    ),
    (b'{"id": "x", "contents": " \\n "}', "document x: `contents`"),
    (b'{"id": "x", "contents": ["y"]}', "document x: `contents`"),
    (b'{"id": "x y", "docno": "x y", "text": "z"}', "`id`"),
    (b"  \t", "empty line"),
    (b'{"id": "x", "contents": "' + b"y" * 300 + b'"}', "longer than 200 bytes"),
]


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("touche_llm.data.files.MAX_LINE", 200)


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize(("line", "reason"), BAD)
def test_a_bad_line_stops_with_file_and_line(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(LINES[0] + LINES[1] + line + b"\n" + LINES[2])
    with pytest.raises(BadLine) as caught:
        list(read_passages(path))
    assert (caught.value.source, caught.value.line) == (path, 3)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert reason in caught.value.reason


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


RERANKED = [
    line("1", "a", "Text a"),
    line("1", "b", "Text b"),
    line("2", "b", "Text b"),
    line("2", "c", "Text c"),
]


def test_each_document_to_rerank_comes_once_where_it_first_occurs(tmp_path: Path) -> None:
    path = tmp_path / "rerank.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(RERANKED)))
    assert list(read_passages(path)) == [
        (1, Document("a", "Text a")),
        (2, Document("b", "Text b")),
        (4, Document("c", "Text c")),
    ]
