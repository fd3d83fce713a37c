"""Embedding models and cross-encoders: results from the cache or from a server with the interfaces of vLLM."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import JsonStruct
from touche_llm.engines.settings import SECTIONS, PoolingConfig, PoolingPurpose
from touche_llm.errors import BrokenReply, EngineError, Rejected, ReplayMiss, Transient
from touche_llm.llm.answer_key import hash_content
from touche_llm.llm.cache import EntryMetadata, describe_resume
from touche_llm.llm.client import EngineClient, FailedRequest, UncachedRequest
from touche_llm.llm.protocol import EngineInfo, PoolingEngine, TokenCounter
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.llm.truncation import get_complete_text
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
# Key of a result and its text.
_ItemToSend = tuple[str, Request]


@dataclass(frozen=True, slots=True)
class _PoolingQuery(Generic[_StoredT]):
    """What is requested about each of some texts.

    Attributes:
        model: Type of a result, as it is stored.
        text_name: Name of the text in the keys of the results.
        parameters: What a result depends on, besides the model and its text, by name.
        send: Requests the results of some texts from an engine.
    """

    model: type[_StoredT]
    text_name: str
    parameters: Mapping[str, Any]
    send: Callable[[PoolingEngine, Sequence[str]], Awaitable[Sequence[Any]]]

    @property
    def kind(self) -> str:
        """Kind of the results in the cache."""
        return self.model.__name__.lower()

    def make_key(self, text: Request) -> str:
        """Return the key of a text's result."""
        return hash_content(
            self.kind,
            model=text.model,
            revision=text.revision,
            **{self.text_name: _get_text(text)},
            **self.parameters,
        )


