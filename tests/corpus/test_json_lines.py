from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.expect import raises_at
from touche_llm.corpus.json_lines import read_passages, read_rerank_documents
from touche_llm.data.records import Document
from touche_llm.errors import BadLine, DataError

LINES = [json.dumps({"id": f"d{n}", "contents": f"Text {n}, ä."}).encode() + b"\n" for n in range(1, 401)]
DOCUMENTS = [(n, Document(f"d{n}", f"Text {n}, ä.")) for n in range(1, 401)]


def plain(data: bytes) -> bytes:
    return data


def in_two_members(data: bytes) -> bytes:
    return gzip.compress(data[:1000]) + gzip.compress(data[1000:])


@pytest.mark.parametrize("pack", [plain, gzip.compress, in_two_members])
def test_gzip_is_told_by_content_whatever_the_name(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    for name in ("passages.jsonl", "passages.jsonl.gz"):
        (tmp_path / name).write_bytes(pack(b"".join(LINES)))
        assert list(read_passages(tmp_path / name)) == DOCUMENTS


def test_other_keys_are_ignored_and_the_text_is_kept_as_it_is(tmp_path: Path) -> None:
    records = [
        {"id": "a___1", "contents": " two\n lines \u2028\t", "chatNoirUrl": None},
        {"contents": "x", "extra": [1, {"id": "no"}], "id": "clueweb12-0000wb-00-00000___7", "chatNoirUrl": "http://x"},
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
        path.write_text(json.dumps({"URL": "http://x", **text, **identifier, "original_document": {"id": "other"}}))
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
    (b'{"id": "x", "body": "y"}', "document x: none of the keys `contents`, `text`, `Clean-Text`, but `id`, `body`; "),
    (b'{"id": "x", "contents": " \\n "}', "document x: `contents`"),
    (b'{"id": "x", "contents": ["y"]}', "document x: `contents`"),
    (b'{"id": "x y", "docno": "x y", "text": "z"}', "`id`"),
    (b'{"id": "x", "docno": "y", "text": "z"}', "`id` and `docno` differ"),
    (b'{"id": "x", "contents": "y", "Clean-Text": "z"}', "document x: `contents` and `Clean-Text` differ"),
    (b"  \t", "empty line"),
    (b'{"id": "x", "contents": "' + b"y" * 300 + b'"}', "longer than 200 bytes"),
]


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("touche_llm.data.io.MAX_LINE", 200)


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


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize("length", [201, 402])
@pytest.mark.parametrize("pack", [plain, gzip.compress])
def test_lines_behind_too_long_a_line_keep_their_numbers(
    tmp_path: Path, length: int, pack: Callable[[bytes], bytes]
) -> None:
    """The lengths lie around multiples of the piece that is read at once; each counts the line feed."""
    too_long = b"x" * (length - 1) + b"\n"
    path = tmp_path / "p.jsonl"
    path.write_bytes(pack(LINES[0] + too_long + LINES[2] + too_long[:-1]))
    collected: list[BadLine] = []
    assert list(read_passages(path, collected.append)) == [DOCUMENTS[0], DOCUMENTS[2]]
    assert [bad.line for bad in collected] == [2, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("passages")


PACKED = gzip.compress(b"".join(LINES), mtime=0)


@settings(deadline=None)
@given(position=st.integers(0, len(PACKED) - 1), flip=st.integers(1, 255))
def test_no_damage_of_a_gzip_file_goes_unnoticed(folder: Path, position: int, flip: int) -> None:
    """Some bits of the header and of unused codes carry nothing; every other change is an error that names the file."""
    damaged = bytearray(PACKED)
    damaged[position] ^= flip
    path = folder / "p.jsonl.gz"
    path.write_bytes(damaged)
    found = []
    try:
        for item in read_passages(path):
            found.append(item)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert found == DOCUMENTS


def tarred(data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("args_processed_04_01.csv")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


@pytest.mark.parametrize("read", [read_passages, read_rerank_documents])
@pytest.mark.parametrize("pack", [plain, gzip.compress, tarred])
def test_the_corpus_of_another_task_names_that_task_whether_bad_lines_are_left_out_or_not(
    tmp_path: Path, pack: Callable[[bytes], bytes], read: Callable[..., Iterator[Any]]
) -> None:
    path = tmp_path / "args.csv"
    path.write_bytes(pack(b"id,conclusion,premises,context,sentences\nx,y,[],{},[]\n"))
    for left_out in (None, lambda bad: None):
        with raises_at(DataError, path, "args.me") as caught:
            list(read(path, left_out))
        assert not isinstance(caught.value, BadLine)


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


RERANKED = [line("1", "a", "Text a"), line("1", "b", "Text b"), line("2", "b", "Text b"), line("2", "c", "Text c")]


def test_each_document_to_rerank_comes_once_where_it_first_occurs(tmp_path: Path) -> None:
    path = tmp_path / "rerank.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(RERANKED)))
    assert list(read_rerank_documents(path)) == [
        (1, Document("a", "Text a")),
        (2, Document("b", "Text b")),
        (4, Document("c", "Text c")),
    ]


def test_another_text_for_the_same_document_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "rerank.jsonl"
    path.write_bytes(RERANKED[0] + RERANKED[1] + line("2", "a", "Text a ") + RERANKED[2])
    with raises_at(BadLine, f"{path}:3", "document a", "line 1"):
        list(read_rerank_documents(path))
    collected: list[BadLine] = []
    assert [found.text for _, found in read_rerank_documents(path, collected.append)] == ["Text a", "Text b"]
    assert [bad.line for bad in collected] == [3]


def test_a_bad_line_to_rerank_stops_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rerank.jsonl"
    for bad, reason in ((b"\n", "empty line"), (line("1", "a b", "x"), "`docno`"), (line("1", "a", ""), "a: `text`")):
        path.write_bytes(RERANKED[1] + bad + RERANKED[2])
        with raises_at(BadLine, f"{path}:2", reason):
            list(read_rerank_documents(path))
