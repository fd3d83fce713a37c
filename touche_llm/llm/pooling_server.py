"""Embedding models and cross-encoders on a server with the interfaces of vLLM, and their start-up checks."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from touche_llm.data.concurrency import BROKEN_TRIES
from touche_llm.errors import EngineError
from touche_llm.llm.engine import BrokenReply, EngineInfo, Rejected, Transient
from touche_llm.llm.http import HttpClient
from touche_llm.llm.request import Message
from touche_llm.llm.settings import SECTIONS, PoolingConfig, PoolingPurpose
from touche_llm.llm.startup import describe_failure, identify, read_serving
from touche_llm.llm.tokenizers import TokenCount, VllmTokenCounter

_PATHS: dict[PoolingPurpose, str] = {"embedding": "/v1/embeddings", "score": "/v1/rerank"}
_NOUNS: dict[PoolingPurpose, str] = {"embedding": "embeddings", "score": "scores of pairs"}
# Texts of the start-up check that no model may confuse: a question, its answer, and something else.
_QUERY = "What is the capital of France?"
_DOCUMENTS = ("The capital of France is Paris.", "Bananas are yellow and grow in the tropics.", "17")
# Max difference between results that count as equal.
_EQUAL = 1e-6
# Tokens that a model adds to a text, at most.
_OVERHEAD = 8


class _Vector(msgspec.Struct):
    index: int
    # Base64 of float32, as requested, or the numbers, of servers that do not know `encoding_format`.
    embedding: str | list[float | None]


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    model: str | None = None


class _Result(msgspec.Struct):
    index: int
    relevance_score: float | None


class _Scores(msgspec.Struct):
    results: list[_Result]
    model: str | None = None


class PoolingServer(HttpClient):
    """Engine of an embedding model or a cross-encoder. Use as an asynchronous context manager, and call `connect`.

    Attributes:
        purpose: What the model is for.
        model: Name of the served model.
    """

    def __init__(self, base_url: str, purpose: PoolingPurpose, settings: PoolingConfig) -> None:
        """Initialise the client; nothing is sent yet."""
        super().__init__(base_url, concurrency=settings.concurrency, request_timeout=settings.request_timeout)
        self.purpose: PoolingPurpose = purpose
        self.section = SECTIONS[purpose]
        self.address = f"`{self.section}.url`"
        self.model = settings.model or ""
        self._settings = settings
        self._length: int | None = None

    async def connect(self, dimensions: int | None = None) -> EngineInfo:
        """Get model and context from the server, and verify that its results, of these dimensions, can be used.

        Raises:
            EngineError: The server is unreachable, or serves another model or unusable results.
        """
        try:
            info = await self._inspect()
            await (self._check_vectors(dimensions) if self.purpose == "embedding" else self._check_scores())
        except (Transient, Rejected) as error:
            refused = "see the server's log"
            if isinstance(error, Rejected) and error.status == 404:
                refused = f"serves no {_NOUNS[self.purpose]}; with vLLM, serve a model for them with --runner pooling"
            raise describe_failure(self, error, refused) from error
        self.is_monitored = True
        return info

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return the vector of each text; see `PoolingEngine`.

        Raises:
            EngineError: A vector has another length than those before, is 0, or has values that are no numbers.
        """
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "base64"}
        if dimensions is not None:
            body["dimensions"] = dimensions
        reply = await self.post(_PATHS["embedding"], body, _Embeddings)
        self.check_model(reply.model, self.model)
        self._check_complete([vector.index for vector in reply.data], len(texts))
        return [self._read_vector(vector) for vector in sorted(reply.data, key=lambda vector: vector.index)]

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to the query; see `PoolingEngine`.

        Raises:
            EngineError: A score is no number.
        """
        body = {"model": self.model, "query": query, "documents": list(documents)}
        reply = await self.post(_PATHS["score"], body, _Scores)
        self.check_model(reply.model, self.model)
        self._check_complete([result.index for result in reply.results], len(documents))
        scores = []
        for result in sorted(reply.results, key=lambda result: result.index):
            if result.relevance_score is None or not math.isfinite(result.relevance_score):
                raise self._fail(f"sends a score that is no number ({result.relevance_score})", "see the server's log")
            scores.append(result.relevance_score)
        return scores

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Return the number of tokens of a text, given as one message."""
        text = "".join(message.content for message in messages)
        return (await self.post("/tokenize", {"model": self.model, "prompt": text}, TokenCount)).count

    async def truncate(self, text: str, max_tokens: int) -> str:
        """Return a prefix of `text` with about this many tokens."""
        return await VllmTokenCounter(self, self.model, {}).truncate(text, max_tokens)

    async def recognise(self) -> EngineInfo:
        """Return the description of the server without its checks; raise as `startup.identify`."""
        return (await identify(self, self._settings, self.section))[0]

    async def _inspect(self) -> EngineInfo:
        info, context = await identify(self, self._settings, self.section)
        self.model = info.model
        if context.is_blocking:
            raise EngineError(f"{self.base_url}: {context}")
        serving = await read_serving(self, info)
        return info.model_copy(update={"overhead": _OVERHEAD, "serving": serving})

    async def _check_vectors(self, dimensions: int | None) -> None:
        vectors = [read_vector(vector) for vector in await self.embed(_DOCUMENTS, dimensions)]
        if dimensions is not None and self._length != dimensions:
            raise self._fail(
                f"sends vectors of {self._length} dimensions, {dimensions} are configured",
                "leave `dense.dimensions` out, or serve a model that can shorten its vectors (Matryoshka)",
            )
        units = [vector / np.linalg.norm(vector) for vector in vectors]
        if all(np.abs(unit - units[0]).max() <= _EQUAL for unit in units):
            raise self._fail("sends the same vector for clearly different texts", "see the server's log")

    async def _check_scores(self) -> None:
        scores = await self.score(_QUERY, _DOCUMENTS)
        if max(scores) - min(scores) <= _EQUAL:
            raise self._fail(
                f"{self.model} scores clearly different pairs equally ({scores[0]:g})",
                "Qwen3-Reranker did so in vLLM 0.11.1 (https://github.com/vllm-project/vllm/issues/27857); check the "
                "version of the server and its --hf-overrides",
            )

    def _check_complete(self, indexes: list[int], expected: int) -> None:
        """Raise Transient unless there is one result for each text."""
        if sorted(indexes) != list(range(expected)):
            path = _PATHS[self.purpose]
            reason = f"incomplete reply from {path}: {len(set(indexes))} results for {expected} texts"
            raise BrokenReply("server_error", reason, max_tries=BROKEN_TRIES)

    def _read_vector(self, vector: _Vector) -> bytes:
        if isinstance(vector.embedding, str):
            try:
                content = base64.b64decode(vector.embedding, validate=True)
            except binascii.Error as error:
                reason = f"malformed reply from {_PATHS['embedding']}: a vector is not base64"
                raise BrokenReply("server_error", reason, max_tries=BROKEN_TRIES) from error
        else:
            content = np.array([math.nan if value is None else value for value in vector.embedding], "<f4").tobytes()
        if not content or len(content) % 4:
            raise self._fail(f"sends a vector of {len(content)} bytes, not of float32", "see the server's log")
        values = read_vector(content)
        if not np.isfinite(values).all():
            raise self._fail("sends a vector with values that are no numbers (NaN)", "see the server's log")
        if not values.any():
            raise self._fail("sends a vector of zeros", "see the server's log")
        self._length = self._length or len(values)
        if len(values) != self._length:
            raise self._fail(
                f"sends a vector of {len(values)} dimensions, the first had {self._length}", "serve one model"
            )
        return content

    def _fail(self, problem: str, remedy: str) -> EngineError:
        return EngineError(f"{self.base_url}: {problem}; {remedy}")


def read_vector(content: bytes) -> NDArray[np.float32]:
    """Return a vector from its little-endian float32 values."""
    return np.frombuffer(content, "<f4")
