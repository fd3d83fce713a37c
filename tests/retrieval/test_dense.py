"""The dense index: what is embedded, what is sent after an interruption, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_pooling import embed_words
from touche_llm.cli.demo import SAMPLES
from touche_llm.corpus.json_lines import CorpusFile
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.data.records import Topic
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.engines.pooling import PoolingClient
from touche_llm.errors import DataError, EngineError, Rejected
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.protocol import EngineInfo
from touche_llm.retrieval.dense import DenseIndex, DenseSettings
from touche_llm.tasks import get_task
from touche_llm.text.sanitize import sanitize

INFO = EngineInfo(model="m", revision="", context=4096, overhead=8, engine="")


class Embedding(DryRunEngine):
    """Embeds by words; refuses after `limit` texts."""

    def __init__(self, limit: int = 10**9) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.limit = limit

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        if len(self.sent) >= self.limit:
            raise Rejected(400, "enough")
        self.sent += texts
        return [np.array(embed_words(text), "<f4").tobytes() for text in texts]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    corpus = SAMPLES / "comparative" / "passages.jsonl"
    reader = get_task("comparative").read_corpus
    with ensure_store(
        CorpusFile(corpus, reader), tmp_path / "index", warn=lambda _: None
    ) as opened:
        yield opened


def embed(
    store: DocumentStore,
    engine: Embedding,
    done: Callable[[], None] = lambda: None,
    **settings: object,
) -> DenseIndex:
    with Cache(Path("none"), CacheMode.OFF) as cache:
        client = PoolingClient(engine_info=INFO, engine=engine, cache=cache, batch=4, concurrency=2)
        index = DenseIndex(store, DenseSettings.model_validate(settings), INFO)
        if len(index.find_missing()):
            asyncio.run(index.embed_missing(client, done))
        return index


def texts_of(store: DocumentStore) -> list[str]:
    """What a model sees of the documents: nothing in them can act as chat control."""
    return [sanitize(text) for text in store.read_texts()]


def test_every_document_is_embedded_once_and_found_by_its_own_words(store: DocumentStore) -> None:
    engine, steps = Embedding(), []
    index = embed(store, engine, lambda: steps.append(1), preset="e5")
    assert len(engine.sent) == len(steps) == len(store) > 20
    assert sorted(engine.sent) == sorted(f"passage: {text}" for text in texts_of(store))
    queries = np.array([embed_words(engine.sent[3]), embed_words(engine.sent[5])], np.float32)
    topics = [Topic("1", "a"), Topic("2", "b")]
    for topic, ranking, sent in zip(
        topics, index.retrieve(topics, queries, 7), (3, 5), strict=True
    ):
        assert len(ranking) == 7 and {each.topic_id for each in ranking} == {topic.id}
        assert (
            f"passage: {sanitize(store.get_texts([ranking[0].document_id])[0])}"
            == engine.sent[sent]
        )
        assert [each.score for each in ranking] == sorted(
            (each.score for each in ranking), reverse=True
        )
    assert (
        index.dimensions == queries.shape[1]
        and DenseIndex(store, DenseSettings(), INFO).dimensions is None
    )
    # Nothing is left to do, and nothing is sent.
    again = Embedding()
    assert list(embed(store, again, preset="e5").find_missing()) == again.sent == []


@pytest.mark.parametrize("limit", [1, 17])
def test_an_interrupted_index_resumes_and_sends_nothing_twice(
    store: DocumentStore, limit: int
) -> None:
    first, second, whole = Embedding(limit), Embedding(), Embedding()
    with pytest.raises(EngineError, match="enough"):
        embed(store, first)
    assert 0 < len(first.sent) < len(store)
    index = embed(store, second)
    assert sorted(first.sent + second.sent) == sorted(texts_of(store))
    # The vectors are those of an index without an interruption.
    resumed = (index.folder / "vectors.npy").read_bytes()
    for file in index.folder.iterdir():
        file.unlink()
    assert (embed(store, whole).folder / "vectors.npy").read_bytes() == resumed


def test_models_and_templates_have_indexes_of_their_own(store: DocumentStore) -> None:
    chosen: tuple[dict[str, Any], ...] = (
        {},
        {"preset": "e5"},
        {"dimensions": 8},
        {"context": 64},
        {"document_template": "{document} {instruction}"},
    )
    folders = {embed(store, Embedding(), **settings).folder for settings in chosen}
    assert len(folders) == len(chosen)
    # The query's template and the server's context change no vector of a document.
    engine = Embedding()
    assert embed(store, engine, preset="bge").folder in folders and engine.sent == []


def test_a_corpus_that_changed_is_embedded_anew(tmp_path: Path) -> None:
    corpus = tmp_path / "passages.jsonl"
    corpus.write_text('{"id": "a", "contents": "One."}\n{"id": "b", "contents": "Two."}\n')
    read, engine = get_task("comparative").read_corpus, Embedding()
    with ensure_store(CorpusFile(corpus, read), tmp_path / "index", warn=lambda _: None) as store:
        embed(store, engine)
    corpus.write_text('{"id": "a", "contents": "One."}\n{"id": "b", "contents": "Three."}\n')
    with ensure_store(CorpusFile(corpus, read), tmp_path / "index", warn=lambda _: None) as store:
        embed(store, engine)
    assert engine.sent == ["One.", "Two.", "One.", "Three."]


def test_vectors_of_another_corpus_are_refused(store: DocumentStore) -> None:
    index = embed(store, Embedding())
    manifest = index.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(store.manifest.sha256, "0" * 64))
    with pytest.raises(DataError, match="another corpus"):
        embed(store, Embedding())
