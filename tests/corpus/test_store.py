from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.expect import raises_at
from touche_llm.corpus.json_lines import CorpusFile, Reader, read_passages
from touche_llm.corpus.store import DocumentStore, ensure_store, hash_corpus
from touche_llm.data.records import Document, Part
from touche_llm.errors import BadLine, DataError, UsageError

TEXTS = {"b": "second letter", "a": "first letter ", "c": "third\nletter \U0001f600\x00"}


def lines_of(texts: Iterable[tuple[str, str]]) -> str:
    return "".join(json.dumps({"id": ident, "contents": text}) + "\n" for ident, text in texts)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "passages.jsonl"
    path.write_text(lines_of(TEXTS.items()))
    return path


class Stores:
    """Opens stores in one folder, keeps their notices and closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notices: list[str] = []
        self.opened: list[DocumentStore] = []

    def ensure(
        self, corpus: Path, read: Reader = read_passages, *, skip_bad_lines: bool = False
    ) -> DocumentStore:
        self.notices.clear()
        store = ensure_store(
            CorpusFile(corpus, read),
            self.folder,
            skip_bad_lines=skip_bad_lines,
            warn=self.notices.append,
        )
        self.opened.append(store)
        return store

    def state(self) -> tuple[int, int]:
        """Changes when the documents are stored again."""
        status = (self.folder / "documents.sqlite").stat()
        return status.st_ino, status.st_mtime_ns


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "index")
    yield stores
    for store in stores.opened:
        store.close()


def many(folder: Path, count: int) -> Path:
    path = folder / "many.jsonl"
    path.write_text(lines_of((f"d{n}", f"text {n}") for n in range(count)))
    return path


def test_an_id_that_occurs_twice_stops_with_its_line(tmp_path: Path, stores: Stores) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text(lines_of([("x", "one"), ("y", "two"), ("x", "three")]))
    with raises_at(BadLine, f"{path}:3", "document x"):
        stores.ensure(path)
    assert not stores.folder.exists()


# Larger than what is hashed whole; the change is in the first or in the last line, or in all.
@pytest.mark.parametrize("count", [3, 30_000])
@pytest.mark.parametrize("changed", [("text 0", "Text 0"), ("text", "Text"), (None, None)])
def test_other_content_of_the_same_size_and_time_is_noticed(
    tmp_path: Path, stores: Stores, count: int, changed: tuple[str | None, str | None]
) -> None:
    path = many(tmp_path, count)
    stores.ensure(path)
    status = path.stat()
    text = path.read_text()
    old, new = changed
    if old is None or new is None:
        last = f"text {count - 1}"
        old, new = last, last.upper()
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)

    assert hash_corpus(path, stores.folder) == hashlib.sha256(path.read_bytes()).hexdigest()
    store = stores.ensure(path)
    assert new in store.get("d0").text + store.get(f"d{count - 1}").text
    assert any("changed" in notice for notice in stores.notices)


def test_lines_left_out_are_reported(tmp_path: Path, stores: Stores) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(
        lines_of([("x", "one")]) + "broken\n" + lines_of([("x", "again"), ("y", "two")])
    )
    store = stores.ensure(path, skip_bad_lines=True)
    assert list(store.read_texts()) == ["one", "two"]
    assert store.get_ids([0, 1]) == ["x", "y"]
    assert store.manifest.bad_lines == 2
    assert (
        f"{path}:2: not JSON" in stores.notices[1] and f"{path}:3: document x" in stores.notices[2]
    )
    assert "2 bad lines" in stores.notices[3]


def test_an_index_with_lines_left_out_serves_only_those_who_allow_it(
    tmp_path: Path, stores: Stores
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("broken\n" + lines_of([("x", "one")]))
    stores.ensure(path, skip_bad_lines=True)
    before = stores.state()
    with raises_at(BadLine, f"{path}:1"):
        stores.ensure(path)
    assert "1 bad lines" in stores.notices[0]
    assert stores.state() == before
    stores.ensure(path, skip_bad_lines=True)
    assert (stores.notices, stores.state()) == ([], before)


def test_a_corpus_is_read_again_only_if_it_changed_and_stored_with_a_notice(
    corpus: Path, stores: Stores
) -> None:
    store = stores.ensure(corpus)
    assert [store.get(ident) for ident in "abc"] == [
        Document(ident, TEXTS[ident]) for ident in "abc"
    ]
    assert stores.notices == [f"storing the documents of {corpus} in {stores.folder}"]
    before = stores.state()
    stores.ensure(corpus, fails(AssertionError("read again")))
    assert (stores.notices, stores.state()) == ([], before)
    (stores.folder / "bm25-documents").mkdir()
    (stores.folder / "bm25-documents" / "params.index.json").touch()
    corpus.write_text(corpus.read_text().replace("first", "prime"))  # of the same size
    os.utime(corpus, ns=(1, 1))
    assert stores.ensure(corpus).get("a").text == "prime letter "
    (notice,) = stores.notices
    assert "changed" in notice and str(corpus) in notice
    assert not (stores.folder / "bm25-documents").exists(), "the index of the old documents is gone"


def test_the_folder_of_another_corpus_or_of_foreign_files_is_refused_and_kept(
    tmp_path: Path, corpus: Path, stores: Stores
) -> None:
    stores.ensure(corpus)
    before = stores.state()
    with pytest.raises(UsageError) as caught:
        stores.ensure(many(tmp_path, 3))
    assert str(corpus) in str(caught.value)
    assert str(stores.folder) in str(caught.value)
    assert stores.state() == before
    stores.folder = tmp_path / "foreign"
    stores.folder.mkdir()
    (stores.folder / "thesis.tex").write_text("precious")
    with raises_at(UsageError, stores.folder):
        stores.ensure(corpus)
    assert (stores.folder / "thesis.tex").read_text() == "precious"


def test_a_store_with_a_foreign_file_is_not_replaced(corpus: Path, stores: Stores) -> None:
    stores.ensure(corpus)
    (stores.folder / "documents.ids.npy").write_text("precious")
    before = stores.state()
    corpus.write_text(corpus.read_text().replace("first", "another"))
    with raises_at(UsageError, stores.folder, "documents.ids.npy"):
        stores.ensure(corpus)
    assert stores.state() == before


def fails(error: BaseException) -> Reader:
    def read(
        path: Path, on_bad_line: Callable[[BadLine], None] | None = None
    ) -> Iterator[tuple[int, Document]]:
        yield 1, Document("new", "text")
        raise error

    return read


ERRORS = [KeyboardInterrupt(), DataError("damaged")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_rebuild_that_breaks_off_leaves_the_old_store(
    tmp_path: Path, corpus: Path, stores: Stores, error: Exception
) -> None:
    stores.ensure(corpus)
    before = stores.state()
    corpus.write_text(lines_of([("z", "other")]))
    with pytest.raises(type(error)):
        stores.ensure(corpus, fails(error))
    assert sorted(tmp_path.iterdir()) == [stores.folder, corpus]
    assert stores.state() == before
    store = DocumentStore(stores.folder)
    stores.opened.append(store)
    assert list(store.read_texts()) == list(TEXTS.values())


@pytest.mark.parametrize(
    "change", [lambda text: text.replace('"format":5', '"format":99'), lambda text: ""]
)
def test_an_index_of_another_version_is_built_again_with_the_corpus_at_hand(
    corpus: Path, stores: Stores, change: Callable[[str], str]
) -> None:
    stores.ensure(corpus)
    manifest = stores.folder / "manifest.json"
    written = manifest.read_text()
    manifest.write_text(change(written))
    for opening in (DocumentStore, lambda folder: hash_corpus(None, folder)):
        with raises_at(DataError, manifest, "`touche-llm index`"):
            opening(stores.folder)
    assert hash_corpus(corpus, stores.folder) == hashlib.sha256(corpus.read_bytes()).hexdigest()
    assert stores.ensure(corpus).get("a").text == TEXTS["a"]
    assert stores.notices[0].startswith(str(manifest)) and manifest.read_text() == written


def read_arguments_of(documents: list[Document]) -> Reader:
    def read(
        path: Path, on_bad_line: Callable[[BadLine], None] | None = None
    ) -> Iterator[tuple[int, Document]]:
        yield from enumerate(documents, start=2)

    return read


ARGUMENTS = [
    Document(
        "A1", "One. Two.", "A conclusion", "PRO", (Part("A1_1", "One."), Part("A1_2", "Two."))
    ),
    Document("A2", "Three.", "Another", "CON", (Part("A2_1", "Three."),)),
    Document("A3", "No part."),
]


def test_parts_are_found_with_their_documents(tmp_path: Path) -> None:
    path = tmp_path / "arguments"
    path.touch()
    with ensure_store(
        CorpusFile(path, read_arguments_of(ARGUMENTS)), tmp_path / "index", warn=lambda _: None
    ) as store:
        assert (len(store), len(store.parts)) == (3, 3)
        assert store.parts.get("A1_2") == Document("A1_2", "Two.", "A conclusion", "PRO")
        assert [store.parts.locate(name) for name in ("A1_2", "A2_1")] == [(0, 1), (1, 2)]
        assert store.get("A1") == replace(ARGUMENTS[0], parts=())
        assert store.parts.load_parents().tolist() == [0, 0, 1]
        assert store.parts.get_ids([2, 0]) == ["A2_1", "A1_1"]
        assert store.parts.find_unknown(["A1", "A2_1"]) == ["A1"]
        assert store.find_unknown(["A1", "A2_1"]) == ["A2_1"]
        assert list(store.parts.get_texts(["A2_1", "A1_1", "A2_1"])) == ["Three.", "One.", "Three."]
        assert list(store.parts.read_texts()) == ["One.", "Two.", "Three."]
        assert list(store.read_texts()) == ["A conclusion One. Two.", "Another Three.", "No part."]
        with raises_at(DataError, store.manifest.corpus, "'A2_9'"):
            store.parts.get("A2_9")


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(pickle.dumps(np.load(path))),
    ],
    ids=["missing", "pickled"],
)
def test_damaged_rows_of_documents_are_named(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path, folder = tmp_path / "arguments", tmp_path / "index"
    path.touch()
    with ensure_store(
        CorpusFile(path, read_arguments_of(ARGUMENTS)), folder, warn=lambda _: None
    ) as store:
        damage(folder / "parents.npy")
        with raises_at(DataError, folder, "damaged index"):
            store.parts.load_parents()


def test_a_part_that_occurs_twice_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "arguments"
    path.touch()
    twice = [
        ARGUMENTS[0],
        Document("B", "x", parts=(Part("B_1", "x"), Part("A1_2", "again"))),
        ARGUMENTS[1],
    ]
    with raises_at(BadLine, f"{path}:3", "document B"):
        ensure_store(
            CorpusFile(path, read_arguments_of(twice)), tmp_path / "index", warn=lambda _: None
        )
    read = read_arguments_of(twice)
    with ensure_store(
        CorpusFile(path, read), tmp_path / "index", skip_bad_lines=True, warn=lambda _: None
    ) as store:
        assert store.manifest.bad_lines == 1
        assert store.parts.get_ids([0, 1, 2]) == ["A1_1", "A1_2", "A2_1"]
        assert store.parts.load_parents().tolist() == [0, 0, 1]
