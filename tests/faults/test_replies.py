"""A server that sends malformed replies: no label or grade is invented, everything ends, the cache stays valid."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.answer_models import ComparativeJudgment, judge_request
from tests.faults import reply_bodies, reply_wires
from tests.faults.fuzz_server import FuzzServer, honest, probe
from tests.faults.reply_kinds import KINDS, LABELS, Kind, Pieces, good, http
from tests.faults.tally import Tally
from touche_llm.doctor.examination import connect
from touche_llm.doctor.survey import ServerUnderTest
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import EngineError
from touche_llm.judging.grades import compute_expected_grade
from touche_llm.llm.answer import Answer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.client import FailedRequest, UnansweredRequest, UncachedRequest
from touche_llm.llm.label_probabilities import TokenizedAnswer, read_label
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.parsing import parse_answer
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.request import Request
from touche_llm.llm.settings import SamplingConfig

# Imported for the kinds that they register.
assert reply_bodies and reply_wires

# They leave bytes on their connection, so that what is sent on it next may be lost instead.
LEAVING = [KINDS["odd length"]]
LASTING = [kind for kind in KINDS.values() if kind.outcomes != {"ends"} and kind not in LEAVING]
ENDING = [kind for kind in KINDS.values() if kind.outcomes == {"ends"}]
# Fewer than end a run when all of them are lost one after the other.
BATCH = 24
Result = AnsweredRequest[ComparativeJudgment] | UnansweredRequest


@dataclass
class Sent:
    """A reply that went out: its kind, what it says, its probabilities."""

    kind: Kind
    serial: str
    text: str | None
    shares: dict[str, dict[str, float]]


@dataclass
class Fuzz:
    """Plans of a server that sends each document's request its kinds of replies, the last one again and again."""

    seed: int
    kinds: dict[int, list[Kind]] = field(default_factory=dict)
    sent: dict[int, list[Sent]] = field(default_factory=dict)

    def plan(self, path: str, body: bytes) -> Pieces:
        if path != "/v1/chat/completions":
            return [http(honest(path, body))]
        start_up = probe(body)
        if start_up is not None:
            return [http(start_up)]
        request = orjson.loads(body)
        number = int(request["messages"][1]["content"].split()[-1])
        before = self.sent.setdefault(number, [])
        kinds = self.kinds[number]
        kind = kinds[min(len(before), len(kinds) - 1)]
        serial = f"{number}.{len(before)}"
        rng = random.Random(f"{self.seed}/{kind.name}/{serial}")
        reply = good(rng, serial)
        shares = {field: dict(each) for field, each in reply.shares.items()}
        pieces = kind.make(rng, reply)
        before.append(Sent(kind, serial, _said(reply.body), shares))
        return pieces


