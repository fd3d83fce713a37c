"""Start-up check of servers that differ, as fakes: it uses what works and names the setting for what is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import pytest
from aiohttp import web
from pydantic import Field

from tests.answer_models import ComparativeJudgment
from tests.fake_server import FakeServer, fields_in, good, hangs, reply, says, schema_in, status
from tests.llm.engines.test_server import question
from tests.other_servers import (
    FakeFewAlternatives,
    FakeLlamaCpp,
    FakeLmStudio,
    FakeOllama,
    FakeSglang,
)
from touche_llm.doctor.examination import connect
from touche_llm.doctor.survey import ServerUnderTest
from touche_llm.engines import dialects
from touche_llm.engines.chat import CONSTRAINT_PARAMETERS, ChatServer
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import EngineError
from touche_llm.llm.answer_schema import AnswerForm, AnswerModel, build_schema
from touche_llm.llm.cache import Cache
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.protocol import EngineInfo, TokenCounter
from touche_llm.llm.request import Message, Sampling
from touche_llm.llm.settings import SamplingConfig


class WordTokenizer(TokenCounter):
    """In place of `ChatTokenizer`: one token a word, three for the template."""

    name = "words"

    def __init__(self, folder: Path, chat_template_kwargs: Any) -> None:
        assert folder.name == "tokenizer"

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        return 3 + sum(len(message.content.split()) for message in messages)

    async def truncate(self, text: str, max_tokens: int) -> str:
        return " ".join(text.split()[:max_tokens])


@pytest.fixture(autouse=True)
def _tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "ChatTokenizer", WordTokenizer)


@asynccontextmanager
async def connected(
    server: FakeServer,
    logprobs: bool = True,
    schemas: Sequence[Mapping[str, Any]] = (),
    **engine: Any,
) -> AsyncIterator[tuple[ChatServer, EngineInfo]]:
    async with server.running():
        async with ChatServer(
            server.url, concurrency=8, request_timeout=5, chat_template_kwargs={}
        ) as client:
            sampling = SamplingConfig(logprobs=logprobs)
            examined = await connect(
                ServerUnderTest(client, EngineConfig(**engine), sampling, schemas)
            )
            client.dialect = examined.dialect
            yield client, examined.info


class Versionless(FakeServer):
    """Server whose proxy hides the version."""

    async def version(self, _: web.Request) -> web.Response:
        raise web.HTTPNotFound


TOKENIZER = Path("tokenizer")
SERVED = {"id": "fake", "max_model_len": 8192}
USABLE: list[tuple[FakeServer, dict[str, Any], str, str, int]] = [
    (FakeServer(), {}, "structured_outputs", "vllm 0.0-fake", 8192),
    (
        Versionless(models=[SERVED | {"owned_by": "me"}]),
        {},
        "structured_outputs",
        "unknown server",
        8192,
    ),
    (FakeSglang(), {"tokenizer": TOKENIZER}, "response_format", "sglang 0.5.0-fake", 4096),
    (FakeLlamaCpp(), {}, "response_format", "llama.cpp b1-fake", 8192),
    (
        FakeOllama(),
        {"tokenizer": TOKENIZER, "context": 1024},
        "response_format",
        "ollama 0.12.11-fake",
        1024,
    ),
    (
        FakeLmStudio(),
        {"tokenizer": TOKENIZER, "context": 1024, "logprobs": False},
        "response_format",
        "unknown server",
        1024,
    ),
]


@pytest.mark.parametrize(("server", "given", "parameter", "engine", "context"), USABLE)
async def test_a_server_is_used_in_the_way_that_works(
    server: FakeServer,
    given: dict[str, Any],
    parameter: str,
    engine: str,
    context: int,
    tmp_path: Path,
) -> None:
    async with connected(server, **given) as (client, info):
        assert client.dialect is not None
        assert client.dialect.constraint_parameter == parameter
        assert (info.engine, info.context) == (engine, context)
        with Cache(tmp_path / "answers.sqlite") as cache:
            model = ModelClient(
                engine_info=info, engine=client, cache=cache, sampling=SamplingConfig()
            )
            top_logprobs = 20 if given.get("logprobs", True) else 0
            request = replace(question(), sampling=Sampling(top_logprobs=top_logprobs))
            result = await model.request(request, ComparativeJudgment)
            assert isinstance(result, AnsweredRequest)
            assert bool(result.answer.tokens) == given.get("logprobs", True)
            # The way in which the schema is sent is not part of the key.
            assert (result.key, len(cache.find("answer"))) == (request.key, 1)
    (body,) = server.bodies
    assert schema_in(body) == build_schema(ComparativeJudgment)
    assert body.get("top_logprobs", 0) == top_logprobs
    assert [each for each in CONSTRAINT_PARAMETERS if each in body] == [parameter]


@pytest.mark.parametrize("server", [FakeServer(), FakeLlamaCpp()])
async def test_texts_are_truncated_by_the_tokens_of_the_server(server: FakeServer) -> None:
    async with connected(server) as (client, info):
        assert info.overhead == 10
        assert (
            await client.counter.count_tokens((Message("user", "four"), Message("user", "five!")))
            == 10 + 4 + 5
        )
        assert await client.counter.truncate("A text.", 7) == "A text."
        assert await client.counter.truncate("A text.", 6) == "A text"


async def refuse_logprobs(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if "logprobs" in body:
        return web.json_response({"error": {"message": "logprobs is not supported"}}, status=400)
    return reply('{"word":"quokka-7351"}')


async def spell_another_answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    sent = reply('{"word":"quokka-7351"}')
    assert isinstance(sent.body, bytes)
    return web.Response(
        body=sent.body.replace(b'"bytes":[113,', b'"bytes":[114,'), content_type="application/json"
    )


async def ignore_schema(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return reply("Hello! How can I help?", reasoning_content="A greeting.")


@pytest.mark.parametrize(
    ("server", "given", "message"),
    [
        (FakeSglang(), {}, "/tokenize: 1 validation error.*`engine.tokenizer`"),
        (FakeOllama(), {}, "context length of fake.*`engine.context`"),
        (
            FakeLmStudio(),
            {"context": 1024, "tokenizer": TOKENIZER},
            "no log-prob.*ties.*`sampling.logprobs: false`",
        ),
        (
            FakeServer(probe=refuse_logprobs),
            {},
            "logprobs is not supported.*`sampling.logprobs: false`",
        ),
        (
            FakeServer(probe=spell_another_answer),
            {},
            "do not spell its answer.*`sampling.logprobs: false`",
        ),
        (
            FakeServer(probe=ignore_schema),
            {},
            "quokka-7351.*'Hello! How can I help.*thinking.*`response_format`",
        ),
        (FakeServer(), {"context": 10_000}, "8192 tokens, 10000 are configured.*`engine.context`"),
        (
            FakeSglang(probe=says('{"word":"quokka-7351"}', usage={"prompt_tokens": 40})),
            {"tokenizer": TOKENIZER},
            "40 prompt tokens are 5 by.*`engine.tokenizer`",
        ),
    ],
)
async def test_what_is_missing_is_named_in_one_line_with_the_setting(
    server: FakeServer, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message) as raised:
        async with connected(server, **given):
            pass
    assert "\n" not in str(raised.value) and raised.value.location == server.url
    assert server.bodies == []


class Side(AnswerModel):
    """A part of the answer to a stance prompt."""

    stance: Literal["FIRST", "SECOND", "NO"]


class Best(AnswerModel):
    """A comparison."""

    best: Literal["A", "B"]


class Order(AnswerModel):
    """An answer without labels."""

    order: Annotated[str, Field(pattern="^[AB] > [AB]$")]


ARRAYS = [
    build_schema(model, AnswerForm.ARRAY) for model in (Order, ComparativeJudgment, Side, Best)
]


async def test_one_request_for_each_schema_has_its_labels() -> None:
    asked: list[dict[str, Any]] = []

    async def record(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        asked.append(body)
        return await good(request, body)

    schemas = [
        build_schema(model, AnswerForm.ARRAY)
        for model in (Order, ComparativeJudgment, ComparativeJudgment)
    ]
    server = FakeServer(labels=record)
    async with connected(server, schemas=[*schemas, build_schema(Best, AnswerForm.OBJECT)]):
        pass
    body, of_other_form = asked  # one for the two alike, none without labels
    assert [each["enum"] for each in fields_in(of_other_form).values()] == [["A", "B"]]
    labels = [each["enum"] for each in fields_in(body).values()]
    assert labels == [list(range(4)), list(range(4)), ["FIRST", "SECOND", "NEUTRAL", "NO"]]
    assert (body["top_logprobs"], of_other_form["top_logprobs"]) == (8, 20)
    assert server.bodies == []


@pytest.mark.parametrize(("schemas", "logprobs"), [(ARRAYS[:1], True), (ARRAYS, False)])
async def test_where_no_label_is_read_none_is_requested(
    schemas: list[Mapping[str, Any]], logprobs: bool
) -> None:
    async with connected(FakeServer(labels=status(500)), logprobs=logprobs, schemas=schemas) as (
        _,
        info,
    ):
        assert info.model == "fake"


async def refuse_arrays(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "prefixItems is not supported"}}, status=400)


async def unaligned(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    sent = orjson.loads((await good(request, body)).body)  # type: ignore[attr-defined]
    for token in sent["choices"][0]["logprobs"]["content"]:
        token |= {"bytes": list(b"?"), "token": "?"}
    return web.json_response(sent)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (
            FakeFewAlternatives(shown={"FIRST": 0.6, "S": 0.2}),
            "NEUTRAL, NO of stance.*0.200.*`form`.*`object`",
        ),
        (
            FakeServer(labels=unaligned),
            "label of relevance .0, 1, 2, 3..*`sampling.logprobs: false`",
        ),
        (FakeServer(labels=refuse_arrays), "prefixItems is not supported.*`form`"),
        (FakeServer(labels=says("Hello! How can I help?")), "label of relevance .*'Hello!.*`form`"),
    ],
)
async def test_labels_that_cannot_be_read_are_named_with_the_setting(
    server: FakeServer, message: str
) -> None:
    with pytest.raises(EngineError, match=message) as raised:
        async with connected(server, schemas=ARRAYS):
            pass
    assert "\n" not in str(raised.value) and raised.value.location == server.url


@pytest.mark.parametrize(
    "server",
    [
        # Nothing is left out, so the others are improbable; a raw probability goes to other words.
        FakeFewAlternatives(shown={"FIRST": 0.6, "S": 0.39}),
        FakeFewAlternatives(shown={"FIRST": 0.3, "S": 0.2}, renormalised=False),
        # A weak model can write white space until its answer is cut off; a run requests another
        # one.
        FakeServer(labels=says("[ 0" + " " * 50, "length")),
    ],
)
async def test_labels_that_are_only_improbable_or_cut_off_stop_no_run(server: FakeServer) -> None:
    async with connected(server, schemas=ARRAYS) as (_, info):
        assert info.model == "fake"


TUPLE = build_schema(ComparativeJudgment, AnswerForm.ARRAY)


async def test_llama_cpp_is_sent_arrays_that_it_takes_and_alternatives_that_show_the_labels(
    tmp_path: Path,
) -> None:
    server = FakeLlamaCpp()
    async with connected(server, schemas=[TUPLE]) as (client, info):
        with Cache(tmp_path / "answers.sqlite") as cache:
            model = ModelClient(
                engine_info=info, engine=client, cache=cache, sampling=SamplingConfig()
            )
            request = replace(question(), schema=TUPLE, sampling=Sampling(top_logprobs=8))
            result = await model.request(request, ComparativeJudgment)
            assert isinstance(result, AnsweredRequest)
            # The key has the number that form and labels need, whatever the server.
            assert result.key == request.key and TUPLE["items"] is False
    (body,) = server.bodies
    assert "items" not in schema_in(body) and body["top_logprobs"] > 20


async def test_the_dialect_of_a_server_is_a_value_of_its_own() -> None:
    sampling = SamplingConfig()
    async with FakeLlamaCpp().running() as server:
        async with ChatServer(
            server.url, concurrency=8, request_timeout=5, chat_template_kwargs={}
        ) as client:
            subject = ServerUnderTest(client, EngineConfig(), sampling, [TUPLE])
            examined = await connect(subject)
            assert client.dialect is None
            without_labels = await connect(replace(subject, schemas=ARRAYS[:1]))
    assert examined.dialect.constraint_parameter == "response_format"
    assert examined.dialect.min_alternatives > sampling.top_logprobs
    assert without_labels.dialect.min_alternatives == 0


class DeafVllm(FakeServer):
    """vLLM with a template that has no place for a system message."""

    def count_prompt(self, answer: web.StreamResponse, body: dict[str, Any]) -> web.StreamResponse:
        return super().count_prompt(
            answer, {"messages": [each for each in body["messages"] if each["role"] == "user"]}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if "messages" not in body:
            return await super().tokenize(request)
        text = "".join(each["content"] for each in body["messages"] if each["role"] == "user")
        return web.json_response({"count": 10 + len(text.encode()), "tokens": list(text.encode())})


class RefusingVllm(FakeServer):
    """vLLM whose template refuses a system message, like that of Gemma 2, also to count its tokens."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if orjson.loads(await request.read())["messages"][0]["role"] == "system":
            return web.json_response(
                {"error": {"message": "System role not supported"}}, status=400
            )
        return await super().chat(request)

    async def tokenize(self, request: web.Request) -> web.Response:
        if (
            orjson.loads(await request.read()).get("messages", [{"role": "user"}])[0]["role"]
            == "system"
        ):
            return web.json_response(
                {"error": {"message": "System role not supported"}}, status=400
            )
        return await super().tokenize(request)


