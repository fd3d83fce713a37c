"""Client of a server that misbehaves: every reply ends in an answer, a retry or a typed failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.answer_models import ComparativeJudgment, judge_request
from tests.fake_server import (
    GOOD,
    Behaviour,
    FakeServer,
    answers_as,
    breaks_off,
    closes,
    good,
    half_json,
    hangs,
    reply,
    says,
    status,
)
from touche_llm.doctor.examination import connect as connect_to
from touche_llm.doctor.survey import ServerUnderTest
from touche_llm.engines.chat import ChatServer
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import EngineError
from touche_llm.llm import retries
from touche_llm.llm.answer_schema import build_schema
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.client import FailedRequest, UnansweredRequest
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.request import Request
from touche_llm.llm.settings import SamplingConfig


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.01)


@asynccontextmanager
async def model_of(
    server: FakeServer,
    path: Path,
    *,
    request_timeout: float = 5.0,
    retry_for: float = 5.0,
    **options: Any,
) -> AsyncIterator[ModelClient]:
    async with ChatServer(
        server.url,
        concurrency=8,
        request_timeout=request_timeout,
        chat_template_kwargs={"enable_thinking": False},
    ) as engine:
        examined = await connect_to(ServerUnderTest(engine, EngineConfig(), SamplingConfig()))
        engine.dialect = examined.dialect
        with Cache(path / "answers.sqlite", options.get("mode", CacheMode.REUSE)) as cache:
            retry = options.get("retry_failures", False)
            yield ModelClient(
                engine_info=examined.info,
                engine=engine,
                cache=cache,
                retry_for=retry_for,
                retry_failures=retry,
                sampling=SamplingConfig(),
            )


def question(text: str = "A question.") -> Request:
    return judge_request(text, chat_template_kwargs={"enable_thinking": False})


async def send_question(
    server: FakeServer, path: Path, **options: Any
) -> tuple[AnsweredRequest[Any] | UnansweredRequest, ModelClient]:
    async with server.running(), model_of(server, path, **options) as model:
        return await model.request(question(), ComparativeJudgment), model


async def test_the_request_holds_everything_that_can_change_the_answer(tmp_path: Path) -> None:
    server = FakeServer()
    result, _ = await send_question(server, tmp_path)
    assert isinstance(result, AnsweredRequest)
    (body,) = server.bodies
    assert body["structured_outputs"] == {"json": build_schema(ComparativeJudgment)}
    assert (body["temperature"], body["max_tokens"]) == (0.0, 64)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    # A seed has no effect at temperature 0.
    assert not {"guided_json", "response_format", "stop", "seed"} & set(body)


@pytest.mark.parametrize(
    "behaviour",
    [status(500), status(429, **{"Retry-After": "0"}), closes, half_json],
)
async def test_a_failure_that_passes_is_retried_until_it_does(
    behaviour: Behaviour, tmp_path: Path
) -> None:
    server = FakeServer([behaviour, behaviour])
    result, model = await send_question(server, tmp_path)
    assert isinstance(result, AnsweredRequest)
    assert result.sample == 0
    assert (len(server.bodies), model.counts.retries, model.counts.failures) == (3, 2, 0)


@pytest.mark.parametrize(
    ("behaviour", "kind", "reason"),
    [
        (status(500), "server_error", "HTTP 500: status 500"),
        (hangs, "timeout", "0.2 s"),
        (breaks_off, "server_error", "ClientPayloadError"),
    ],
)
async def test_a_failure_that_lasts_is_typed_and_not_cached(
    behaviour: Behaviour, kind: str, reason: str, tmp_path: Path
) -> None:
    result, model = await send_question(
        FakeServer(rest=behaviour), tmp_path, request_timeout=0.2, retry_for=0.1
    )
    assert isinstance(result, FailedRequest)
    assert [attempt.kind for attempt in result.attempts] == [kind]
    assert reason in result.attempts[0].reason
    assert model.counts.failures == 1
    with Cache(tmp_path / "answers.sqlite") as cache:
        assert not list(cache.iterate_entries())


def cached(tokens: Any) -> dict[str, Any]:
    return {"prompt_tokens_details": {"cached_tokens": tokens}}


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({}, (0, 0)),
        (cached(10), (10, 1)),
    ],
)
async def test_tokens_from_the_prefix_cache_are_counted_if_reported_and_are_not_part_of_the_answer(
    usage: dict[str, Any], counted: tuple[int, int], tmp_path: Path
) -> None:
    result, model = await send_question(FakeServer(rest=says(GOOD, usage=usage)), tmp_path)
    assert isinstance(result, AnsweredRequest)
    assert (model.counts.prefix_cached_tokens, model.counts.prefix_reports) == counted
    assert model.counts.prompt_tokens == 10
    silent, _ = await send_question(FakeServer(rest=says(GOOD)), tmp_path / "silent")
    assert result == silent


UNUSABLE = [
    (says("I think it is relevant."), "not_json"),
    (says("", reasoning_content="Let me think about it"), "not_json"),
    (says('{"relevance":4,"quality":1,"stance":"FIRST"}'), "outside_schema"),
    (says(GOOD, finish_reason="length"), "cut_off"),
    (says("", finish_reason="content_filter"), "refused"),
]


async def test_a_server_that_sends_logits_for_log_probabilities_is_refused_at_once() -> None:
    async def logits(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        sent = (await good(request, body)).body  # type: ignore[attr-defined]
        return web.Response(
            body=sent.replace(b'"logprob":0.0', b'"logprob":17.5'), content_type="application/json"
        )

    with pytest.raises(EngineError, match="--logprobs-mode"):
        await connect(FakeServer(probe=logits))


async def test_another_model_that_answers_ends_the_run_and_is_not_stored(tmp_path: Path) -> None:
    before = "alias-of-fake"
    server = FakeServer(
        [answers_as(before), answers_as(None)], rest=answers_as("other"), probe=answers_as(before)
    )
    async with server.running(), model_of(server, tmp_path) as model:
        taken = [await model.request(question(text), ComparativeJudgment) for text in ("a", "b")]
        with pytest.raises(EngineError) as raised:
            await model.request(question("c"), ComparativeJudgment)
        assert [entry.key for entry in model.cache.find("answer")] == sorted(
            question(text).key for text in ("a", "b")
        )
    assert all(isinstance(each, AnsweredRequest) for each in taken)
    assert "'other'" in str(raised.value) and repr(before) in str(raised.value)


async def connect(server: FakeServer, model: str | None = None, logprobs: bool = True) -> Any:
    async with server.running():
        async with ChatServer(
            server.url, concurrency=1, request_timeout=5, chat_template_kwargs={}
        ) as engine:
            return await connect_to(
                ServerUnderTest(
                    engine,
                    EngineConfig(model=model, revision="r1"),
                    SamplingConfig(logprobs=logprobs),
                )
            )


@pytest.mark.parametrize(
    ("server", "model", "message"),
    [
        (FakeServer(probe=says("", reasoning="hm")), None, "thinking"),
        (FakeServer(probe=status(400)), None, "HTTP 400"),
        (FakeServer(probe=status(401)), None, "VLLM_API_KEY"),
        (FakeServer(), "other", "fake.*'other'.*`engine.model`"),
        (FakeServer(models=[{"id": "a"}, {"id": "b"}]), None, "a, b.*`engine.model`"),
    ],
)
async def test_a_server_that_cannot_do_the_work_is_an_error_at_the_start(
    server: FakeServer, model: str | None, message: str
) -> None:
    with pytest.raises(EngineError, match=message) as raised:
        await connect(server, model)
    assert raised.value.location == server.url


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/v1/", "http://127.0.0.1:1/v1/chat/completions", "127.0.0.1:8000"]
)
async def test_an_unreachable_address_is_named_with_the_option(url: str) -> None:
    async with ChatServer(url, concurrency=1, request_timeout=5, chat_template_kwargs={}) as engine:
        with pytest.raises(EngineError, match="`engine.base_url`") as raised:
            await connect_to(ServerUnderTest(engine, EngineConfig(), SamplingConfig()))
    assert raised.value.location == url.partition("/v1")[0]


async def test_the_key_comes_from_the_environment_and_goes_into_the_header_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str | None] = []

    async def look(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return reply(GOOD)

    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    await send_question(FakeServer(rest=look), tmp_path)
    assert seen == ["Bearer s3cret"]
    assert b"s3cret" not in (tmp_path / "answers.sqlite").read_bytes()


async def test_a_server_that_has_ended_ends_the_run_after_the_retries(tmp_path: Path) -> None:
    server = FakeServer()
    async with AsyncExitStack() as running:
        await running.enter_async_context(server.running())
        async with model_of(server, tmp_path, retry_for=0.3) as model:
            assert isinstance(
                await model.request(question("before"), ComparativeJudgment), AnsweredRequest
            )
            await running.aclose()
            sending = (model.request(question(str(n)), ComparativeJudgment) for n in range(3))
            async with asyncio.timeout(5):
                results = await asyncio.gather(*sending, return_exceptions=True)
    for error in results:
        assert isinstance(error, EngineError)
        assert "cannot connect" in str(error) and "answers.sqlite" in str(error)
    assert model.counts.retries > 3


PAGE = (
    "\n<!DOCTYPE html>\n<html><head><style>p {}</style><title>nginx &amp; more</title></head>"
    + "<p>Hello</p>" * 500
)


@pytest.mark.parametrize("code", [200, 404])
async def test_a_web_page_is_quoted_and_the_option_is_named(code: int) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html", status=code)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        async with ChatServer(
            url, concurrency=1, request_timeout=5, chat_template_kwargs={}
        ) as engine:
            with pytest.raises(EngineError) as caught:
                await connect_to(ServerUnderTest(engine, EngineConfig(), SamplingConfig()))
    message = str(caught.value)
    assert message.startswith(f"{url}: ") and "<!DOCTYPE html>" in message
    assert "`engine.base_url`" in message and len(message) < 400


def grade_token(logprob: float, *alternatives: tuple[str, float]) -> Behaviour:
    """Reply with these log-probabilities at the relevance grade."""

    async def behave(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        sent = orjson.loads(reply(GOOD).body)  # type: ignore[arg-type]
        token = next(
            each for each in sent["choices"][0]["logprobs"]["content"] if each["token"] == "2"
        )
        token["logprob"] = logprob
        token["top_logprobs"] = [{"token": name, "logprob": value} for name, value in alternatives]
        return web.json_response(sent)

    return behave


async def test_log_probabilities_above_0_due_to_rounding_are_accepted(tmp_path: Path) -> None:
    behaviour = grade_token(0.003, ("2", 0.003), ("1", -5.2))
    result, _ = await send_question(FakeServer(rest=behaviour), tmp_path)
    assert isinstance(result, AnsweredRequest)
    assert result.answer.tokens[0].top == [("2", 0.0), ("1", -5.2)]