def _said(body: dict[str, Any]) -> str | None:
    """The answer of a body, as far as there is one."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        said = body["choices"][0]["message"]["content"]
        return said if isinstance(said, str) else None
    return None


def request_for(number: int) -> Request:
    return judge_request(f"document {number}")


@asynccontextmanager
async def connected(
    fuzz: FuzzServer, timeout: float = 60.0
) -> AsyncIterator[tuple[ChatServer, EngineInfo]]:
    """A client that has passed the start-up check.

    Nothing is left to the loop's exception handler.
    """
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    client = ChatServer(fuzz.url, concurrency=8, request_timeout=timeout, chat_template_kwargs={})
    async with client as server:
        examined = await connect(ServerUnderTest(server, EngineConfig(), SamplingConfig()))
        server.dialect = examined.dialect
        yield server, examined.info
    assert problems == []


async def answers(
    fuzz: Fuzz,
    numbers: list[int],
    server: ChatServer,
    facts: EngineInfo,
    cache: Cache,
    retry_for: float,
) -> list[Result]:
    """What becomes of requests, in batches that are each a run of their own.

    A batch that hangs is an error.
    """
    found: list[Result] = []
    for start in range(0, len(numbers), BATCH):
        model = ModelClient(
            engine_info=facts,
            engine=server,
            cache=cache,
            retry_for=retry_for,
            sampling=SamplingConfig(),
        )
        batch = [
            model.request(request_for(number), ComparativeJudgment)
            for number in numbers[start : start + BATCH]
        ]
        async with asyncio.timeout(120):
            found += await asyncio.gather(*batch)
    return found


def check(sent: list[Sent], result: Result) -> str:
    """Check one result against the replies that were sent for it; returns what became of it."""
    # Without a reply the connection was lost to the reply before.
    allowed = frozenset().union(*(each.kind.outcomes for each in sent)) or {"server_error"}
    assert not isinstance(result, UncachedRequest), "nothing is replayed"
    if isinstance(result, FailedRequest):
        assert result.attempts, "a failure without an attempt"
        assert {attempt.kind for attempt in result.attempts} <= allowed, (allowed, result)
        for attempt in result.attempts:
            assert len(attempt.text or "") <= 2000 and len(attempt.reason) <= 500, attempt.reason
        return result.attempts[-1].kind
    assert "answer" in allowed, result
    serials = {each.serial: each for each in sent}
    source = serials.get(result.answer.fingerprint or "")
    if source is None:
        # A reply that lost its name; never one that was not sent for this document.
        assert any(not each.kind.named for each in sent), result
        return "answer"
    if source.kind.named:
        assert source.text is not None
        assert json.loads(source.text) == result.value.model_dump()
    for name, labels in LABELS.items():
        label = getattr(result.value, name)
        answer = TokenizedAnswer(result.answer.text, result.answer.tokens, result.layout)
        reading = read_label(answer, name, labels, label)
        if reading.probabilities is not None:
            assert sum(reading.probabilities.values()) == pytest.approx(1.0, abs=1e-6)
            assert all(0.0 <= share <= 1.0 for share in reading.probabilities.values())
        if labels[0] == 0:
            assert 0.0 <= compute_expected_grade(reading) <= 3.0
        if source.kind.exact:
            assert reading.probabilities == pytest.approx(source.shares[name], abs=1e-6), reading
        if source.kind.exact is False:
            assert reading.probabilities is None
    return "answer"


def is_short(error: EngineError) -> bool:
    return len(str(error)) < 1000 and "\n" not in str(error)


async def check_replay(
    cache: Path, facts: EngineInfo, numbers: list[int], results: list[Result]
) -> None:
    """Check that the cache holds usable answers alone, and gives them again."""
    with Cache(cache, CacheMode.REPLAY) as stored:
        for entry in stored.find("answer"):
            parse_answer(stored.read(entry, Answer).text, ComparativeJudgment)
        model = ModelClient(engine_info=facts, engine=None, cache=stored, sampling=SamplingConfig())
        for number, result in zip(numbers, results, strict=True):
            again = await model.request(request_for(number), ComparativeJudgment)
            if isinstance(result, AnsweredRequest):
                assert again == result
            else:
                assert not isinstance(again, AnsweredRequest)


async def trial(folder: Path, fuzz: Fuzz, tally: Tally, retry_for: float) -> list[Result]:
    """Send every document's replies, check what becomes of them and of the cache, and count."""
    server = FuzzServer(fuzz.plan)
    numbers = list(fuzz.kinds)
    async with server.running(), connected(server) as (client, facts):
        with Cache(folder / "answers.sqlite") as cache:
            results = await answers(fuzz, numbers, client, facts, cache, retry_for)
    broken = []
    for number, result in zip(numbers, results, strict=True):
        sent = fuzz.sent.get(number, [])
        family = f"replies: {fuzz.kinds[number][0].family}"
        tally.add(family, replies=len(sent), tried=1)
        try:
            outcome = check(sent, result)
        except AssertionError as error:
            broken.append(
                f"{[each.kind.name for each in sent]} (document {number}): {str(error)[:500]}"
            )
        else:
            tally.add(family, held=1, **{"answers" if outcome == "answer" else "failures": 1})
    assert not broken, "\n".join(broken)
    await check_replay(folder / "answers.sqlite", facts, numbers, results)
    return results


