"""How ChatNoir is reached: failures, pace, and where the key may not go."""

from __future__ import annotations

import traceback
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.fake_chatnoir import (
    Behaviour,
    FakeChatNoir,
    Retrieval,
    echoes,
    holds_key,
    ids,
    results,
    search,
    settings_for,
    status,
)
from tests.fake_server import breaks_off, closes, hangs
from touche_llm.errors import EngineError, ToucheError, UsageError
from touche_llm.llm import retries
from touche_llm.retrieval import chatnoir as chatnoir_transport

pytestmark = pytest.mark.usefixtures("chatnoir_alone")


# Failures.


PASSING = [
    status(500),
    status(429),
    status(503, **{"Retry-After": formatdate(0, usegmt=True)}),
    closes,
    breaks_off,
    hangs,
]


@pytest.mark.parametrize("behaviour", PASSING)
async def test_a_failure_of_a_search_that_passes_is_retried(
    behaviour: Behaviour, tmp_path: Path
) -> None:
    server = FakeChatNoir(results(3), behaviours=[behaviour, behaviour])
    assert [hit.document_id for hit in await search(server, tmp_path, request_timeout=0.1)] == ids(
        3
    )
    assert len(server.searches) == 3


@pytest.mark.parametrize(
    ("behaviour", "request_timeout", "reason"),
    [
        (status(500, "no luck"), 5.0, "no luck"),
        (status(429, "API request limit exceeded."), 5.0, "API request limit exceeded."),
        (hangs, 0.05, "no answer within 0.05 s"),
        (closes, 5.0, "the connection broke"),
    ],
)
async def test_a_failure_that_lasts_ends_the_run_and_says_how_to_go_on(
    behaviour: Behaviour, request_timeout: float, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineError) as caught:
        await search(
            FakeChatNoir(rest=behaviour), tmp_path, request_timeout=request_timeout, retry_for=0.02
        )
    message = str(caught.value)
    assert reason in message and "search 'bottled water'" in message
    assert (
        str(tmp_path / "chatnoir.sqlite") in message and "resume with the same command" in message
    )


@pytest.mark.parametrize(
    ("behaviour", "kind", "pattern"),
    [
        (
            status(401, "Invalid API key."),
            UsageError,
            "HTTP 401: .*Invalid API key.*CHATNOIR_API_KEY",
        ),
        (
            status(403, "Remote IP not allowed."),
            UsageError,
            "HTTP 403: .*Remote IP not allowed.*CHATNOIR_API_KEY",
        ),
        (status(404), EngineError, "HTTP 404.*chatnoir.base_url"),
        (status(400, "bad index"), EngineError, "HTTP 400: .*bad index"),
        (status(302, Location="/elsewhere"), EngineError, "HTTP 302"),
    ],
)
async def test_a_refusal_ends_at_once_and_says_what_to_do(
    behaviour: Behaviour, kind: type[ToucheError], pattern: str, tmp_path: Path
) -> None:
    server = FakeChatNoir(rest=behaviour)
    with pytest.raises(kind, match=pattern):
        await search(server, tmp_path)
    assert len(server.searches) == 1


# Pace: with a clock that only moves while one sleeps.


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (chatnoir_transport, retries):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(chatnoir_transport, "asyncio", clock)
    return clock


async def test_requests_go_out_no_faster_than_set_retries_too(tmp_path: Path, clock: Clock) -> None:
    server = FakeChatNoir(results(5), behaviours=[status(429), None, status(503)])
    async with server.running():
        await Retrieval()(settings_for(server, tmp_path, requests_per_second=0.1))
    assert clock.now >= 100.0 + (server.requests - 1) * 10.0


# The key.


@pytest.mark.parametrize(
    "behaviour",
    [echoes(code) for code in (200, 302, 401, 404, 500)],
)
async def test_a_key_that_the_server_sends_back_is_told_nowhere(
    behaviour: Behaviour,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(0)
    with pytest.raises(ToucheError) as caught:
        await search(FakeChatNoir(rest=behaviour), tmp_path, retry_for=0.0)
    output = capsys.readouterr()
    texts = [
        str(caught.value),
        repr(caught.value),
        "".join(traceback.format_exception(caught.value)),
    ]
    context: BaseException | None = caught.value
    while context is not None:
        texts.append(f"{context!r} {context}")
        context = context.__cause__ or context.__context__
    for text in (*texts, output.out, output.err, caplog.text):
        assert not holds_key(text), text
    for file in tmp_path.iterdir():
        assert not holds_key(file.read_bytes().decode("latin-1"))
