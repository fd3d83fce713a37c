"""Connections to Elasticsearch: login, other servers, lasting failures, no leak of secrets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import elasticsearch
import pytest

from tests.expect import raises_at
from tests.fake_elasticsearch import (
    ElasticRequest,
    FakeElasticsearch,
    Reply,
    breaks,
    refuses,
    settings_for,
)
from tests.retrieval.elasticsearch.elastic_corpus import SOME, Loader, corpus_file, opened
from touche_llm.errors import EngineError, UsageError
from touche_llm.retrieval.elasticsearch import Server

pytestmark = pytest.mark.usefixtures("elasticsearch_alone")
PASSWORD = "a long passwörd&<>"
KEY = "VnVhQ2ZHY0JDZGJrUW0tZTVhT3g6dWkybHAyYXhUTm1zeWFrdzl0dk5udw=="


@pytest.fixture
def server() -> Iterator[FakeElasticsearch]:
    with FakeElasticsearch().running() as running:
        yield running


def greet(server: FakeElasticsearch) -> str:
    with closing(Server(settings_for(server), print)) as there:
        return there.version


def log_in(
    monkeypatch: pytest.MonkeyPatch, *, user: str = "", password: str = "", key: str = ""
) -> None:
    for name, value in (("USER", user), ("PASSWORD", password), ("API_KEY", key)):
        monkeypatch.setenv(f"ELASTICSEARCH_{name}", value)


# Logging in.


def test_a_password_or_a_key_is_taken_from_the_environment(
    server: FakeElasticsearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert greet(server) == "9.1.0"
    server.password = PASSWORD
    log_in(monkeypatch, user="elastic", password=PASSWORD)
    assert greet(server) == "9.1.0"
    server.key = KEY
    log_in(monkeypatch, key=KEY)
    assert greet(server) == "9.1.0"


@pytest.mark.parametrize("given", [{}, {"user": "elastic", "password": "wrong"}, {"key": "wrong"}])
def test_a_server_that_does_not_let_us_in_says_how_to_log_in(
    server: FakeElasticsearch, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    server.password = PASSWORD
    log_in(monkeypatch, **given)
    with raises_at(
        UsageError, server.url, "HTTP 401", "ELASTICSEARCH_API_KEY", "ELASTICSEARCH_PASSWORD"
    ) as raised:
        greet(server)
    assert "wrong" not in str(raised.value) and len(server.requests) == 1


@pytest.mark.parametrize(
    "given", [{"user": "elastic"}, {"user": "e", "password": "x", "key": "y"}, {"key": "a\nb"}]
)
def test_half_a_login_or_two_are_refused_before_anything_is_sent(
    server: FakeElasticsearch, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    log_in(monkeypatch, **given)
    with raises_at(UsageError, "Elasticsearch", "ELASTICSEARCH_API_KEY", "ELASTICSEARCH_PASSWORD"):
        greet(server)
    assert not server.requests


# Who is there.


def test_an_address_where_nobody_is_ends_at_once(server: FakeElasticsearch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings = settings_for(server, url=url, retry_for=1000.0)
        with raises_at(EngineError, url, "`elasticsearch.url`"):
            Server(settings, print)


def test_another_product_or_version_is_refused(server: FakeElasticsearch) -> None:
    server.product = ""
    with raises_at(EngineError, server.url, "not Elasticsearch"):
        greet(server)
    server.product, server.version = "Elasticsearch", f"{elasticsearch.__version__[0] - 1}.19.0"
    with raises_at(EngineError, server.url, "media_type_header_exception"):
        greet(server)


def test_a_redirect_is_not_followed_with_the_password(
    server: FakeElasticsearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch, user="elastic", password=PASSWORD)
    with FakeElasticsearch().running() as other:
        server.behaviours["info"] = [lambda request, usual: Reply(302, {}, {"Location": other.url})]
        with pytest.raises(EngineError, match="HTTP 302"):
            greet(server)
        assert not other.requests


# Failures.


def test_a_failure_that_lasts_is_an_error_that_says_for_how_long(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    server.behaviours["bulk"] = [refuses(503, "unavailable", "no master")] * 1000
    load = Loader(server, corpus_file(tmp_path, SOME))
    with raises_at(
        EngineError, server.url, "HTTP 503", "no master", "0.1 s", "elasticsearch.retry_for"
    ):
        load(retry_for=0.1)
    assert len(server.of("bulk")) > 1
    assert sum("tried again" in notice for notice in load.notices) == 1


def test_a_server_that_does_not_answer_is_waited_for_so_long_only(
    server: FakeElasticsearch,
) -> None:
    def sleeps(_: ElasticRequest, __: object) -> Reply:
        time.sleep(0.3)
        return Reply(200, {})

    server.behaviours["info"] = [sleeps]
    with raises_at(EngineError, server.url, "0.1 s"):
        Server(settings_for(server, request_timeout=0.1), print)


def test_a_reply_that_is_cut_off_is_asked_for_again(
    server: FakeElasticsearch, tmp_path: Path
) -> None:
    Loader(server, corpus_file(tmp_path, SOME))()
    server.behaviours["mget"] = [
        lambda request, usual: Reply(200, usual().body, cut=20),
        breaks(after=True),
    ]
    with opened(server) as index:
        asyncio.run(index.fetch(["d1", "none"]))
        assert index.find_unknown(["d1", "none"]) == ["none"]
    assert len(server.of("mget")) == 3
