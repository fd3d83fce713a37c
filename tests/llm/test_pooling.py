"""Embedding models and cross-encoders: keys, cache, replay, and each fault of a server in one line."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.fake_pooling import DIMENSIONS, FakePooling, embed_words
from touche_llm.engines.http import HttpClient
from touche_llm.engines.pooling import PoolingClient, PoolingServer
from touche_llm.engines.settings import PoolingConfig, PoolingPurpose
from touche_llm.errors import EngineError, PromptError, ReplayMiss
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.protocol import EngineInfo

ResultT = TypeVar("ResultT")
LONG = "word " * 200
TEXTS = [("cats chase mice", "1"), ("dogs bark", "1"), ("cats chase mice", "2")]


def run(
    server: FakePooling,
    work: Callable[[PoolingClient], Awaitable[ResultT]],
    path: Path,
    *,
    purpose: PoolingPurpose = "embedding",
    dimensions: int | None = None,
    **settings: Any,
) -> ResultT:
    """Connect to the server and work with a client that stores in `path`."""

    async def connected() -> ResultT:
        async with server.running():
            values = PoolingConfig(url=server.url, retry_for=0.0, **settings)
            async with HttpClient(server.url, concurrency=16, request_timeout=300) as http_client:
                engine = PoolingServer(http_client, purpose, values)
                info = await engine.connect(dimensions)
                with Cache(path) as cache:
                    client = PoolingClient(
                        info, engine, cache, retry_for=0.0, batch=2, dimensions=dimensions
                    )
                    return await work(client)

    return asyncio.run(connected())


async def embed(client: PoolingClient, texts: Sequence[tuple[str, ...]]) -> list[bytes]:
    return await client.embed([client.wrap(*text) for text in texts])


async def score(
    client: PoolingClient, query: str, documents: Sequence[tuple[str, ...]]
) -> list[float]:
    return await client.score(query, [client.wrap(*document) for document in documents])


def replay(work: Callable[[PoolingClient], Awaitable[ResultT]], path: Path) -> ResultT:
    """Work without a server."""
    with Cache(path, CacheMode.REPLAY) as cache:
        info = EngineInfo(model="pooling", revision="", context=128, overhead=8, engine="")
        client = PoolingClient(info, None, cache)

        async def work_and_check() -> ResultT:
            result = await work(client)
            client.raise_on_misses()
            return result

        return asyncio.run(work_and_check())


def test_equal_texts_are_embedded_once_and_replayed(tmp_path: Path) -> None:
    server = FakePooling()
    vectors = run(server, lambda client: embed(client, TEXTS), tmp_path / "cache.sqlite")
    assert [np.frombuffer(vector, "<f4").tolist() for vector in vectors] == [
        np.array(embed_words(text), "<f4").tolist() for text, _ in TEXTS
    ]
    assert server.sent[-1]["input"] == ["cats chase mice", "dogs bark"]
    assert replay(lambda client: embed(client, TEXTS), tmp_path / "cache.sqlite") == vectors
    with pytest.raises(ReplayMiss, match="lacks 1 results"):
        replay(lambda client: embed(client, [*TEXTS, ("birds", "3")]), tmp_path / "cache.sqlite")


def test_scores_are_stored_for_each_pair(tmp_path: Path) -> None:
    server, path = FakePooling(), tmp_path / "cache.sqlite"
    documents = [(text, "1", text[0]) for text in ("dogs bark", "cats sleep", "cats chase mice")]
    scores = run(
        server, lambda client: score(client, "cats chase", documents), path, purpose="score"
    )
    assert [len(body["documents"]) for body in server.sent[-2:]] == [2, 1]
    assert sorted(range(3), key=lambda index: -scores[index]) == [2, 1, 0]
    assert replay(lambda client: score(client, "cats chase", documents[::-1]), path) == scores[::-1]


@pytest.mark.parametrize("dimensions", [None, DIMENSIONS])
def test_the_keys_are_those_of_the_contract(tmp_path: Path, dimensions: int | None) -> None:
    path = tmp_path / "cache.sqlite"
    run(
        FakePooling(),
        lambda client: embed(client, TEXTS[:1]),
        path,
        revision="r",
        dimensions=dimensions,
    )
    run(FakePooling(), lambda client: score(client, "q", [("d", "1", "x")]), path, purpose="score")
    vector = {
        "kind": "embedding",
        "model": "pooling",
        "revision": "r",
        "text": "cats chase mice",
        "version": 1,
    }
    vector |= {} if dimensions is None else {"dimensions": dimensions}
    pair = {
        "document": "d",
        "kind": "score",
        "model": "pooling",
        "query": "q",
        "revision": "",
        "version": 1,
    }
    with Cache(path) as cache:
        found = {
            entry.kind: (entry.key, entry.topic, entry.document)
            for entry in cache.iterate_entries()
        }
    assert found["embedding"][0] == _hash(vector)
    assert found["score"] == (_hash(pair), "1", "x")


def _hash(parts: dict[str, Any]) -> str:
    content = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize(
    ("purpose", "fault", "named"),
    [
        ("embedding", "constant", "same vector for clearly different texts"),
        ("embedding", "zero", "vector of zeros"),
        ("embedding", "locked", "VLLM_API_KEY"),
        ("score", "constant", "issues/27857"),
        ("score", "nan", "no number"),
    ],
)
def test_faults_are_found_at_the_start(
    tmp_path: Path, purpose: PoolingPurpose, fault: str, named: str
) -> None:
    with pytest.raises(EngineError, match=named) as raised:
        run(
            FakePooling(fault=fault),
            lambda client: client.embed([]),
            tmp_path / "cache.sqlite",
            purpose=purpose,
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("purpose", "fault", "named"),
    [
        ("embedding", "model", "'another' answers now, 'pooling' answered before"),
        ("embedding", "dimensions", "31 dimensions, the first had 32"),
        ("embedding", "nan", "NaN"),
        ("embedding", "short", "1 results for 2 texts"),
        ("embedding", "refused", "too many tokens"),
        ("score", "nan", "no number"),
    ],
)
def test_later_faults_end_the_work(
    tmp_path: Path, purpose: PoolingPurpose, fault: str, named: str
) -> None:
    path, server = tmp_path / "cache.sqlite", FakePooling(fault=fault, healthy=1)

    async def work(client: PoolingClient) -> None:
        await (
            embed(client, TEXTS[:2]) if purpose == "embedding" else score(client, "q", TEXTS[:2])
        )

    with pytest.raises(EngineError, match=named) as raised:
        run(server, work, path, purpose=purpose)
    assert "\n" not in str(raised.value)
    with Cache(path) as cache:
        assert list(cache.iterate_entries()) == []


def test_a_server_of_another_kind_or_model_or_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"

    async def connect(server: FakePooling, **settings: Any) -> None:
        async with (
            server.running(),
            HttpClient(
                server.url, concurrency=16, request_timeout=300, section="dense"
            ) as http_client,
        ):
            engine = PoolingServer(http_client, "embedding", PoolingConfig(**settings))
            await engine.connect(settings.pop("dimensions", None))

    with pytest.raises(
        EngineError, match=r"serves pooling, not 'other'; choose one with `dense\.model`"
    ):
        asyncio.run(connect(FakePooling(), model="other"))
    with pytest.raises(EngineError, match="context of 128 tokens, 256 are configured"):
        asyncio.run(connect(FakePooling(), context=256))
    with pytest.raises(EngineError, match="32 dimensions, 8 are configured"):
        run(FakePooling(), lambda client: client.embed([]), path, dimensions=8)

    class Generating(FakePooling):
        def add_routes(self, app: Any) -> None:
            app.router.add_get("/version", self.version)

    with pytest.raises(EngineError, match="--runner pooling"):
        asyncio.run(connect(Generating()))


def test_long_documents_are_truncated_in_tokens(tmp_path: Path) -> None:
    async def fit(client: PoolingClient) -> tuple[str, str]:
        short = await client.fit(lambda text: f"passage: {text}", "short", "1", "e")
        return short, await client.fit(lambda text: f"passage: {text}", LONG, "1", "d")

    short, cut = run(FakePooling(), fit, tmp_path / "cache.sqlite")
    assert short == "short" and LONG.startswith(cut.removesuffix(" …"))
    assert 80 < len(cut.split()) < 120
    assert replay(fit, tmp_path / "cache.sqlite") == (short, cut)
    with pytest.raises(PromptError):
        run(
            FakePooling(),
            lambda client: client.fit(LONG.__add__, LONG, "1", "d"),
            tmp_path / "cache.sqlite",
        )


def test_without_a_tokenizer_a_long_document_is_an_error(tmp_path: Path) -> None:
    server = FakePooling(has_tokenizer=False)
    with pytest.raises(EngineError, match="document d: too long, and its tokens cannot be counted"):
        run(
            server,
            lambda client: client.fit(str, LONG, "1", "d"),
            tmp_path / "cache.sqlite",
        )
