from __future__ import annotations

import ast
import csv
import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.expect import raises_at
from touche_llm.corpus import args_me
from touche_llm.corpus.args_me import HEADER, read_arguments
from touche_llm.data.records import Document, Part
from touche_llm.errors import BadLine, DataError


def sentence(identifier: str, text: str) -> dict[str, str]:
    return {"sent_id": identifier, "sent_text": text}


def premise(text: str, stance: str = "PRO") -> dict[str, Any]:
    return {"text": text, "stance": stance, "annotations": []}


def row(identifier: str = "S1-A1", **changed: Any) -> list[str]:
    """A good row.

    What is changed is written as it is where it is text, else as Python writes it.
    """
    fields = {
        "id": identifier,
        "conclusion": "Tea",
        "premises": [premise("It's hot. It wakes.")],
        "context": "{'sourceText': 'not parsed",
        "sentences": [
            sentence(f"{identifier}__PREMISE__1", "It's hot."),
            sentence(f"{identifier}__PREMISE__2", "It wakes."),
            sentence(f"{identifier}__CONC__1", "Tea"),
        ],
    } | changed
    return [value if isinstance(value, str) else repr(value) for value in fields.values()]


def document(identifier: str = "S1-A1") -> Document:
    parts = [
        Part(f"{identifier}__PREMISE__1", "It's hot."),
        Part(f"{identifier}__PREMISE__2", "It wakes."),
        Part(f"{identifier}__CONC__1", "Tea"),
    ]
    return Document(identifier, "It's hot. It wakes.", title="Tea", side="PRO", parts=tuple(parts))


def table(*rows: list[str], header: list[str] = HEADER) -> bytes:
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([header, *rows])
    return stream.getvalue().encode()


def one(folder: Path, **changed: Any) -> Document:
    path = folder / "args.csv"
    path.write_bytes(table(row(**changed)))
    ((_, found),) = read_arguments(path)
    return found


def tar_of(*files: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


MANY = table(*[row(f"S{n}-A1") for n in range(1, 400)])
DOCUMENTS = [(n + 1, document(f"S{n}-A1")) for n in range(1, 400)]


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        lambda content: gzip.compress(
            tar_of(("._args.csv", b"finder"), ("args/args.csv", content), ("z.txt", b"z"))
        ),
    ],
    ids=["plain", "gzip", "tar.gz"],
)
def test_the_packing_is_told_by_content_whatever_the_name(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(pack(MANY))
    assert list(read_arguments(path)) == DOCUMENTS
    assert list(tmp_path.iterdir()) == [path], "nothing is unpacked"


def test_an_argument_has_its_premises_as_text_and_all_sentences_as_parts(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        conclusion=" Ban\n the  sale ",
        premises=[premise("x", "CON"), premise("y", "PRO")],
        sentences=[
            sentence("p2", 'He said: "don\'t".'),
            sentence("blank", " \t"),
            sentence("c__CONC__1", "Ban it."),
            sentence("p1", "C:\\new\n"),
        ],
    )
    assert found.text == 'He said: "don\'t". C:\\new\n'
    assert (found.title, found.side) == ("Ban the sale", "CON")
    assert found.parts == (
        Part("p2", 'He said: "don\'t".'),
        Part("c__CONC__1", "Ban it."),
        Part("p1", "C:\\new\n"),
    )


BAD: list[tuple[list[str], str]] = [
    (row("x")[:4], "4 fields, not 5"),
    (row("x,y"), "'x,y'"),
    (row("x", premises=[{"text": "a"}]), "`stance`"),
    (row("x", premises=[premise("a", "NEUTRAL")]), "'NEUTRAL'"),
    (row("x", sentences=[sentence("a", " ")]), "no text"),
    (row("x", sentences={"sent_id": "a"}), "sentences"),
    (row("x", sentences=[{"sent_id": "a", "sent_text": None}]), "sent_text"),
    (row("x", sentences=[sentence("a\x1b", "t")]), "`sent_id`"),
    (row("x", sentences=[sentence("a", "half \ud800")]), "surrogate"),
    (
        row("x", sentences="[{'sent_id': 'a', 'sent_text': __import__('os').getcwd()}]"),
        "not Python literals",
    ),
    (row("x", sentences="[{'sent_id': 'a', 'sent_text': '\\x1'}]"), "not Python literals"),
    (row("x", sentences="[" * 50_000), "not Python literals"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_row_stops_with_file_and_line(tmp_path: Path, bad: list[str], reason: str) -> None:
    path = tmp_path / "args.csv"
    path.write_bytes(table(row("a", conclusion="two\nlines"), bad, row("b")))
    reader = read_arguments(path)
    assert next(reader)[1].id == "a"
    with pytest.raises(BadLine) as caught:
        next(reader)
    assert (caught.value.source, caught.value.line) == (path, 4)
    assert reason in caught.value.reason


RAW: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda line: line.replace(b"Tea", b'"T\n\xff"', 1), "surrogates"),
    (lambda line: line.replace(b"Tea", b'"T"a', 1), "not CSV"),
    (lambda line: line.replace(b"Tea", b"T" * 2000, 1), "2 fields, not 5"),
]


@pytest.mark.parametrize(("damage", "reason"), RAW)
def test_damaged_bytes_spoil_only_their_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes], reason: str
) -> None:
    monkeypatch.setattr(args_me, "MAX_ROW_BYTES", 2000)
    path = tmp_path / "args.csv"
    header, *lines = table(row("a"), row("x"), row("b")).splitlines(keepends=True)
    path.write_bytes(header + lines[0] + damage(lines[1]) + lines[2])
    collected: list[BadLine] = []
    assert [found.id for _, found in read_arguments(path, collected.append)] == ["a", "b"]
    assert [bad.line for bad in collected] == [3]
    assert reason in collected[0].reason