def _split(items: Sequence[_ItemToSend], size: int) -> list[Sequence[_ItemToSend]]:
    """Split items into batches of this size; the last one may be smaller."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def _identify_text(request: Request) -> tuple[str, str]:
    """Return the topic of a request, and its document, or its text if it is about no document."""
    origin = request.origin
    return origin.topic_id, origin.document_id or _get_text(request)


def _get_text(request: Request) -> str:
    """Return the text that a request wraps."""
    return request.messages[0].content


@dataclass(slots=True)
class PoolingClient(EngineClient):
    """Client of one embedding model or cross-encoder.

    Attributes:
        engine: Engine that answers; None in a replay.
        purpose: What the model is for.
        batch: Max number of texts in a request.
        concurrency: Max number of requests at a time.
        dimensions: Dimensions of the vectors; None for the model's own.
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
        return Request(
            messages=(Message("user", text),),
            schema={},
            sampling=Sampling(),
            model=self.engine_info.model,
            revision=self.engine_info.revision,
            chat_template_kwargs={},
            origin=Origin(
                prompt="pooling",
                prompt_version=0,
                prompt_hash="",
                topic_id=topic_id,
                document_id=document_id,
            ),
        )

    async def embed(self, texts: Sequence[Request]) -> list[bytes]:
        """Return the vectors of texts as little-endian float32.

        Those that a replay misses are empty; see `raise_on_misses`.

        Raises:
            EngineError: The engine failed.
        """
        parameters = {} if self.dimensions is None else {"dimensions": self.dimensions}
        query = _PoolingQuery(
            model=Embedding,
            text_name="text",
            parameters=parameters,
            send=lambda engine, sent: engine.embed(sent, self.dimensions),
        )
        results = await self._request(query, texts)
        return [b"" if result is None else result.vector for result in results]

    async def embed_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vectors of texts in one request, without use of the cache.

        Raises:
            EngineError: The engine failed.
        """
        assert self.engine is not None, "nothing is embedded in a replay"
        return await self._send(partial(self.engine.embed, texts, self.dimensions))

    async def score(self, query: str, documents: Sequence[Request]) -> list[float]:
        """Return the relevance of documents to a query.

        It is 0 for those that a replay misses; see `raise_on_misses`.

        Raises:
            EngineError: The engine failed.
        """
        pooling_query = _PoolingQuery(
            model=Score,
            text_name="document",
            parameters={"query": query},
            send=lambda engine, sent: engine.score(query, sent),
        )
        results = await self._request(pooling_query, documents)
        return [0.0 if result is None else result.score for result in results]

    async def fit(
        self,
        build: Callable[[str], str],
        document: str | RankedPassages,
        topic_id: str = "",
        document_id: str | None = None,
    ) -> str:
        """Return the text of a document, truncated if it does not fit the context.

        If a replay misses the number of tokens, it is the complete text; see `raise_on_misses`.

        Args:
            build: Builds the text to send from that of the document.
            document: Text, or passages in the order in which they are kept.
            topic_id: Id of the topic, for messages.
            document_id: Id of the document, for messages.

        Raises:
            EngineError: The engine failed.
            PromptError: Not even the beginning of the document fits.
        """

        def build_request(text: str) -> Request:
            return self.wrap(build(text), topic_id, document_id)

        complete_text = get_complete_text(document)
        truncated = await self.truncate_document(
            build_request,
            complete_request=build_request(complete_text),
            document=document,
            # The model may add as many tokens as the overhead to those that the server counts.
            room=self.engine_info.context - self.engine_info.overhead,
        )
        if isinstance(truncated, UncachedRequest):
            # Harmless: the replay has recorded the miss, and fails with all of them at its end.
            return complete_text
        if isinstance(truncated, FailedRequest):
            raise self._fail_to_count(truncated)
        return truncated.text

    def _fail_to_count(self, failed: FailedRequest) -> EngineError:
        """Return the error of a document whose tokens could not be counted."""
        subject = failed.request.origin.subject
        reason = failed.attempts[-1].reason
        return self._fail_with(f"{subject}: too long, and its tokens cannot be counted: {reason}")

    def raise_on_misses(self) -> None:
        """Raise an error if a replay needed results that the cache lacks.

        Raises:
            ReplayMiss: There are such results.
        """
        if not self.misses:
            return

        # A text whose number of tokens is missing as well counts once.
        texts = {_identify_text(miss) for miss in self.misses}
        first_subject = self.misses[0].origin.subject
        raise ReplayMiss(
            f"{self.cache.path}: the cache lacks {len(texts)} results of {self.engine_info.model} that the run "
            f"needs, the first for {first_subject}; request them with `cache.mode: reuse` and the "
            f"address of its server (`{SECTIONS[self.purpose]}.url`)"
        )

    async def _request(
        self, query: _PoolingQuery[_StoredT], texts: Sequence[Request]
    ) -> list[_StoredT | None]:
        """Return the results for texts; those that the cache lacks are requested, each once.

        None stands for a result that a replay misses.
        """
        keys = [query.make_key(text) for text in texts]
        texts_by_key: dict[str, Request] = {}
        for key, text in zip(keys, texts, strict=True):
            texts_by_key.setdefault(key, text)

        results = self._find_cached(query, texts_by_key)
        self.counts.cache_hits += len(results)

        missing = [(key, text) for key, text in texts_by_key.items() if key not in results]
        if self.engine is None:
            self.misses += [text for _, text in missing]
        else:
            results |= await self._request_missing(self.engine, query, missing)
        return [results.get(key) for key in keys]

    def _find_cached(
        self, query: _PoolingQuery[_StoredT], keys: Iterable[str]
    ) -> dict[str, _StoredT]:
        """Return the results with these keys that are in the cache, by key."""
        cached: dict[str, _StoredT] = {}
        for key in keys:
            # A refresh reads only the results that this run itself has stored.
            is_refreshed = key in self._stored
            result = self.cache.get(key, query.model, refreshed=is_refreshed)
            if result is not None:
                cached[key] = result
        return cached

    async def _request_missing(
        self,
        engine: PoolingEngine,
        query: _PoolingQuery[_StoredT],
        missing: Sequence[_ItemToSend],
    ) -> dict[str, _StoredT]:
        """Request the results for texts in batches, and return them by key."""
        request = partial(self._request_batch, engine, query)
        batches = _split(missing, self.batch)
        results: dict[str, _StoredT] = {}
        for batch_results in await map_in_order(request, batches, self.concurrency):
            results |= batch_results
        return results

    async def _request_batch(
        self,
        engine: PoolingEngine,
        query: _PoolingQuery[_StoredT],
        batch: Sequence[_ItemToSend],
    ) -> dict[str, _StoredT]:
        """Request the results for texts and store them.

        Args:
            engine: Engine that answers.
            query: What is requested about each text.
            batch: Texts with the keys of their results.

        Returns:
            Results by key.

        Raises:
            EngineError: The engine failed.
        """
        texts = [_get_text(text) for _, text in batch]
        values = await self._send(partial(query.send, engine, texts))

        results: dict[str, _StoredT] = {}
        for (key, text), value in zip(batch, values, strict=True):
            metadata = EntryMetadata(
                key=key,
                kind=query.kind,
                model=text.model,
                topic=text.origin.topic_id,
                document=text.origin.document_id,
            )
            self._stored.add(key)
            results[key] = await self.cache.store(metadata, query.model(value))
        return results

    async def _send(self, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Send a request.

        Raises:
            EngineError: The engine failed.
        """
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
        self._client = client
        self._purpose: PoolingPurpose = purpose
        self._settings = settings
        self._model = settings.model or ""
        # Dimensions of the first vector.
        self._length: int | None = None

    async def connect(self, dimensions: int | None = None) -> EngineInfo:
        """Get model and context from the server, and verify that its results can be used.

        Args:
            dimensions: Dimensions of the vectors; None for the model's own.

        Raises:
            EngineError: The server is unreachable, does not serve the model, or its results cannot
                be used.
        """
        from touche_llm.engines.identification import describe_failure  # takes a while to load

        try:
            info = await self._identify()
            self._model = info.model
            if self._purpose == "embedding":
                await self._check_vectors(dimensions)
            else:
                await self._check_scores()
        except (Transient, Rejected) as error:
            remedy = _SEE_LOG
            if isinstance(error, Rejected) and error.status == 404:
                remedy = f"it does not know {_PATHS[self._purpose]}; with vLLM, serve its model with --runner pooling"
            raise describe_failure(self._client, error, remedy) from error
        return info.model_copy(update={"overhead": _OVERHEAD})

    async def _identify(self) -> EngineInfo:
        """Return what the server says of itself and of its model.

        Raises:
            EngineError: The server does not serve the model, or its context is unknown or too long.
            Rejected: The server refuses a request.
            Transient: There is no reply.
        """
        from touche_llm.engines.identification import identify  # takes a while to load

        identification = await identify(self._client, self._settings, self._client.section)
        if identification.context_check.is_blocking:
            raise EngineError(f"{self._client.base_url}: {identification.context_check}")
        return identification.info

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
        items = self._sort(reply.data, reply.model, len(texts))
        return [self._read_vector(item.embedding) for item in items]

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to the query; see `PoolingEngine`."""
        body = {"model": self._model, "query": query, "documents": list(documents)}
        reply = await self._client.post(_PATHS["score"], body, _Scores)
        scores: list[float] = []
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
        """Raise EngineError unless vectors have these dimensions and differ for different texts."""
        contents = await self.embed(_DOCUMENTS, dimensions)
        if dimensions is not None and self._length != dimensions:
            raise self._fail(
                f"sends vectors of {self._length} dimensions, {dimensions} are configured",
                "leave `dense.dimensions` out, or serve a model that can shorten its vectors (Matryoshka)",
            )

        vectors = np.array([np.frombuffer(content, "<f4") for content in contents])
        unit_vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        differences_from_first = np.abs(unit_vectors - unit_vectors[0])
        if differences_from_first.max() <= _EQUAL:
            raise self._fail("sends the same vector for clearly different texts")

    async def _check_scores(self) -> None:
        """Raise EngineError unless scores of a right and a wrong answer differ."""
        scores = await self.score(_QUERY, _DOCUMENTS)
        if max(scores) - min(scores) <= _EQUAL:
            raise self._fail(
                f"{self._model} scores clearly different pairs equally ({scores[0]:g})",
                "Qwen3-Reranker did so in vLLM 0.11.1 (https://github.com/vllm-project/vllm/issues/27857); check the "
                "version of the server and its --hf-overrides",
            )

    def _sort(self, items: Sequence[_ItemT], model: str | None, expected: int) -> list[_ItemT]:
        """Return the results in the order of the texts.

        Args:
            items: Results in any order.
            model: Name of the model that replied, if the server names it.
            expected: Number of texts.

        Raises:
            BrokenReply: There is not one result for each text.
            EngineError: Another model replied than before.
        """
        self._client.check_model(model, self._model)
        ordered = sorted(items, key=lambda item: item.index)
        if [item.index for item in ordered] != list(range(expected)):
            raise BrokenReply(
                f"incomplete reply from {_PATHS[self._purpose]}: {len(ordered)} results for {expected} texts"
            )
        return ordered

    def _read_vector(self, embedding: bytes | Sequence[float | None]) -> bytes:
        """Return a vector as little-endian float32.

        Args:
            embedding: The same, or numbers.

        Raises:
            EngineError: The vector cannot be used, or has other dimensions than the first one.
        """
        content = embedding if isinstance(embedding, bytes) else _encode_vector(embedding)
        if not content or len(content) % 4:
            raise self._fail(f"sends a vector of {len(content)} bytes, not of float32")
        values = np.frombuffer(content, "<f4")
        if not np.isfinite(values).all() or not values.any():
            raise self._fail("sends a vector of zeros, or with values that are no numbers (NaN)")

        if self._length is None:
            self._length = len(values)
        if len(values) != self._length:
            raise self._fail(
                f"sends a vector of {len(values)} dimensions, the first had {self._length}",
                "serve one model",
            )
        return content

    def _fail(self, problem: str, remedy: str = _SEE_LOG) -> EngineError:
        return EngineError(f"{self._client.base_url}: {problem}; {remedy}")


def _encode_vector(numbers: Sequence[float | None]) -> bytes:
    """Return numbers as little-endian float32; None becomes NaN."""
    values = [math.nan if number is None else number for number in numbers]
    return np.array(values, "<f4").tobytes()
