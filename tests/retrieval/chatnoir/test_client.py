"""ChatNoir's client against a server that speaks its interface: paging, replies of all forms, documents, the cache."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.expect import raises_at
from tests.fake_chatnoir import (
    KEY,
    ONE,
    TOPICS,
    FakeChatNoir,
    Retrieval,
    answer,
    fetch,
    ids,
    result,
    results,
    says,
    search,
    search_again,
    settings_for,
    status,
)
from tests.fake_server import hangs
from touche_llm.data.records import Candidate, Document
from touche_llm.errors import DataError, EngineError
from touche_llm.retrieval import chatnoir as chatnoir
from touche_llm.retrieval.chatnoir import ChatNoirDocuments

pytestmark = pytest.mark.usefixtures("chatnoir_alone")


@pytest.fixture
def shorter_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatnoir, "PAGE_SIZE", 10)


# Requests and replies.


async def test_a_search_carries_query_place_and_key(tmp_path: Path) -> None:
    server = FakeChatNoir(results(3))
    async with server.running():
        await search_again(
            settings_for(server, tmp_path), query=" Ist\n Gr\u00fcn \U0001f600 besser? "
        )
    (body,) = server.searches
    assert (body["query"], body["index"], body["from"], body["size"]) == (
        "Ist Gr\u00fcn \U0001f600 besser?",
        ["cw22"],
        0,
        100,
    )
    assert body["apikey"] == KEY
    assert "start" not in body
    # Neither explanations nor results without their titles.
    assert body["explain"] is body["minimal"] is False


@pytest.mark.parametrize(
    ("there", "depth", "starts"),
    [
        (25, 11, [0, 10]),
        (25, 1000, [0, 10, 20]),
        (20, 1000, [0, 10, 20]),  # an empty page ends it
        (0, 5, [0]),
    ],
)
@pytest.mark.usefixtures("shorter_pages")
async def test_pages_are_asked_for_until_there_are_enough_or_no_more(
    there: int, depth: int, starts: list[int], tmp_path: Path
) -> None:
    server = FakeChatNoir(results(there))
    hits = await search(server, tmp_path, depth)
    assert [hit.document_id for hit in hits] == ids(min(there, depth))
    assert [hit.score for hit in hits] == [1000.5 - n for n in range(min(there, depth))]
    assert [body["from"] for body in server.searches] == starts


@pytest.mark.usefixtures("shorter_pages")
async def test_a_document_that_comes_twice_counts_once_at_its_first_place(tmp_path: Path) -> None:
    first, *others, third, fourth = results(12)
    server = FakeChatNoir([first, *others, {**first, "score": 7.0}, third, fourth])
    hits = await search(server, tmp_path, 11)
    assert [(hit.document_id, hit.score) for hit in hits] == [
        (each["trec_id"], each["score"]) for each in (first, *others, third)
    ]


async def test_a_trec_id_that_is_no_word_is_an_error(tmp_path: Path) -> None:
    for ident in ("", "a b", "a\x1b[2J"):
        with pytest.raises(EngineError, match="TREC id") as caught:
            await search(FakeChatNoir([result(ident, 1.0)]), tmp_path)
        assert str(caught.value).isprintable()


async def test_results_without_a_trec_id_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = results(3)
    server = FakeChatNoir([first, {**second, "trec_id": None}, third])
    assert [hit.document_id for hit in await search(server, tmp_path)] == [ids(3)[0], ids(3)[2]]
    assert "'bottled water': 1 results without a TREC id left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    [
        b"<html>busy</html>",
        {"hits": []},
        answer([{**ONE, "uuid": "!!"}]),
        json.dumps(answer([{**ONE, "score": float("nan")}])).encode(),
    ],
    ids=repr,
)
async def test_a_reply_of_another_form_is_an_error(body: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="'bottled water'"):
        await search(FakeChatNoir(rest=says(body)), tmp_path)


# Documents.

LONGEST = 100_000


@pytest.fixture
def shorter_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatnoir, "MAX_BYTES", LONGEST)


async def test_a_document_comes_by_redirect_and_without_the_key(tmp_path: Path) -> None:
    server = FakeChatNoir(
        results(1), texts={ids(1)[0]: "Gr\u00fc\u00df Gott \U0001f600\nsecond line"}
    )
    assert await fetch(server, tmp_path) == "Gr\u00fc\u00df Gott \U0001f600\nsecond line"
    assert KEY not in repr(server.document_queries)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gone": set(ids(1))}, "HTTP 404"),
        ({"texts": {ids(1)[0]: "None"}}, "no text"),
        ({"texts": {ids(1)[0]: b"%PDF\x00\x01"}}, "not text"),
        ({"texts": {ids(1)[0]: b"a" * (LONGEST + 1)}}, "longer than 100,000 bytes"),
        ({"texts": {ids(1)[0]: b"a"}, "charset": "x-none"}, "in the unknown encoding 'x-none'"),
    ],
)
@pytest.mark.usefixtures("shorter_documents")
async def test_a_document_without_usable_text_is_recorded(
    changes: Any, reason: str, tmp_path: Path
) -> None:
    server = FakeChatNoir(results(1), **changes)
    assert await fetch(server, tmp_path) is None
    assert await fetch(server, tmp_path) is None
    assert len(server.fetched) == 1
    with closing(ChatNoirDocuments(settings_for(server, tmp_path))) as documents:
        assert documents.find_unknown(ids(1)) == ids(1)
        with raises_at(DataError, tmp_path / "chatnoir.sqlite", ids(1)[0], reason):
            documents.get(ids(1)[0])


async def test_a_document_that_always_fails_names_the_way_past_it(tmp_path: Path) -> None:
    server = FakeChatNoir(results(1), behaviours=[None], rest=status(500))
    with pytest.raises(EngineError, match=f"{ids(1)[0]}.*chatnoir.leave_out.*HTTP 500"):
        await fetch(server, tmp_path, retry_for=0.0)
    server.rest = None
    assert await search(server, tmp_path, leave_out=tuple(ids(1))) == []
    assert len(server.fetched) == 1


# The way through.


async def test_candidates_are_ranked_by_score_and_then_by_id(tmp_path: Path) -> None:
    given = [result("d-b", 2.0), result("d-c", 3.0), result("d-a", 2.0), result("d-d", -1.0)]
    retrieval = Retrieval()
    async with FakeChatNoir(given).running() as server:
        rankings = await retrieval(settings_for(server, tmp_path))
    expected = [("d-c", 3.0), ("d-a", 2.0), ("d-b", 2.0), ("d-d", -1.0)]
    for topic, ranking in zip(TOPICS, rankings, strict=True):
        assert ranking == [
            Candidate(topic.id, ident, rank, score)
            for rank, (ident, score) in enumerate(expected, start=1)
        ]
    assert [body["query"] for body in server.searches] == [topic.title for topic in TOPICS]
    assert (retrieval.steps, retrieval.notices) == (2, [])
    with closing(ChatNoirDocuments(settings_for(server, tmp_path))) as documents:
        assert documents.find_unknown(ident for ident, _ in expected) == []
        assert documents.get("d-a") == Document("d-a", "Text of d-a.")
        assert documents.find_unknown(["z", "d-a", "y", "z"]) == ["z", "y"]
        with raises_at(DataError, tmp_path / "chatnoir.sqlite", "'z'"):
            documents.get("z")


@pytest.mark.usefixtures("shorter_pages")
async def test_a_second_run_needs_neither_server_nor_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeChatNoir(results(25), gone={ids(25)[3]})
    async with server.running():
        first = await Retrieval()(settings_for(server, tmp_path), depth=25)
    assert server.requests == 2 * 3 + 25, "a document that two topics share is fetched once"
    monkeypatch.delenv("CHATNOIR_API_KEY")
    offline = settings_for(server, tmp_path, retry_for=0.0)
    retrieval = Retrieval()
    assert await retrieval(offline, depth=25) == first
    missing = f"1 of 25 documents left out: {ids(25)[3]} (HTTP 404)"
    assert retrieval.notices == [f"topic {number}: {missing}" for number in (1, 2)], (
        "reported again"
    )


async def test_a_run_that_was_stopped_asks_only_for_the_rest(tmp_path: Path) -> None:
    server = FakeChatNoir(results(20))
    cut = asyncio.Event()

    async def stop(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        cut.set()
        return await hangs(_, __)

    async with server.running():
        settings = settings_for(server, tmp_path)
        # The first document that hangs is not requested before one of those in flight is stored.
        server.behaviours = [None] * (1 + chatnoir._CONCURRENCY)
        server.rest = stop
        task = asyncio.create_task(Retrieval()(settings))
        await cut.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with closing(ChatNoirDocuments(settings)) as documents:
            stored = set(ids(20)) - set(documents.find_unknown(ids(20)))
        assert stored
        server.rest = None
        server.behaviours = []
        server.searches.clear()
        server.fetched.clear()
        rankings = await Retrieval()(settings)
    assert [len(ranking) for ranking in rankings] == [10, 10]
    assert [body["query"] for body in server.searches] == [TOPICS[1].title]
    assert not set(server.fetched) & stored
    assert len(server.fetched) == 10 - len(stored)