@pytest.mark.parametrize(
    ("server", "value"),
    [
        (DeafVllm(), "ignored by the chat template"),
        (RefusingVllm(), "System role not supported"),
    ],
)
async def test_instructions_go_into_the_user_message_where_the_template_has_no_other_place(
    server: FakeServer, value: str
) -> None:
    with pytest.raises(EngineError, match=f"{value}.*`sampling.system_message: user`"):
        async with connected(server, schemas=[TUPLE]):
            pass
    sampling = SamplingConfig(system_message="user")
    async with server.running():
        async with ChatServer(
            server.url, concurrency=8, request_timeout=5, chat_template_kwargs={}
        ) as client:
            examined = await connect(ServerUnderTest(client, EngineConfig(), sampling, [TUPLE]))
            # The tokens of the template are those of a chat as the run sends it.
            counter = examined.dialect.counter
            assert examined.info.overhead == await counter.count_tokens((Message("user", ""),))


class Shared(FakeServer):
    """Server whose metrics have the queue of two engines, as vLLM writes them."""

    async def metrics(self, _: web.Request) -> web.Response:
        lines = [
            f'vllm:num_requests_{kind}{{engine="{engine}",model_name="fake"}} {count}'
            for kind, counts in (("waiting", ("200.0", "40.0")), ("running", ("64.0", "1.0")))
            for engine, count in enumerate(counts)
        ]
        return web.Response(
            text="# HELP vllm:num_requests_waiting Number of requests.\n" + "\n".join(lines)
        )

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_get("/metrics", self.metrics)


@pytest.mark.parametrize("server", [FakeServer(probe=hangs), Shared(probe=hangs)])
async def test_a_server_that_answers_other_requests_is_named_busy(server: FakeServer) -> None:
    notes: list[str] = []
    async with server.running():
        async with ChatServer(
            server.url, concurrency=8, request_timeout=0.3, chat_template_kwargs={}, patience=1
        ) as client:
            with pytest.raises(EngineError, match="busy.*`engine.request_timeout`") as caught:
                await connect(
                    ServerUnderTest(client, EngineConfig(), SamplingConfig(), warn=notes.append)
                )
    assert "is the server running" not in str(caught.value)
    assert ["240 requests wait" in note for note in notes] == [True] * isinstance(server, Shared)
