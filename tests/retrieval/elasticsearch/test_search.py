"""Searching in Elasticsearch, and documents from there: rankings, ties, several documents at a time, odd replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from tests.fake_elasticsearch import FakeElasticsearch, found, refuses, says
from tests.retrieval.elasticsearch.elastic_corpus import (
    SOME,
    Loader,
    corpus_file,
    numbered,
    opened,
    retrieve,
)
from touche_llm.cli.demo import SAMPLES
from touche_llm.corpus.json_lines import CorpusFile, read_passages
from touche_llm.corpus.store import ensure_store
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import EngineError, ToucheError, UsageError
from touche_llm.retrieval.bm25 import open_index
from touche_llm.retrieval.elasticsearch import ElasticsearchSettings
from touche_llm.retrieval.settings import Bm25Settings, QueryField

pytestmark = pytest.mark.usefixtures("elasticsearch_alone")
SAMPLE = SAMPLES / "comparative"


@pytest.fixture
def server() -> Iterator[FakeElasticsearch]:
    with FakeElasticsearch().running() as running:
        yield running


def loaded(server: FakeElasticsearch, folder: Path, texts: dict[str, str]) -> None:
    Loader(server, corpus_file(folder, texts))()


def search(server: FakeElasticsearch, query: str, depth: int = 10) -> list[Candidate]:
    with opened(server) as index:
        (ranking,) = retrieve(index, [Topic("1", query)], depth)
    return ranking


# Rankings.


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4)])
def test_the_ranking_is_that_of_the_index_on_disk_with_lucenes_bm25(
    server: FakeElasticsearch, tmp_path: Path, k1: float, b: float
) -> None:
    topics, corpus = read_topics(SAMPLE / "topics.xml"), SAMPLE / "passages.jsonl"
    fields: tuple[QueryField, ...] = ("title", "narrative")
    Loader(server, corpus)(k1=k1, b=b)
    with ensure_store(CorpusFile(corpus, read_passages), tmp_path / "index", warn=print) as store:
        index = open_index(store, Bm25Settings(method="lucene", k1=k1, b=b), print)
        local = list(index.retrieve(topics, fields=fields, depth=20))
    with opened(server, k1=k1, b=b) as there:
        remote = retrieve(there, topics, 20, fields)
    assert all(remote) and len(remote) == len(topics)
    for own, other in zip(local, remote, strict=True):
        assert [each.document_id for each in own] == [each.document_id for each in other]
        assert [each.score for each in own] == pytest.approx(
            [each.score for each in other], rel=1e-5
        )


def test_equal_scores_are_ordered_by_document_id_also_at_the_last_place(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    names = ["b", "B", "a", "ä", "\U0001f600", "\uff21", "a1"]
    loaded(
        server, tmp_path, {name: "the same water" for name in names} | {"best": "water water water"}
    )
    for depth in (3, 8):
        ranking = search(server, "water", depth)
        assert [each.document_id for each in ranking] == ["best", *sorted(names)][:depth]
        assert [each.rank for each in ranking] == list(range(1, depth + 1))
    assert server.of("search")[0].body["size"] == 3


def test_a_search_is_tried_again_and_given_up_with_the_topic_named(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    loaded(server, tmp_path, SOME)
    server.behaviours["search"] = [
        refuses(429),
        refuses(503),
        None,
        refuses(500, "search_phase_execution_exception"),
    ]
    assert search(server, "tea")
    with raises_at(
        EngineError, server.url, "topic 1", "HTTP 500", "search_phase_execution_exception"
    ):
        search(server, "tea")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (found([{"_id": "d1"}]), "_score"),
        (
            b'{"timed_out": false, "_shards": {"failed": 0}, "hits": {"hits": [{"_id": "d1", "_score": NaN}]}}',
            "JSON",
        ),
        ({"took": 1}, "hits"),
    ],
)
def test_a_reply_that_cannot_be_is_an_error(
    server: FakeElasticsearch, tmp_path: Path, reply: Any, message: str
) -> None:
    loaded(server, tmp_path, SOME)
    server.behaviours["search"] = [says(reply)]
    with pytest.raises(EngineError, match=message) as raised:
        search(server, "tea")
    assert server.url in str(raised.value) and len(str(raised.value)) < 600


# Documents.


def test_documents_are_fetched_several_at_a_time_and_once(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    loaded(server, tmp_path, numbered(250))
    wanted = [f"d{n:03d}" for n in range(249, -1, -1)]
    with opened(server) as index:
        asyncio.run(index.fetch([*wanted, "none", "d001", "neither"]))
        assert [len(each.body["ids"]) for each in server.of("mget")] == [100, 100, 52]
        assert index.find_unknown([*wanted, "none", "d001", "neither"]) == ["none", "neither"]
        assert {ident: index.get(ident).text for ident in wanted} == numbered(250)
        assert len(server.of("mget")) == 3


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ({"docs": []}, "document"),
        (
            {"docs": [{"_id": "d1", "error": {"type": "no_shard_available", "reason": "gone"}}]},
            "no_shard_available: gone",
        ),
        ({"docs": [{"_id": "d1", "found": True, "_source": {}}]}, "text"),
    ],
)
def test_a_document_that_did_not_come_is_not_taken_for_one_that_is_not_there(
    server: FakeElasticsearch, tmp_path: Path, reply: Any, value: str
) -> None:
    loaded(server, tmp_path, SOME)
    with opened(server) as index:
        server.behaviours["mget"] = [says(reply)]
        with raises_at(EngineError, server.url, value):
            index.get("d1")


# Opening.


def test_an_index_that_does_not_fit_says_what_to_do(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    loaded(server, tmp_path, SOME)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"index": "other"}, ["no such index", "`touche-llm index --retriever elasticsearch "]),
        ({"k1": 0.9}, ["k1 1.5, not 0.9", "`retriever.k1: 1.5`"]),
    ]
    for given, values in cases:
        place = f"{server.url}, index {given.get('index', 'touche-llm')}"
        with raises_at(ToucheError, place, *values), opened(server, **given):
            pass


def test_the_settings_hold_names_of_one_index_alone() -> None:
    for name in (
        "Big",
        "a,b",
        "a*",
        "_all",
        "-x",
        "",
        "a/b",
        "a b",
        "<x>",
        "a\n",
        ".x",
        "..",
        "x" * 201,
    ):
        with raises_at(UsageError, "ElasticsearchSettings.index"):
            ElasticsearchSettings(index=name)
