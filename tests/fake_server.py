"""A vLLM server in a few lines: real HTTP, scripted misbehaviour."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import orjson
from aiohttp import web

from touche_llm.doctor.checks.label_tokens import SYSTEM
from touche_llm.llm.answer_schema import Layout, list_fields

GOOD = '{"relevance":2,"quality":1,"stance":"FIRST"}'
# Handles one chat request; gets the request and its body.
Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def reply(
    text: str | None,
    finish_reason: str = "stop",
    usage: dict[str, Any] | None = None,
    **message: Any,
) -> web.Response:
    """A chat completion as vLLM sends it; `usage` is added to what it says of tokens.

    Words, digits and what is between them are tokens, as with the tokenizers of most models: a
    quotation mark is in one with the brace or comma after it.
    """
    tokens = [
        {
            "token": c,
            "bytes": list(c.encode()),
            "logprob": 0.0,
            "top_logprobs": [{"token": c, "logprob": 0.0}],
        }
        for c in re.findall(r"[^\W\d_]+|\d|[\W_]+", text or "")
    ]
    body = {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish_reason,
                "logprobs": {"content": tokens},
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": len(tokens), **(usage or {})},
        "system_fingerprint": "fake",
    }
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def schema_in(body: dict[str, Any]) -> Any:
    """The schema that the server is to enforce; None if there is none, or a regular expression."""
    if "structured_outputs" in body:
        return body["structured_outputs"].get("json")
    return body["response_format"]["json_schema"]["schema"] if "response_format" in body else None


def fields_in(body: dict[str, Any]) -> dict[str, Any]:
    """The schema of each field of the answer, whatever its form; empty if there is no schema."""
    schema = schema_in(body)
    return dict(list_fields(schema)) if schema else {}


def spell(body: dict[str, Any], values: Mapping[str, Any]) -> str:
    """The text of an answer in the form that a request has."""
    return Layout.of_schema(schema_in(body)).spell(values)


async def good(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The first label of each field, and the last for `second`, since two objects differ.

    A greeting without schema.
    """
    fields = fields_in(body)
    if not fields:
        return reply("Hello! How can I help?")
    return reply(
        spell(body, {name: each["enum"][-(name == "second")] for name, each in fields.items()})
    )


@dataclass
class FakeServer:
    """Behaviours are used up one request after the other, then `rest` serves.

    The start-up check is answered first.
    """

    behaviours: list[Behaviour] = field(default_factory=list)
    rest: Behaviour = good
    probe: Behaviour = good
    labels: Behaviour = good
    models: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "fake", "max_model_len": 8192}]
    )
    # Most alternatives of a token; more are refused.
    max_alternatives: int = 20
    # Fields of a request that the server does not know.
    ignored: tuple[str, ...] = ()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    tokenized: int = 0
    open_now: int = 0
    most_open: int = 0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        sent = orjson.loads(await request.read())
        body = {name: value for name, value in sent.items() if name not in self.ignored}
        if body.get("top_logprobs", 0) > self.max_alternatives:
            message = f"Requested sample logprobs of {body['top_logprobs']}, which is greater than max allowed: 20"
            return web.json_response({"error": {"message": message}}, status=400)
        if list(fields_in(sent)) == ["word"]:
            answer = await self.probe(request, body)
            return (
                self.count_prompt(answer, body)
                if sent["messages"][0]["role"] == "system"
                else answer
            )
        if sent["messages"][0]["content"] == SYSTEM:
            return await self.labels(request, body)
        self.bodies.append(sent)
        behaviour = self.behaviours.pop(0) if self.behaviours else self.rest
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            return await behaviour(request, body)
        finally:
            self.open_now -= 1

    def count_prompt(self, answer: web.StreamResponse, body: dict[str, Any]) -> web.StreamResponse:
        """Report a token for each word of the messages, since the check of the system message compares two prompts."""
        if answer.status != 200:
            return answer
        sent = orjson.loads(answer.body)  # type: ignore[attr-defined]
        sent["usage"]["prompt_tokens"] = sum(
            len(message["content"].split()) for message in body["messages"]
        )
        return web.json_response(sent)

    async def tokenize(self, request: web.Request) -> web.Response:
        """One token a byte, ten for the template of a chat, which are not listed."""
        body = orjson.loads(await request.read())
        if "messages" in body:
            self.tokenized += 1
            count = 10 + sum(len(message["content"].encode()) for message in body["messages"])
            tokens = [byte for message in body["messages"] for byte in message["content"].encode()]
            return web.json_response({"count": count, "tokens": tokens})
        tokens = list(body["prompt"].encode())
        return web.json_response({"count": len(tokens), "tokens": tokens})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        return web.json_response({"prompt": bytes(body["tokens"]).decode("utf-8", "replace")})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.0-fake"})

    def add_routes(self, app: web.Application) -> None:
        """What vLLM has beside the interface of OpenAI."""
        app.router.add_get("/version", self.version)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Serve on a free port of this machine."""

        async def list_models(_: web.Request) -> web.Response:
            return web.json_response({"data": self.models})

        app = web.Application()
        app.router.add_get("/v1/models", list_models)
        app.router.add_post("/v1/chat/completions", self.chat)
        self.add_routes(app)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        # As many clients may connect at once as to vLLM.
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        assert runner.addresses
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    @contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Serve in a thread, for commands called in this one."""
        loop, ready, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def serve() -> None:
            async with self.running():
                ready.set()
                await ended.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        ready.wait()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()


def status(code: int, **headers: str) -> Behaviour:
    """Answer with an HTTP status."""

    async def behave(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(
            {"error": {"message": f"status {code}"}}, status=code, headers=headers
        )

    return behave


def answers_as(model: str | None) -> Behaviour:
    """Answer well, under the name of this model."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        sent = orjson.loads((await good(request, body)).body)  # type: ignore[attr-defined]
        return web.json_response(sent | {"model": model})

    return behave


def says(
    text: str | None,
    finish_reason: str = "stop",
    usage: dict[str, Any] | None = None,
    **message: Any,
) -> Behaviour:
    """Answer with this text."""

    async def behave(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return reply(text, finish_reason, usage, **message)

    return behave


async def hangs(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(3600)
    raise AssertionError


async def closes(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def breaks_off(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Close the connection in the middle of the reply's body."""
    response = web.StreamResponse(
        headers={"Content-Length": "1000", "Content-Type": "application/json"}
    )
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def half_json(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """A whole HTTP reply that holds half of the JSON."""
    return web.Response(body=b'{"choices": [{"message"', content_type="application/json")
