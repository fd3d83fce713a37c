"""Embedding models and cross-encoders on a server with the interfaces of vLLM, and their start-up checks."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from touche_llm.errors import EngineError
from touche_llm.llm.chat import TextTokenCounter
from touche_llm.llm.engine import BrokenReply, EngineInfo, Rejected, Transient
from touche_llm.llm.http import HttpClient
from touche_llm.llm.settings import SECTIONS, PoolingConfig, PoolingPurpose
from touche_llm.llm.startup import describe_failure, identify, read_serving

_PATHS: dict[PoolingPurpose, str] = {"embedding": "/v1/embeddings", "score": "/v1/rerank"}
_NOUNS: dict[PoolingPurpose, str] = {"embedding": "embeddings", "score": "scores of pairs"}
# Texts of the start-up check that no model may confuse: a question, its answer, and something else.
_QUERY = "What is the capital of France?"
_DOCUMENTS = ("The capital of France is Paris.", "Bananas are yellow and grow in the tropics.", "17")
# Max difference between results that count as equal.
_EQUAL = 1e-6
# Tokens that a model adds to a text, at most.
_OVERHEAD = 8


class _Item(msgspec.Struct):
    index: int


class _Vector(_Item):
    # Base64 of float32, as requested, or the numbers, of servers that do not know `encoding_format`.
    embedding: str | list[float | None]


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    model: str | None = None


class _Result(_Item):
    relevance_score: float | None


class _Scores(msgspec.Struct):
    results: list[_Result]
    model: str | None = None


_ItemT = TypeVar("_ItemT", bound=_Item)
_SEE_LOG = "see the server's log"


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
            info, context = await identify(self, self._settings, self.section)
            self.model = info.model
            if context.is_blocking:
                raise EngineError(f"{self.base_url}: {context}")
            serving = await read_serving(self, info)
            await (self._check_vectors(dimensions) if self.purpose == "embedding" else self._check_scores())
        except (Transient, Rejected) as error:
            refused = _SEE_LOG
            if isinstance(error, Rejected) and error.status == 404:
                refused = f"serves no {_NOUNS[self.purpose]}; with vLLM, serve a model for them with --runner pooling"
            raise describe_failure(self, error, refused) from error
        self.is_monitored = True
        return info.model_copy(update={"overhead": _OVERHEAD, "serving": serving})

    async def recognise(self) -> EngineInfo:
        """Return the description of the server without its checks; raise as `startup.identify`."""
        return (await identify(self, self._settings, self.section))[0]

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return the vector of each text; see `PoolingEngine`.

        Raises:
            EngineError: A vector has another length than those before, is 0, or has values that are no numbers.
        """
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "base64"}
        if dimensions is not None:
            body["dimensions"] = dimensions
        reply = await self.post(_PATHS["embedding"], body, _Embeddings)
        return [self._read_vector(item.embedding) for item in self._sort(reply.data, reply.model, len(texts))]

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to the query; see `PoolingEngine`.

        Raises:
            EngineError: A score is no number.
        """
        body = {"model": self.model, "query": query, "documents": list(documents)}
        reply = await self.post(_PATHS["score"], body, _Scores)
        scores = []
        for item in self._sort(reply.results, reply.model, len(documents)):
            if item.relevance_score is None or not math.isfinite(item.relevance_score):
                raise self._fail(f"sends a score that is no number ({item.relevance_score})")
            scores.append(item.relevance_score)
        return scores

    @property
    def counter(self) -> TextTokenCounter:
        """Counter of the tokens of texts."""
        return TextTokenCounter(self, self.model, {})

    async def _check_vectors(self, dimensions: int | None) -> None:
        contents = await self.embed(_DOCUMENTS, dimensions)
        if dimensions is not None and self._length != dimensions:
            raise self._fail(
                f"sends vectors of {self._length} dimensions, {dimensions} are configured",
                "leave `dense.dimensions` out, or serve a model that can shorten its vectors (Matryoshka)",
            )
        vectors = np.array([np.frombuffer(content, "<f4") for content in contents])
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        if np.abs(units - units[0]).max() <= _EQUAL:
            raise self._fail("sends the same vector for clearly different texts")

    async def _check_scores(self) -> None:
        scores = await self.score(_QUERY, _DOCUMENTS)
        if max(scores) - min(scores) <= _EQUAL:
            raise self._fail(
                f"{self.model} scores clearly different pairs equally ({scores[0]:g})",
                "Qwen3-Reranker did so in vLLM 0.11.1 (https://github.com/vllm-project/vllm/issues/27857); check the "
                "version of the server and its --hf-overrides",
            )

    def _sort(self, items: Sequence[_ItemT], model: str | None, expected: int) -> list[_ItemT]:
        """Return the results in the order of the texts; raise BrokenReply unless there is one for each."""
        self.check_model(model, self.model)
        found = sorted(items, key=lambda item: item.index)
        if [item.index for item in found] != list(range(expected)):
            raise BrokenReply(
                f"incomplete reply from {_PATHS[self.purpose]}: {len(found)} results for {expected} texts"
            )
        return found

    def _read_vector(self, embedding: str | Sequence[float | None]) -> bytes:
        if isinstance(embedding, str):
            try:
                content = base64.b64decode(embedding, validate=True)
            except binascii.Error as error:
                raise BrokenReply(f"malformed reply from {_PATHS['embedding']}: a vector is not base64") from error
        else:
            content = np.array([math.nan if value is None else value for value in embedding], "<f4").tobytes()
        if not content or len(content) % 4:
            raise self._fail(f"sends a vector of {len(content)} bytes, not of float32")
        values = np.frombuffer(content, "<f4")
        if not np.isfinite(values).all():
            raise self._fail("sends a vector with values that are no numbers (NaN)")
        if not values.any():
            raise self._fail("sends a vector of zeros")
        self._length = self._length or len(values)
        if len(values) != self._length:
            raise self._fail(
                f"sends a vector of {len(values)} dimensions, the first had {self._length}", "serve one model"
            )
        return content

    def _fail(self, problem: str, remedy: str = _SEE_LOG) -> EngineError:
        return EngineError(f"{self.base_url}: {problem}; {remedy}")
