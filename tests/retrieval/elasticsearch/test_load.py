"""Loading a corpus into Elasticsearch: all of it, once, also after failures.

Complete only when it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.expect import raises_at
from tests.fake_elasticsearch import (
    Behaviour,
    FakeElasticsearch,
    Index,
    breaks,
    problem,
    refused_item,
    refuses,
    says,
    takes_only,
)
from tests.retrieval.elasticsearch.elastic_corpus import (
    SOME,
    Loader,
    complete,
    corpus_file,
    numbered,
    opened,
    texts_in,
)
from touche_llm.errors import BadLine, DataError, EngineError, UsageError
from touche_llm.retrieval import elasticsearch as elastic_load
from touche_llm.retrieval.elasticsearch import META

pytestmark = pytest.mark.usefixtures("elasticsearch_alone")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeElasticsearch]:
    """A server, and batches of ten documents."""
    monkeypatch.setattr(elastic_load, "_BATCH", 10)
    with FakeElasticsearch().running() as running:
        yield running


def sizes(server: FakeElasticsearch) -> list[int]:
    """How many documents each request held."""
    return [len(each.body) // 2 for each in server.of("bulk")]


# All of a corpus.


def test_a_corpus_goes_in_batches_and_is_marked_complete_at_the_end(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    load = Loader(server, corpus_file(tmp_path, numbered(25)))
    manifest = load()
    assert texts_in(server) == numbered(25)
    assert (manifest.documents, manifest.bad_lines, manifest.corpus) == (25, 0, "corpus.jsonl")
    assert sizes(server) == [10, 10, 5]
    assert server.kinds()[-1] == "mapping" and complete(server)
    assert server.kinds().index("refresh") > server.kinds().index("bulk")
    assert load.notices == [f"loading {load.corpus} into {server.url}, index touche-llm"]


def test_a_request_has_at_most_eight_mebibytes_or_one_document(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    texts = {
        name: "x" * size for name, size in (("a", 2**21), ("b", 2**22), ("c", 9 * 2**20), ("d", 1))
    }
    Loader(server, corpus_file(tmp_path, texts))()
    assert sizes(server) == [2, 1, 1] and texts_in(server) == texts


def test_texts_come_through_as_they_are(server: FakeElasticsearch, tmp_path: Path) -> None:
    texts = {"ü/1": 'Grün \U0001f600\n\r\u2028\x85 \\ " \x01', "a%2Fb": "{}\n{}", "_all": "x"}
    Loader(server, corpus_file(tmp_path, texts))()
    with opened(server) as index:
        assert index.find_unknown(texts) == []
        assert {ident: index.get(ident).text for ident in texts} == texts


def test_a_corpus_that_is_there_is_not_sent_again(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    load = Loader(server, corpus_file(tmp_path, SOME))
    first = load()
    before = len(server.requests)
    assert load() == first
    assert server.kinds()[before:] == ["info", "get"]


# Failures that pass.


@pytest.mark.parametrize(
    "behaviours",
    [
        [
            refuses(429, "circuit_breaking_exception"),
            refuses(503),
            refuses(502),
            breaks(after=False),
        ],
        [
            takes_only(4),
            breaks(after=True),
            takes_only(0),
            takes_only(3, 503, "unavailable_shards_exception"),
        ],
    ],
    ids=["refusals", "partly"],
)
def test_after_failures_that_pass_every_document_is_there_once(
    server: FakeElasticsearch, tmp_path: Path, behaviours: list[Behaviour | None]
) -> None:
    server.behaviours["bulk"] = behaviours
    load = Loader(server, corpus_file(tmp_path, numbered(25)))
    assert load().documents == 25
    assert texts_in(server) == numbered(25) and complete(server)
    assert any("tried again for up to 5 s" in notice for notice in load.notices)


def test_every_step_of_a_load_is_tried_again(server: FakeElasticsearch, tmp_path: Path) -> None:
    for kind in ("get", "create", "refresh", "mapping"):
        server.behaviours[kind] = [refuses(503), breaks(after=kind != "create")]
    Loader(server, corpus_file(tmp_path, SOME))()
    assert texts_in(server) == SOME and complete(server)


# A load that stops.


@pytest.mark.parametrize("stop", [refuses(500), breaks(after=True), takes_only(4)])
def test_a_load_that_stopped_is_not_complete_and_goes_on(
    server: FakeElasticsearch, tmp_path: Path, stop: Behaviour
) -> None:
    server.behaviours["bulk"] = [None, stop]
    load = Loader(server, corpus_file(tmp_path, numbered(25)))
    with raises_at(EngineError, server.url, "lines 11 to 20", load.corpus):
        load(retry_for=0.0)
    there = len(texts_in(server))
    assert 10 <= there <= 20 and not complete(server)
    index = f"{server.url}, index touche-llm"
    with raises_at(DataError, index, "corpus.jsonl", "`touche-llm index --retriever elasticsearch"):
        opened(server).__enter__()
    assert load().documents == 25
    assert texts_in(server) == numbered(25) and complete(server)
    assert any("an earlier load was interrupted; resuming" in notice for notice in load.notices)


# What an index may not be.


@pytest.mark.parametrize("half", [False, True])
def test_an_index_of_another_corpus_or_other_settings_is_refused_and_left_alone(
    server: FakeElasticsearch, tmp_path: Path, half: bool
) -> None:
    load = Loader(server, corpus_file(tmp_path, SOME))
    if half:
        server.behaviours["mapping"] = [refuses(500)]
        with pytest.raises(EngineError):
            load()
    else:
        load()
    before = len(server.requests)
    index = f"{server.url}, index touche-llm"
    with raises_at(UsageError, index, "b 0.75, not 0.4", "`elasticsearch.index`"):
        load(b=0.4)
    corpus_file(tmp_path, {"d1": "Another text."})
    with raises_at(UsageError, index, "corpus.jsonl", "`elasticsearch.index`"):
        load()
    assert server.kinds()[before:] == ["info", "get"] * 2 and texts_in(server) == SOME


@pytest.mark.parametrize("meta", [None, {META: {"format": 1}}, [1]])
def test_an_index_of_another_program_is_refused(
    server: FakeElasticsearch, tmp_path: Path, meta: Any
) -> None:
    mappings = {"properties": {}} if meta is None else {"_meta": meta, "properties": {}}
    server.indices["touche-llm"] = Index({}, mappings)
    for work in (Loader(server, corpus_file(tmp_path, SOME)), lambda: opened(server).__enter__()):
        with pytest.raises(UsageError, match=r"`elasticsearch\.index`|format 2.* 1"):
            work()
    assert "bulk" not in server.kinds()


# Bad lines.


def test_a_repeated_id_is_a_bad_line(server: FakeElasticsearch, tmp_path: Path) -> None:
    pairs = [*numbered(25).items(), ("d003", "y")]
    load = Loader(server, corpus_file(tmp_path, pairs))
    with raises_at(BadLine, f"{load.corpus}:26", "document d003"):
        load()
    assert not complete(server)
    # It goes on from there.
    manifest = load(skip_bad_lines=True)
    assert (manifest.documents, manifest.bad_lines) == (25, 1)
    assert texts_in(server) == numbered(25)
    with raises_at(
        UsageError, f"{server.url}, index touche-llm", "1 bad lines", "`skip_bad_lines: true`"
    ):
        load()
    assert load(skip_bad_lines=True) == manifest


def test_a_document_that_the_server_refuses_ends_the_load(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    refused = {"create": refused_item("", "d2", 400, "document_parsing_exception", "no room")}
    server.behaviours["bulk"] = [says({"items": [refused]})]
    with raises_at(EngineError, server.url, "document d2", "document_parsing_exception", "no room"):
        Loader(server, corpus_file(tmp_path, SOME))()
    assert not complete(server)


# Replies that make no sense.


@pytest.mark.parametrize(
    "reply",
    [
        {"items": [{"create": {"_id": "other", "status": 201}}] * 3},
        {"items": []},
        {},
        b"<html>proxy</html>",
    ],
    ids=repr,
)
def test_a_reply_of_another_form_ends_the_load_with_an_error(
    server: FakeElasticsearch, tmp_path: Path, reply: Any
) -> None:
    server.behaviours["bulk"] = [says(reply)]
    with pytest.raises(EngineError) as raised:
        Loader(server, corpus_file(tmp_path, SOME))(retry_for=0.0)
    assert server.url in str(raised.value) and len(str(raised.value)) < 600
    assert not complete(server)


def test_a_refusal_says_what_was_asked_and_why(server: FakeElasticsearch, tmp_path: Path) -> None:
    server.behaviours["create"] = [
        lambda request, usual: problem(400, "illegal_argument_exception", "no such filter")
    ]
    with raises_at(
        EngineError, server.url, "index touche-llm", "illegal_argument_exception", "no such filter"
    ):
        Loader(server, corpus_file(tmp_path, SOME))()
    server.behaviours["bulk"] = [refuses(413, "content_too_long", "too long")]
    with raises_at(
        EngineError, server.url, "lines 1 to 3", "HTTP 413", "content_too_long", "too long"
    ):
        Loader(server, corpus_file(tmp_path, SOME))()
