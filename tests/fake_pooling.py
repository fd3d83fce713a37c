"""A vLLM server with an embedding model and a cross-encoder: real HTTP, scripted faults."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from tests.fake_server import FakeServer

DIMENSIONS = 32


def embed_words(text: str) -> list[float]:
    """A vector that is close to those of texts with the same words."""
    vector = [0.0] * DIMENSIONS
    for word in text.lower().split():
        vector[hashlib.sha256(word.encode()).digest()[0] % DIMENSIONS] += 1.0
    vector[0] += 0.01
    return vector


def count_words(text: str) -> int:
    """The tokens of a text: one a word."""
    return len(text.split())


@dataclass
class FakePooling(FakeServer):
    """Embeds by words and scores by the share of common words.

    `fault` names what it does wrong after the checks.

    Attributes:
        fault: Name of a fault, which begins after `healthy` replies.
        sent: Bodies of the requests for embeddings or scores, those of the start-up check included.
    """

    models: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "pooling", "max_model_len": 128, "owned_by": "vllm"}]
    )
    fault: str = ""
    healthy: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)
    has_tokenizer: bool = True

    async def embeddings(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        texts, fault = body["input"], self._next_fault(body)
        vectors = [np.array(embed_words(text), "<f4") for text in texts]
        if fault == "constant":
            vectors = [vectors[0]] * len(vectors)
        if fault == "zero":
            vectors = [0 * vector for vector in vectors]
        if fault == "nan":
            vectors[-1][3] = np.nan
        if fault == "dimensions":
            vectors[-1] = vectors[-1][:-1]
        if fault == "short":
            vectors = vectors[:-1]
        data = [
            {"index": index, "embedding": base64.b64encode(vector.tobytes()).decode()}
            for index, vector in enumerate(vectors)
        ]
        if fault == "floats":
            data = [
                {"index": index, "embedding": vector.tolist()}
                for index, vector in enumerate(vectors)
            ]
        return self._reply(fault, texts, {"data": data})

    async def rerank(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        texts, fault = body["documents"], self._next_fault(body)
        words = set(body["query"].lower().split())
        scores: list[float | None] = [
            len(words & set(text.lower().split())) / (len(words) or 1) - 0.001 * index
            for index, text in enumerate(texts)
        ]
        if fault == "constant":
            scores = [0.5] * len(scores)
        if fault == "nan":
            scores[-1] = None
        if fault == "short":
            scores = scores[:-1]
        results = [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]
        results.sort(key=lambda result: -(result["relevance_score"] or 0.0))
        return self._reply(fault, texts, {"results": results})

    async def tokenize_text(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if not self.has_tokenizer:
            return web.json_response({"error": {"message": "no such path"}}, status=404)
        words = body["prompt"].split()
        return web.json_response(
            {"count": len(words), "tokens": list(range(len(words))), "words": words}
        )

    async def detokenize_text(self, request: web.Request) -> web.Response:
        """Words have about five characters."""
        body = orjson.loads(await request.read())
        return web.json_response({"prompt": "x" * 5 * len(body["tokens"])})

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/version", self.version)
        app.router.add_post("/v1/embeddings", self.embeddings)
        app.router.add_post("/v1/rerank", self.rerank)
        app.router.add_post("/tokenize", self.tokenize_text)
        app.router.add_post("/detokenize", self.detokenize_text)

    def _next_fault(self, body: dict[str, Any]) -> str:
        self.sent.append(body)
        return self.fault if len(self.sent) > self.healthy else ""

    def _reply(self, fault: str, texts: list[str], body: dict[str, Any]) -> web.Response:
        if fault == "refused":
            return web.json_response({"error": {"message": "too many tokens"}}, status=400)
        if fault == "locked":
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        tokens = sum(map(count_words, texts))
        model = "another" if fault == "model" else "pooling"
        return web.json_response({**body, "model": model, "usage": {"prompt_tokens": tokens}})
