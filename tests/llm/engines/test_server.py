"""Client of a server that misbehaves: every reply ends in an answer, a retry or a typed failure."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote

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
from touche_llm.engines import http
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


KEY = 's3cret/"+key'
ESCAPED = "".join(f"\\u{ord(character):04X}" for character in KEY)


def send_back_key(form: str) -> Behaviour:
    """Reply with the headers of the request, in one of several forms."""

    async def behave(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        headers = dict(request.headers)
        assert headers["Authorization"] == f"Bearer {KEY}"
        code, body_form = form.split()
        if body_form == "answer":
            return reply(f"I got Authorization: {headers['Authorization']}")
        if body_form == "refusal":
            return reply("", refusal=f"Not for {headers['Authorization']}")
        if body_form == "label":
            return reply(f'{{"relevance":2,"quality":1,"stance":{orjson.dumps(KEY).decode()}}}')
        if body_form == "ending":
            return reply(GOOD, finish_reason=headers["Authorization"])
        if body_form == "redirect":
            location = f"http://127.0.0.1:1/?{quote_plus(headers['Authorization'])}"
            return web.Response(status=307, headers={"Location": location})
        contents = {
            "object": orjson.dumps({"authorization": headers["Authorization"]}),
            "message": orjson.dumps({"error": {"message": headers["Authorization"]}}),
            "escaped": f'{{"error": {{"message": "Bearer {ESCAPED}"}}}}'.encode(),
            "nested": orjson.dumps({"error": f'{{"key": "{ESCAPED}"}}'}),
            "words": f"{'x' * 85} Bearer {KEY}".encode(),
            "URL": f"/?key={quote_plus(KEY)}".encode(),
        }
        return web.Response(
            status=int(code), body=contents[body_form], content_type="application/json"
        )

    return behave


@pytest.mark.parametrize(
    "form",
    [
        *("200 object", "200 message", "200 escaped", "200 nested", "200 words", "200 URL"),
        *("400 object", "400 message", "400 escaped", "400 nested", "400 words", "400 URL"),
        *("200 answer", "200 refusal", "200 label", "200 ending", "307 redirect"),
    ],
)
async def test_a_key_that_a_server_sends_back_is_neither_reported_nor_stored(
    form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    server = FakeServer(rest=send_back_key(form))
    try:
        result, _ = await send_question(server, tmp_path, retry_for=0.1)
        assert isinstance(result, FailedRequest)
        reported = " ".join(f"{attempt.reason} {attempt.text}" for attempt in result.attempts)
    except EngineError as error:
        reported = str(error)

    stored = (tmp_path / "answers.sqlite").read_bytes().decode(errors="replace")
    for text in (reported, stored):
        # Not even its beginning, and not with escapes.
        plain = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), unquote(text))
        assert "s3cre" not in plain, plain
    assert reported.count("[key]") > 0


@pytest.mark.parametrize(
    "form", ["200 answer", "200 object", "200 ending", "400 escaped", "307 redirect"]
)
async def test_a_key_that_a_server_sends_back_is_not_in_the_error_of_the_start(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with pytest.raises(EngineError) as raised:
        await connect(FakeServer(probe=send_back_key(form)))
    assert "[key]" in str(raised.value) and "s3cre" not in str(raised.value)


def choose(*indexes: int | None) -> Behaviour:
    """Reply with choices of these indexes, the first with relevance 0, the next with 1, and so on."""

    async def behave(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        choices: list[dict[str, Any]] = []
        for relevance, index in enumerate(indexes):
            text = f'{{"relevance":{relevance},"quality":1,"stance":"FIRST"}}'
            choice = orjson.loads(reply(text).body)["choices"][0]  # type: ignore[arg-type]
            del choice["index"]
            choices.append(choice if index is None else choice | {"index": index})
        return web.json_response({"choices": choices})

    return behave


@pytest.mark.parametrize(
    ("indexes", "relevance"), [((0,), 0), ((None,), 0), ((1, 0), 1), ((None, 2, 0), 2)]
)
async def test_the_choice_with_index_0_is_the_answer(
    indexes: tuple[int | None, ...], relevance: int, tmp_path: Path
) -> None:
    result, _ = await send_question(FakeServer([choose(*indexes)]), tmp_path)
    assert isinstance(result, AnsweredRequest) and result.value.relevance == relevance


@pytest.mark.parametrize("indexes", [(1,), (0, 0), (None, None), (2, 1)])
async def test_choices_without_a_definite_first_one_are_no_answer(
    indexes: tuple[int | None, ...], tmp_path: Path
) -> None:
    server = FakeServer(rest=choose(*indexes))
    result, _ = await send_question(server, tmp_path)
    assert isinstance(result, FailedRequest)
    (attempt,) = result.attempts
    assert attempt.kind == "server_error" and "index" in attempt.reason
    assert all(str(index) in attempt.reason for index in indexes)


async def test_a_reply_that_is_too_long_is_a_failure_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(http, "_MAX_BODY", 20_000)
    server = FakeServer(rest=says("x" * 30_000))
    async with server.running(), model_of(server, tmp_path, retry_for=600) as model:
        tokens = await model.count_tokens(question("long " * 5_000))
        answer = await model.request(question(), ComparativeJudgment)
    assert isinstance(tokens, FailedRequest) and isinstance(answer, FailedRequest)
    for failed, path in ((tokens, "/tokenize"), (answer, "/v1/chat/completions")):
        assert path in failed.attempts[0].reason and "20,000 bytes" in failed.attempts[0].reason
    assert len(server.bodies) == 1 and model.counts.retries == 0


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