async def each_kind(folder: Path, seed: int, rounds: int, tally: Tally) -> None:
    documents = {number: [kind] for number, kind in enumerate(LASTING * rounds)}
    await trial(folder, Fuzz(seed, documents), tally, retry_for=0.0)
    leaving = {number + len(documents): [kind] for number, kind in enumerate(LEAVING * rounds)}
    await trial(folder, Fuzz(seed, leaving), tally, retry_for=0.0)


async def bad_then_good(folder: Path, seed: int, rounds: int, tally: Tally) -> None:
    """After a failure that may pass, or that another sample may not have, the good reply is the answer."""
    documents = {
        number: [kind, KINDS["good"]] for number, kind in enumerate([*LASTING, *LEAVING] * rounds)
    }
    results = await trial(folder, Fuzz(seed, documents), tally, retry_for=30.0)
    for number, result in enumerate(results):
        assert isinstance(result, AnsweredRequest) or documents[number][0].name == "client error"


async def mixed(folder: Path, seed: int, rounds: int, tally: Tally) -> None:
    rng = random.Random(seed)
    documents = {number: rng.choices(LASTING, k=4) for number in range(rounds * len(LASTING) // 2)}
    await trial(folder, Fuzz(seed, documents), tally, retry_for=0.3)


@pytest.mark.parametrize("rounds", [3, pytest.param(10, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("test", [each_kind, bad_then_good, mixed])
async def test_a_malformed_reply_gives_an_answer_that_it_carries_or_a_typed_failure(
    test: Any, rounds: int, tmp_path: Path, fault_seed: int, tally: Tally
) -> None:
    await test(tmp_path, fault_seed, rounds, tally)


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.nightly)])
async def test_a_fault_of_the_whole_server_ends_the_run_with_one_error(
    rounds: int, tmp_path: Path, fault_seed: int, tally: Tally
) -> None:
    for number, kind in enumerate(ENDING * rounds):
        fuzz = Fuzz(fault_seed, {0: [KINDS["good"]], number + 1: [kind]})
        server = FuzzServer(fuzz.plan)
        async with server.running(), connected(server) as (client, facts):
            with Cache(tmp_path / f"{number}.sqlite") as cache:
                before = await answers(fuzz, [0], client, facts, cache, 30.0)
                with pytest.raises(EngineError) as ended:
                    await answers(fuzz, [number + 1], client, facts, cache, 30.0)
        assert is_short(ended.value)
        await check_replay(tmp_path / f"{number}.sqlite", facts, [0], before)
        tally.add(
            f"replies: {kind.family}", replies=len(fuzz.sent[number + 1]), tried=1, held=1, ended=1
        )


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
    "silence after the headers": (
        lambda: [_HEAD + b"Content-Length: 10\r\n\r\n", 3600.0],
        "timeout",
    ),
    "dripping body": (lambda: itertools.chain([_HEAD + b"\r\n"], _dripped(b" ")), "timeout"),
    "100 MB": (
        lambda: [_HEAD + b"Content-Length: 104857600\r\n\r\n", *[b" " * MIB] * 100],
        "server_error",
    ),
    "body": (
        lambda: itertools.chain([_HEAD + b"\r\n"], itertools.repeat(b" " * MIB)),
        "server_error",
    ),
    "chunks": (
        lambda: itertools.chain(
            [_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"],
            itertools.repeat(b"100000\r\n" + b" " * MIB + b"\r\n"),
        ),
        "server_error",
    ),
    "200 MB compressed": (
        lambda: [http(gzip.compress(b" " * (200 * MIB), 1), "Content-Encoding: gzip")],
        "server_error",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
async def test_a_reply_without_end_is_given_up_in_bounded_memory(
    name: str, tmp_path: Path, tally: Tally
) -> None:
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
            model = ModelClient(
                engine_info=facts,
                engine=client,
                cache=cache,
                retry_for=0.0,
                sampling=SamplingConfig(),
            )
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
