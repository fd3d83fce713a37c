"""Fakes of servers other than vLLM, built from their documentation and source.

None of the programs runs here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from tests.fake_server import FakeServer, good, schema_in


def _model(owner: str, **more: Any) -> Any:
    return field(
        default_factory=lambda: [{"id": "fake", "object": "model", "owned_by": owner, **more}]
    )


def _error(code: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=code)


def refuse_items(body: dict[str, Any]) -> web.Response | None:
    """Refuse a schema in which a part is `false`, as llama.cpp does.

    LM Studio has its converter.
    """
    if "response_format" in body and schema_in(body).get("items") is False:
        return _error(400, "JSON schema error at #/items: schema must be an object")
    return None


@dataclass
class FakeSglang(FakeServer):
    """SGLang: schemas by `response_format` alone; `/tokenize` takes a prompt and no messages.

    Sources: sgl-project/sglang, python/sglang/srt/entrypoints/openai/protocol.py (ModelCard,
        ChatCompletionRequest),
    openai/serving_tokenize.py (a prompt that is neither text nor a list is an error; `/detokenize`
    replies with `text`), http_server.py (`/get_server_info` with the version).
    """

    ignored: tuple[str, ...] = ("structured_outputs",)
    models: list[dict[str, Any]] = _model("sglang", max_model_len=4096)

    async def server_info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": "/models/fake", "version": "0.5.0-fake", "tp_size": 1}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if "prompt" not in body:
            return _error(400, "1 validation error: prompt: Field required")
        tokens = list(body["prompt"].encode())
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": -1})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        return web.json_response({"text": bytes(body["tokens"]).decode("utf-8", "replace")})

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/get_server_info", self.server_info)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)


@dataclass
class FakeLlamaCpp(FakeServer):
    """llama.cpp: `/apply-template` renders, `/tokenize` takes `content`, the context of a slot is in `/props`.

    Log-probabilities are those before the grammar, of any number of tokens. A schema must have no
    part that is `false`, and no message of the assistant is continued under a schema.

    Source: ggml-org/llama.cpp, tools/server/README.md: "POST /tokenize", "POST /detokenize", "POST
        /apply-template",
    "GET /props", "GET /v1/models"; unknown fields of a request are ignored. Its build 11434 was
    run.
    """

    ignored: tuple[str, ...] = ("structured_outputs",)
    max_alternatives: int = 200_000
    models: list[dict[str, Any]] = _model("llamacpp", meta={"n_ctx_train": 131072})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if refusal := refuse_items(body):
            return refusal
        if "response_format" in body and body.get("continue_final_message"):
            return _error(
                400,
                "Failed to initialize samplers: Unexpected empty grammar stack after accepting piece",
            )
        response = await super().chat(request)
        if response.status != 200:
            return response
        sent = orjson.loads(response.body)  # type: ignore[attr-defined]
        for token in sent["choices"][0]["logprobs"]["content"]:
            # Without the grammar, the model would rather begin with words.
            token["logprob"] = math.log(0.25)
            token["top_logprobs"] = [{"token": "Sure", "logprob": math.log(0.5)}]
            token["top_logprobs"].append({"token": token["token"], "logprob": token["logprob"]})
        return web.json_response(sent)

    async def props(self, _: web.Request) -> web.Response:
        settings = {"id": 0, "n_ctx": 8192, "params": {"seed": 4294967295}}
        return web.json_response(
            {
                "default_generation_settings": settings,
                "total_slots": 4,
                "build_info": "b1-fake",
                "chat_template": "",
            }
        )

    async def apply_template(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        messages = body["messages"]
        final = messages.pop()["content"] if body.get("continue_final_message") else ""
        prompt = "".join(f"<{each['content']}>" for each in messages) + "....." + final
        return web.json_response({"prompt": prompt})

    async def tokenize(self, request: web.Request) -> web.Response:
        """One token a byte, after a special one if requested.

        A request without `content` has none of its own.
        """
        body = orjson.loads(await request.read())
        special = [0] if body.get("add_special") else []
        return web.json_response({"tokens": [*special, *body.get("content", "").encode()]})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        return web.json_response(
            {"content": bytes(filter(None, body["tokens"])).decode("utf-8", "replace")}
        )

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/props", self.props)
        app.router.add_post("/apply-template", self.apply_template)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)


@dataclass
class FakeOllama(FakeServer):
    """Ollama: no context and no tokenizer in its interfaces.

    Prompts beyond the context are cut without an error.

    Sources: ollama/ollama, docs/api.md (`/api/version`), docs/openai.md (`/v1/chat/completions`
        with
    `response_format`, `/v1/models` owned by `library`), docs/faq.md (OLLAMA_CONTEXT_LENGTH).
    Log-probabilities came with 0.12.11; its issue 16117 says that earlier versions drop the fields
    without a word.
    """

    ignored: tuple[str, ...] = ("structured_outputs", "chat_template_kwargs")
    models: list[dict[str, Any]] = _model("library")

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.12.11-fake"})

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/api/version", self.version)


@dataclass
class FakeLmStudio(FakeServer):
    """LM Studio: no log-probabilities, and status 200 for addresses that it does not know.

    Sources: lmstudio.ai/docs/advanced/structured-output (`response_format`),
        lmstudio.ai/docs/api/openai-api (list of
    supported parameters, without `logprobs`), lmstudio-ai/lms issue 60 (no chat
    log-probabilities). Unknown addresses reply `{"error": "Unexpected endpoint or method. …"}`
    with status 200.
    """

    ignored: tuple[str, ...] = (
        "structured_outputs",
        "logprobs",
        "top_logprobs",
        "chat_template_kwargs",
    )
    models: list[dict[str, Any]] = _model("organization_owner")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        sent = orjson.loads(await request.read())
        messages = sent["messages"]
        if refusal := refuse_items(sent):
            return refusal
        response = await super().chat(request)
        assert isinstance(response, web.Response) and isinstance(response.body, bytes)
        body = orjson.loads(response.body)
        body["usage"]["prompt_tokens"] = sum(len(each["content"].split()) for each in messages)
        body["choices"][0]["logprobs"] = None
        return web.json_response(body)

    async def unknown(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"error": f"Unexpected endpoint or method. ({request.method} {request.path})"}
        )

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{path:.*}", self.unknown)


@dataclass
class FakeFewAlternatives(FakeServer):
    """vLLM that masks tokens and shows few of them, or labels in other tokens than those of the answer.

    Attributes:
        shown: Probabilities of the tokens with which a label begins; the others are certain.
    """

    shown: dict[str, float] = field(default_factory=dict)
    renormalised: bool = True

    def __post_init__(self) -> None:
        self.probe = self.labels = self.rest = self.answer

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        sent = orjson.loads((await good(request, body)).body)  # type: ignore[attr-defined]
        for token in sent["choices"][0]["logprobs"]["content"]:
            shares = {token["token"]: 1.0 if self.renormalised else 0.5}
            if token["token"] in self.shown:
                shares = self.shown
            token["logprob"] = math.log(shares[token["token"]])
            token["top_logprobs"] = [
                {"token": text, "logprob": math.log(share)} for text, share in shares.items()
            ]
        return web.json_response(sent)
