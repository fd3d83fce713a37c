"""Embedding models and cross-encoders: results from the cache or from a server with the interfaces of vLLM."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import numpy as np

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import JsonStruct
from touche_llm.engines.settings import SECTIONS, PoolingConfig, PoolingPurpose
from touche_llm.errors import BrokenReply, EngineError, Rejected, ReplayMiss, Transient
from touche_llm.llm.answer_key import hash_content
from touche_llm.llm.cache import EntryMetadata, describe_resume
from touche_llm.llm.client import EngineClient, FailedRequest
from touche_llm.llm.protocol import EngineInfo, PoolingEngine, TokenCounter
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.llm.truncation import TruncatedDocument
from touche_llm.text.passages import RankedPassages

if TYPE_CHECKING:  # takes a while to load
    from touche_llm.engines.http import HttpClient

# Max bytes of a stored vector: 16,384 dimensions.
_MAX_VECTOR = 2**16
_ResultT = TypeVar("_ResultT")


class Embedding(JsonStruct, frozen=True):
    """Vector of a text, as base64 of little-endian float32."""

    vector: Annotated[bytes, msgspec.Meta(min_length=4, max_length=_MAX_VECTOR)]


class Score(JsonStruct, frozen=True):
    """Relevance of a document to a query."""

    score: float


_StoredT = TypeVar("_StoredT", Embedding, Score)


@dataclass(slots=True)
class PoolingClient(EngineClient):
    """Client of one embedding model or cross-encoder.

    `dimensions` are those of its vectors, None for its own.
    """

    engine: PoolingEngine | None
    purpose: PoolingPurpose = "embedding"
    batch: int = 32
    concurrency: int = 16
    dimensions: int | None = None
    # Keys that this run has stored.
    _stored: set[str] = field(default_factory=set)

    def wrap(self, text: str, topic_id: str = "", document_id: str | None = None) -> Request:
        """Return a text to send, about a topic or document, as the only message of a request."""
        origin, info = Origin("pooling", 0, "", topic_id, document_id), self.engine_info
        return Request(
            (Message("user", text),), {}, Sampling(), info.model, info.revision, {}, origin
        )

    async def embed(self, texts: Sequence[Request]) -> list[bytes]:
        """Return the vectors of texts as little-endian float32.

        Empty for those that a replay misses.
        """
        optional = {} if self.dimensions is None else {"dimensions": self.dimensions}
        found = await self._request(
            Embedding,
            texts,
            "text",
            optional,
            lambda engine, sent: engine.embed(sent, self.dimensions),
        )
        return [b"" if each is None else each.vector for each in found]

    async def embed_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vectors of texts as `embed`, in one request.

        Nothing is read from the cache or stored there.
        """
        assert self.engine is not None
        return await self._send(partial(self.engine.embed, texts, self.dimensions))

    async def score(self, query: str, documents: Sequence[Request]) -> list[float]:
        """Return the relevance of documents to a query; 0 for those that a replay misses.

        Raise as `embed`.
        """
        found = await self._request(
            Score,
            documents,
            "document",
            {"query": query},
            lambda engine, sent: engine.score(query, sent),
        )
        return [0.0 if each is None else each.score for each in found]

    async def fit(
        self,
        build: Callable[[str], str],
        document: str | RankedPassages,
        topic_id: str = "",
        document_id: str | None = None,
    ) -> str:
        """Return the text of a document, truncated if `build` would make it longer than the context."""

        def wrap(text: str) -> Request:
            return self.wrap(build(text), topic_id, document_id)

        text = document if isinstance(document, str) else document.whole.text
        whole, info = wrap(text), self.engine_info
        # The model may add as many tokens as the overhead to those that the server counts.
        fitted = await self.truncate_document(wrap, whole, document, info.context - info.overhead)
        if isinstance(fitted, TruncatedDocument):
            return fitted.text
        if isinstance(fitted, FailedRequest):
            reason = fitted.attempts[-1].reason
            raise self._fail_with(
                f"{whole.origin.subject}: too long, and its tokens cannot be counted: {reason}"
            )
        return text

    def raise_on_misses(self) -> None:
        """Raise ReplayMiss if a replay needed results that the cache lacks."""
        if not self.misses:
            return
        # A text whose length is missing as well counts once.
        count = len(
            {
                (each.origin.topic_id, each.origin.document_id or each.messages)
                for each in self.misses
            }
        )
        raise ReplayMiss(
            f"{self.cache.path}: the cache lacks {count} results of {self.engine_info.model} that the run needs, the "
            f"first for {self.misses[0].origin.subject}; request them with `cache.mode: reuse` and the address of its "
            f"server (`{SECTIONS[self.purpose]}.url`)"
        )

    async def _request(
        self,
        model: type[_StoredT],
        texts: Sequence[Request],
        name: str,
        others: Mapping[str, Any],
        send: Callable[[PoolingEngine, Sequence[str]], Awaitable[Sequence[Any]]],
    ) -> list[_StoredT | None]:
        """Return the results for texts; those that the cache lacks are requested, each once.

        A key has the model, a text under `name`, and `others`.
        """
        info, engine, kind = self.engine_info, self.engine, model.__name__.lower()
        keys = [
            hash_content(
                kind,
                model=info.model,
                revision=info.revision,
                **{name: each.messages[0].content},
                **others,
            )
            for each in texts
        ]
        found = {key: self.cache.get(key, model, refreshed=key in self._stored) for key in keys}
        self.counts.cache_hits += sum(value is not None for value in found.values())
        lacking = [(key, texts[keys.index(key)]) for key, value in found.items() if value is None]
        if engine is None:
            self.misses += [text for _, text in lacking]
            return [found[key] for key in keys]

        async def request(batch: Sequence[tuple[str, Request]]) -> None:
            results = await self._send(
                partial(send, engine, [text.messages[0].content for _, text in batch])
            )
            for (key, text), result in zip(batch, map(model, results), strict=True):
                origin = text.origin
                metadata = EntryMetadata(
                    key=key,
                    kind=kind,
                    model=info.model,
                    topic=origin.topic_id,
                    document=origin.document_id,
                )
                self._stored.add(key)
                found[key] = await self.cache.store(metadata, result)

        batches = [
            lacking[start : start + self.batch] for start in range(0, len(lacking), self.batch)
        ]
        await map_in_order(request, batches, self.concurrency)
        return [found[key] for key in keys]

    async def _send(self, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        self.counts.requests += 1
        try:
            return await self._retry(call)
        except Rejected as rejected:
            raise self._fail_with(f"the server refuses the request: {rejected}") from rejected
        except Transient as transient:
            raise self._fail_with(transient.reason) from transient
        finally:
            self.counts.ended += 1

    def _fail_with(self, problem: str) -> EngineError:
        return EngineError(f"{self.engine_info.model}: {problem}; {self._describe_resume()}")

    def _describe_resume(self) -> str:
        if self.purpose == "embedding":
            # They are in the index, and only those of queries in the cache.
            return "the vectors of documents so far are stored: resume with the same command"
        return describe_resume(self.cache.path, self.cache.mode)


_PATHS: dict[PoolingPurpose, str] = {"embedding": "/v1/embeddings", "score": "/v1/rerank"}
# Texts of the start-up check that no model may confuse: a question, its answer, and something else.
_QUERY = "What is the capital of France?"
_DOCUMENTS = (
    "The capital of France is Paris.",
    "Bananas are yellow and grow in the tropics.",
    "17",
)
# Max difference between results that count as equal.
_EQUAL = 1e-6
# Tokens that a model adds to a text, at most.
_OVERHEAD = 8


class _Item(msgspec.Struct):
    index: int


class _Vector(_Item):
    # Base64 of float32, as requested, or the numbers, of servers that do not know
    # `encoding_format`.
    embedding: bytes | list[float | None]


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


class PoolingServer:
    """Engine of an embedding model or a cross-encoder. Call `connect` first."""

    def __init__(
        self, client: HttpClient, purpose: PoolingPurpose, settings: PoolingConfig
    ) -> None:
        """Initialise the engine with the client of a server; nothing is sent yet."""
        client.section = SECTIONS[purpose]
        client.address = f"`{client.section}.url`"
        self._client, self._purpose, self._settings = client, purpose, settings
        self._model = settings.model or ""
        self._length: int | None = None

    async def connect(self, dimensions: int | None = None) -> EngineInfo:
        """Get model and context from the server, and verify that its results, of these dimensions, can be used."""
        from touche_llm.engines.identification import (  # takes a while to load
            describe_failure,
            identify,
        )

        client = self._client
        try:
            identification = await identify(client, self._settings, client.section)
            info = identification.info
            self._model = info.model
            if identification.context_check.is_blocking:
                raise EngineError(f"{client.base_url}: {identification.context_check}")
            await (
                self._check_vectors(dimensions)
                if self._purpose == "embedding"
                else self._check_scores()
            )
        except (Transient, Rejected) as error:
            refused = _SEE_LOG
            if isinstance(error, Rejected) and error.status == 404:
                refused = f"it does not know {_PATHS[self._purpose]}; with vLLM, serve its model with --runner pooling"
            raise describe_failure(client, error, refused) from error
        return info.model_copy(update={"overhead": _OVERHEAD})

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        """Return the vector of each text; see `PoolingEngine`."""
        body: dict[str, Any] = {
            "model": self._model,
            "input": list(texts),
            "encoding_format": "base64",
        }
        if dimensions is not None:
            body["dimensions"] = dimensions
        reply = await self._client.post(_PATHS["embedding"], body, _Embeddings)
        return [
            self._read_vector(item.embedding)
            for item in self._sort(reply.data, reply.model, len(texts))
        ]

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to the query; see `PoolingEngine`."""
        body = {"model": self._model, "query": query, "documents": list(documents)}
        reply = await self._client.post(_PATHS["score"], body, _Scores)
        scores = []
        for item in self._sort(reply.results, reply.model, len(documents)):
            if item.relevance_score is None or not math.isfinite(item.relevance_score):
                raise self._fail(f"sends a score that is no number ({item.relevance_score})")
            scores.append(item.relevance_score)
        return scores

    @property
    def counter(self) -> TokenCounter:
        """Counter of the tokens of texts."""
        from touche_llm.engines.chat import TextTokenCounter  # takes a while to load

        return TextTokenCounter(self._client, self._model, {})

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
                f"{self._model} scores clearly different pairs equally ({scores[0]:g})",
                "Qwen3-Reranker did so in vLLM 0.11.1 (https://github.com/vllm-project/vllm/issues/27857); check the "
                "version of the server and its --hf-overrides",
            )

    def _sort(self, items: Sequence[_ItemT], model: str | None, expected: int) -> list[_ItemT]:
        """Return the results in the order of the texts.

        Raise BrokenReply unless there is one for each.
        """
        self._client.check_model(model, self._model)
        found = sorted(items, key=lambda item: item.index)
        if [item.index for item in found] != list(range(expected)):
            raise BrokenReply(
                f"incomplete reply from {_PATHS[self._purpose]}: {len(found)} results for {expected} texts"
            )
        return found

    def _read_vector(self, embedding: bytes | Sequence[float | None]) -> bytes:
        content = embedding
        if not isinstance(content, bytes):
            content = np.array(
                [math.nan if value is None else value for value in embedding], "<f4"
            ).tobytes()
        if not content or len(content) % 4:
            raise self._fail(f"sends a vector of {len(content)} bytes, not of float32")
        values = np.frombuffer(content, "<f4")
        if not np.isfinite(values).all() or not values.any():
            raise self._fail("sends a vector of zeros, or with values that are no numbers (NaN)")
        self._length = self._length or len(values)
        if len(values) != self._length:
            raise self._fail(
                f"sends a vector of {len(values)} dimensions, the first had {self._length}",
                "serve one model",
            )
        return content

    def _fail(self, problem: str, remedy: str = _SEE_LOG) -> EngineError:
        return EngineError(f"{self._client.base_url}: {problem}; {remedy}")
