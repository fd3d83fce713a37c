"""Replies without an end: the client gives up in bounded time and memory."""

from __future__ import annotations

import gzip
import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.answer_models import ComparativeJudgment
from tests.faults.fuzz_server import FuzzServer, honest, probe
from tests.faults.reply_kinds import Pieces, http
from tests.faults.tally import Tally
from tests.faults.test_replies import connected, request_for
from touche_llm.llm.answers import FailedRequest
from touche_llm.llm.cache import Cache
from touche_llm.llm.model import ModelClient

pytestmark = pytest.mark.slow

MIB = 2**20
# Sixteen of a reply, and what sockets and decompression hold.
MOST_MEMORY = 64 * MIB
_HEAD = http(b"", sized=False)[:-2]


def _dripped(text: bytes) -> Pieces:
    for byte in itertools.cycle(text):
        yield bytes([byte])
        yield 0.01


ENDLESS: dict[str, tuple[Callable[[], Pieces], str]] = {
    "silence": (lambda: [3600.0], "timeout"),
    "silence after the headers": (lambda: [_HEAD + b"Content-Length: 10\r\n\r\n", 3600.0], "timeout"),
    "dripping body": (lambda: itertools.chain([_HEAD + b"\r\n"], _dripped(b" ")), "timeout"),
    "100 MB": (lambda: [_HEAD + b"Content-Length: 104857600\r\n\r\n", *[b" " * MIB] * 100], "server_error"),
    "body": (lambda: itertools.chain([_HEAD + b"\r\n"], itertools.repeat(b" " * MIB)), "server_error"),
    "chunks": (
        lambda: itertools.chain(
            [_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"], itertools.repeat(b"100000\r\n" + b" " * MIB + b"\r\n")
        ),
        "server_error",
    ),
    "200 MB compressed": (
        lambda: [http(gzip.compress(b" " * (200 * MIB), 1), "Content-Encoding: gzip")],
        "server_error",
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_reply_without_end_is_given_up_in_bounded_memory(name: str, tmp_path: Path, tally: Tally) -> None:
    make, expected = ENDLESS[name]

    def plan(path: str, body: bytes) -> Pieces:
        if path != "/v1/chat/completions":
            return [http(honest(path, body))]
        start_up = probe(body)
        return pieces if start_up is None else [http(start_up)]

    pieces = make()
    server = FuzzServer(plan)
    async with server.running(), connected(server, timeout=2.0) as (client, facts):
        with Cache(tmp_path / "answers.sqlite") as cache:
            model = ModelClient(engine_info=facts, engine=client, cache=cache, retry_for=0.0)
            tracemalloc.start()
            try:
                result = await model.request(request_for(1), ComparativeJudgment)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert cache.find("answer") == []
    assert isinstance(result, FailedRequest)
    assert [attempt.kind for attempt in result.attempts] == [expected]
    assert peak < MOST_MEMORY
    tally.add("replies: endless", replies=1, tried=1, held=1, failures=1)