def test_a_quotation_mark_that_is_never_closed_does_not_swallow_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(args_me, "MAX_ROW_BYTES", 5000)
    path = tmp_path / "args.csv"
    # Without quotation marks of its own, so that only the length can end the row.
    filler = b"S9,x,y,z,[]\n" * 1000
    path.write_bytes(
        table(row("a")) + b'S2,"open,\n' + filler + table(row("b")).split(b"\r\n", 1)[1]
    )
    collected: list[BadLine] = []
    assert [found.id for _, found in read_arguments(path, collected.append)] == ["a", "b"]
    assert "quotation mark" in str(collected[0])
    assert collected[0].line == 3


@pytest.mark.parametrize(
    "content", [b"", table(row(), header=["id", "conclusion", "premises", "context"])]
)
def test_a_file_with_another_header_is_refused_even_if_bad_rows_are_left_out(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "args.csv"
    path.write_bytes(content)
    with raises_at(DataError, path, "id,conclusion,premises,context,sentences"):
        list(read_arguments(path, lambda bad: None))


def test_an_archive_without_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "args.tar.gz"
    path.write_bytes(gzip.compress(tar_of(("readme.txt", MANY))))
    with raises_at(DataError, path, ".csv"):
        list(read_arguments(path))


@pytest.mark.parametrize(
    "pack", [bytes, lambda content: tar_of(("args.csv", content))], ids=["csv.gz", "tar.gz"]
)
def test_a_truncated_file_is_named_once_its_rows_are_read(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    packed = gzip.compress(pack(MANY))
    path = tmp_path / "args.gz"
    path.write_bytes(packed[: len(packed) // 2])
    found = []
    with raises_at(DataError, path, "gzip"):
        for item in read_arguments(path):
            found.append(item)
    assert found == DOCUMENTS[: len(found)]


# Texts that look like the literal around them, and what repr() writes in its several ways.
pieces = st.sampled_from(
    [*"'\"\\\n\r\0\x7f\u2028é", "', 'stance': 'PRO", "'}]", "}, {'sent_id': '", "\\'", "''"]
)
texts = st.lists(pieces | st.text(max_size=5), max_size=6).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arguments")


@given(given_texts=st.lists(texts, max_size=5))
@example(["\\", "'\\", "\\\\'", "\"\\'", "'\"\\"])
def test_what_repr_writes_is_read(folder: Path, given_texts: list[str]) -> None:
    pairs = [(f"s{n}", text) for n, text in enumerate([*given_texts, "last"])]
    found = one(
        folder,
        sentences=[sentence(*pair) for pair in pairs],
        premises=[premise(text) for _, text in pairs],
    )
    assert found.parts == tuple(Part(*pair) for pair in pairs if pair[1].strip())


@pytest.mark.parametrize(
    "field",
    [
        "[{'sent_id': 'a', 'sent_text': 'b'}]\n",
        "[{'sent_id': 'a', 'sent_text': 'b'}, ]",
        "[{'sent_id': 'a', 'sent_text': 'b'}, ",
        "[{'sent_id': 'a', 'sent_text': 'b'}][{'sent_id': 'a', 'sent_text': 'b'}]",
        "[{'sent_id': '''a''', 'sent_text': 'b' 'c'}]",
        "[{'sent_id': 'a', 'sent_text': 'b', 'sent_text': 'c'}]",
        "[{'sent_id': 'a', 'sent_text': '\\777 \\N{EN DASH}'}]",
        "[{'sent_id': 'a', 'sent_text': 'b\\\nc'}]",
        "{'sent_id': 'a', 'sent_text': 'b'}]",
        "[{'sent_id': '" + "\\'" * 500_000,  # quadratic time would be minutes here and below
        "[{'sent_id': '" + "a\\\\" * 300_000 + "', ",
    ],
    ids=lambda field: field[:60],
)
def test_any_other_field_is_read_as_python_reads_it_or_refused(tmp_path: Path, field: str) -> None:
    try:
        expected = [Part(item["sent_id"], item["sent_text"]) for item in ast.literal_eval(field)]
    except (ValueError, SyntaxError, TypeError):
        with pytest.raises(BadLine, match="not Python literals|sentences"):
            one(tmp_path, sentences=field)
    else:
        assert one(tmp_path, sentences=field).parts == tuple(expected)
