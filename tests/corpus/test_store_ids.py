from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.expect import raises_at
from touche_llm.corpus.json_lines import CorpusFile, read_passages
from touche_llm.corpus.store import DocumentStore, IdReader, IdWriter, ensure_store
from touche_llm.errors import DataError


@given(ids=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20), data=st.data())
def test_ids_come_back_in_the_order_of_the_rows_asked_for(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("ids")
    written = IdWriter()
    written.extend(ids[:3])
    written.extend(ids[3:])
    assert len(written) == len(ids)
    written.write(folder, "documents")
    found = IdReader(folder, "documents")
    assert len(found) == len(ids)
    rows = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=30)) if ids else []
    assert found.get(rows) == [ids[row] for row in rows]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("documents.ids.npy", lambda content: content[:-1]),
        ("documents.id_ends.npy", lambda content: content[:-8]),
        ("documents.id_ends.npy", lambda content: b""),
        ("parts.ids.npy", None),
        # Reading a pickle would execute what it holds.
        ("documents.ids.npy", lambda content: pickle.dumps(b"ab")),
        ("documents.id_ends.npy", lambda content: pickle.dumps([0, 1, 2])),
    ],
)
def test_ids_that_are_damaged_or_gone_are_an_error_that_says_what_to_do(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes] | None
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "contents": "one"}\n{"id": "b", "contents": "two"}\n')
    folder = tmp_path / "index"
    ensure_store(CorpusFile(corpus, read_passages), folder, warn=lambda _: None).close()
    file = folder / name
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    with raises_at(DataError, folder):
        DocumentStore(folder)


def written(folder: Path, *ids: str) -> Path:
    names = IdWriter()
    names.extend(ids)
    names.write(folder, "documents")
    return folder


@pytest.mark.parametrize("ends", [[0, 2, 1, 4], [0, 5, 3, 4], [0, -3, 3, 4]])
def test_ends_that_do_not_rise_are_an_error_and_no_other_id(tmp_path: Path, ends: list[int]) -> None:
    np.save(written(tmp_path, "a", "bc", "d") / "documents.id_ends.npy", np.array(ends))
    with raises_at(DataError, tmp_path, "row "):
        IdReader(tmp_path, "documents").get([2, 0, 1])
