"""Whole arguments of args.me, from the table with their sentences and from the JSON files."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from touche_llm.corpus.args_me import HEADER, read_whole_arguments
from touche_llm.data.records import Document
from touche_llm.errors import BadLine, DataError


def argument(identifier: str = "S1-A1", **changed: Any) -> dict[str, Any]:
    """An argument as args.me has it."""
    premises = [{"text": "It's hot. It wakes.", "stance": "CON", "annotations": []}]
    context = {"sourceId": "S1", "sourceText": '{"arguments": ['}
    return {
        "id": identifier,
        "conclusion": "Tea  is\nbad",
        "premises": premises,
        "context": context,
    } | changed


def to_json(*arguments: Any) -> str:
    return json.dumps({"arguments": list(arguments)}, ensure_ascii=False)


def to_table(*arguments: dict[str, Any]) -> str:
    stream = io.StringIO(newline="")
    rows = [
        [each["id"], each["conclusion"], repr(each["premises"]), "", "[]"] for each in arguments
    ]
    csv.writer(stream).writerows([HEADER, *rows])
    return stream.getvalue()


def write(folder: Path, content: str | bytes, name: str = "args.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def documents(path: Path) -> list[Document]:
    return [document for _, document in read_whole_arguments(path)]


EXPECTED = Document("S1-A1", "It's hot. It wakes.", title="Tea is bad", side="CON")


@pytest.mark.parametrize("form", [to_json, to_table])
def test_several_premises_are_one_text_and_either_part_may_be_empty(
    tmp_path: Path, form: Any
) -> None:
    two: list[dict[str, Any]] = [
        {"text": text, "stance": "PRO", "annotations": []} for text in (" One.\n\nMore. ", "Two.")
    ]
    none = [{"text": "", "stance": "PRO", "annotations": []}]
    content = form(
        argument("a", premises=two), argument("b", premises=none), argument("c", conclusion="")
    ).encode()
    path = write(tmp_path, gzip.compress(content) if form is to_table else content)
    found = {
        document.id: (document.title, document.text, document.side) for document in documents(path)
    }
    assert found == {
        "a": ("Tea is bad", "One.\n\nMore.\nTwo.", "PRO"),
        "b": ("Tea is bad", "", "PRO"),
        "c": ("", EXPECTED.text, "CON"),
    }


def test_several_files_after_one_another_are_one_corpus(tmp_path: Path) -> None:
    parts = [to_json(argument("a"), argument("b")), to_json(), to_json(argument("c"))]
    path = write(tmp_path, gzip.compress(" \r\n".join(parts).encode()))
    assert documents(path)[0] == replace(EXPECTED, id="a")
    assert [(number, document.id) for number, document in read_whole_arguments(path)] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
    ]


def to_beir(*arguments: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in arguments)


def beir_argument(
    identifier: str = "c67482ba-2019-04-18T13:32:05Z-00000-000", **changed: Any
) -> dict[str, Any]:
    """An argument as BEIR has it."""
    metadata = {"stance": "CON", "url": "https://www.debate.org/debates/1/"}
    return {
        "_id": identifier,
        "title": "Tea  is\nbad",
        "text": "It's hot.\nIt wakes.",
        "metadata": metadata,
    } | changed


def test_arguments_of_beir_have_their_title_as_conclusion(tmp_path: Path) -> None:
    content = f"\ufeff{to_beir(beir_argument(), beir_argument('b', text=''), beir_argument('c', metadata={}))}".encode()
    path = write(tmp_path, gzip.compress(content), "corpus.jsonl")
    assert [(number, document) for number, document in read_whole_arguments(path)] == [
        (
            1,
            Document(
                beir_argument()["_id"], "It's hot.\nIt wakes.", title="Tea is bad", side="CON"
            ),
        ),
        (2, Document("b", "", title="Tea is bad", side="CON")),
        # Later versions of the collection leave the metadata out.
        (3, Document("c", "It's hot.\nIt wakes.", title="Tea is bad", side="")),
    ]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (5, "`id`"),
        (argument(id="a,b"), "`id`"),
        (argument(conclusion=None), "conclusion`"),
        (argument(premises=[{"text": 5, "stance": "PRO"}]), "text`"),
        (argument(conclusion=" ", premises=[{"text": "\n", "stance": "PRO"}]), "no text"),
        (beir_argument("b", text=None), "text`"),
        (beir_argument("b", metadata="PRO"), "`metadata`"),
        (beir_argument("b", metadata={"stance": "MAYBE"}), "'MAYBE'"),
    ],
)
def test_a_bad_argument_is_named_and_can_be_left_out(
    tmp_path: Path, bad: Any, problem: str
) -> None:
    beir = isinstance(bad, dict) and "_id" in bad
    good = [beir_argument(name) if beir else argument(name) for name in ("a", "c")]
    path = write(
        tmp_path, to_beir(good[0], bad, good[1]) if beir else to_json(good[0], bad, good[1])
    )
    with pytest.raises(BadLine, match=problem) as caught:
        documents(path)
    assert (caught.value.source, caught.value.line) == (path, 2)
    left_out: list[BadLine] = []
    assert [document.id for _, document in read_whole_arguments(path, left_out.append)] == [
        "a",
        "c",
    ]
    assert [each.line for each in left_out] == [2]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"id": "a", "contents": "b"}\n', "looks like documents"),
        (to_json(argument())[:-30], "not JSON, or truncated"),
        (to_json(argument()).encode() + b"\xff", "not JSON"),
        (gzip.compress(to_json(argument()).encode())[:-9], "gzip file"),
        ("id,text\n", "does not begin"),
    ],
)
def test_a_file_of_another_form_is_an_error(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=problem) as caught:
        list(read_whole_arguments(path, lambda bad: None))
    assert str(caught.value).startswith(str(path))
