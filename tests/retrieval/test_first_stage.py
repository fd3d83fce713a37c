from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bm25s
import pytest

from tests.expect import raises_at
from touche_llm.corpus.json_lines import CorpusFile, read_passages
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.data.records import Candidate, Topic
from touche_llm.errors import DataError
from touche_llm.retrieval.bm25 import OkapiIndex, get_index_folder, open_index
from touche_llm.retrieval.settings import Bm25Settings

Retrieve = Callable[..., list[list[Candidate]]]
MakeStore = Callable[[dict[str, str]], DocumentStore]
ANY = Bm25Settings()

# "laptop" is in 3 of 11 documents, "common" in all but one, "words" of "stop" are stop words.
CORPUS = {
    "long": "a common laptop among many other common machines of all kinds and ages",
    "short": "common laptop",
    "twice": "laptop laptop common",
    "desk": "common desktop computer",
    "stop": "the of and",
    **{f"filler{n}": f"common filler number{n}" for n in range(6)},
}
TIED = {ident: "laptop desktop" for ident in ("d10", "d9", "e", "D9", "d1", "c", "d100", "ä")} | {
    f"filler{n}": f"filler number{n}" for n in range(20)
}


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[MakeStore]:
    opened: list[DocumentStore] = []

    def make(texts: dict[str, str]) -> DocumentStore:
        corpus = tmp_path / "corpus.jsonl"
        corpus.write_text(
            "".join(json.dumps({"id": i, "contents": text}) + "\n" for i, text in texts.items())
        )
        opened.append(
            ensure_store(
                CorpusFile(corpus, read_passages), tmp_path / "index", warn=lambda message: None
            )
        )
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def by_index(
    store: DocumentStore, *topics: Topic, fields: tuple[str, ...] = ("title",), depth: int = 10
) -> list[list[Candidate]]:
    index = open_index(store, ANY, lambda message: None)
    return list(index.retrieve(list(topics), fields=fields, depth=depth))


def by_okapi(
    store: DocumentStore, *topics: Topic, fields: tuple[str, ...] = ("title",), depth: int = 10
) -> list[list[Candidate]]:
    return list(
        OkapiIndex(store, k1=1.5, b=0.75).retrieve(list(topics), fields=fields, depth=depth)
    )


both = pytest.mark.parametrize("retrieve", [by_index, by_okapi])


def ids(candidates: list[Candidate]) -> list[str]:
    return [each.document_id for each in candidates]


@both
def test_only_documents_with_a_word_of_the_query_come_back_best_first(
    make_store: MakeStore, retrieve: Retrieve
) -> None:
    (found,) = retrieve(make_store(CORPUS), Topic("7", "Laptops?"))
    assert ids(found) == ["twice", "short", "long"]
    assert [each.rank for each in found] == [1, 2, 3]
    assert {each.topic_id for each in found} == {"7"}
    assert all(
        above.score > below.score > 0 for above, below in zip(found, found[1:], strict=False)
    )


@both
def test_a_query_without_a_known_word_gives_nothing(
    make_store: MakeStore, retrieve: Retrieve
) -> None:
    topics = [Topic("1", query) for query in ("zyzzyva quux", "Is it the ... a", "")]
    assert retrieve(make_store(CORPUS), *topics) == [[], [], []]


@both
def test_ties_go_by_document_id_also_at_the_cut(make_store: MakeStore, retrieve: Retrieve) -> None:
    store = make_store(TIED)
    for depth in (3, 9):
        (found,) = retrieve(store, Topic("1", "laptop"), depth=depth)
        assert len({each.score for each in found}) == 1
        assert ids(found) == ["D9", "c", "d1", "d10", "d100", "d9", "e", "ä"][:depth]


@both
def test_the_query_is_made_of_the_fields_asked_for(
    make_store: MakeStore, retrieve: Retrieve
) -> None:
    topic, store = (
        Topic("1", "number4", "desktop", "number2", ("number3", "number1")),
        make_store(CORPUS),
    )
    for fields, expected in (
        (("title",), ["filler4"]),
        (("objects",), ["filler1", "filler3"]),
        (("title", "narrative"), ["filler2", "filler4"]),
    ):
        assert [ids(each) for each in retrieve(store, topic, fields=fields)] == [expected]


def index_state(store: DocumentStore) -> dict[str, tuple[int, int]]:
    """Changes when the index is built again or its folder holds anything new."""
    files = [each for each in store.folder.rglob("*") if each.is_file()]
    return {str(each): (each.stat().st_ino, each.stat().st_mtime_ns) for each in files}


def test_an_index_is_kept_while_its_settings_are(make_store: MakeStore) -> None:
    store = make_store(CORPUS)
    notices: list[str] = []
    open_index(store, Bm25Settings(k1=0.9), notices.append)
    assert notices == [
        f"{store.folder / 'bm25-documents'}: no BM25 index; indexing {len(store)} documents"
    ]
    notices.clear()
    before = index_state(store)
    open_index(store, Bm25Settings(k1=0.9), notices.append)
    open_index(store, Bm25Settings(k1=0.9))
    assert (index_state(store), notices) == (before, [])


def test_other_settings_build_the_index_again_with_a_notice(make_store: MakeStore) -> None:
    store = make_store(CORPUS)
    topic = Topic("1", "laptop")
    changes: dict[str, tuple[Any, str]] = {
        "k1": (0.9, "1.5"),
        "b": (0.5, "0.75"),
        "method": ("lucene", "robertson"),
    }
    for name, (value, old) in changes.items():
        (before,) = open_index(store, ANY, lambda message: None).retrieve(
            [topic], fields=("title",), depth=5
        )
        notices: list[str] = []
        other = open_index(store, ANY.model_copy(update={name: value}), notices.append)
        (after,) = other.retrieve([topic], fields=("title",), depth=5)
        (notice,) = notices
        assert f"{name} {old}, not {value}" in notice
        assert [each.score for each in before] != [each.score for each in after]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f'"bm25s":"{bm25s.__version__}"', '"bm25s":"0.0.1"'),
        ('"format":1', '"format":99'),
        ('"corpus_sha256":"', '"corpus_sha256":"0'),
    ],
)
def test_an_index_made_from_or_by_something_else_is_not_used(
    make_store: MakeStore, old: str, new: str
) -> None:
    store = make_store(CORPUS)
    open_index(store, ANY, lambda message: None)
    manifest = get_index_folder(store) / "manifest.json"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))
    with raises_at(DataError, get_index_folder(store), "`touche-llm index`"):
        open_index(store, ANY)
    notices: list[str] = []
    open_index(store, ANY, notices.append)
    assert len(notices) == 1 and str(get_index_folder(store)) in notices[0]
    assert manifest.read_text() == text
