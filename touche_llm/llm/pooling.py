"""Client of embedding models and cross-encoders: results from the cache or the server, with retries."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec
from pydantic import model_validator

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import JsonStruct
from touche_llm.errors import EngineError, ReplayMiss
from touche_llm.llm.answers import FailedRequest
from touche_llm.llm.cache import EntryMetadata, describe_resume
from touche_llm.llm.engine import PoolingEngine, Rejected, Transient
from touche_llm.llm.request import Message, Origin, Request, Sampling, hash_content
from touche_llm.llm.settings import SECTIONS, PoolingConfig, PoolingPurpose
from touche_llm.llm.truncation import TokenCountingClient
from touche_llm.text.passages import RankedPassages

_PLACEHOLDER = re.compile(r"\{(instruction|query|document)\}")


class TextTemplates(NamedTuple):
    """Templates of queries and documents, with the placeholders {instruction}, {query} and {document}."""

    query: str = "{query}"
    document: str = "{document}"


class TemplateConfig(PoolingConfig):
    """Settings of a server whose model expects its texts in templates.

    Attributes:
        preset: Templates of a family of models.
        instruction: Text in place of {instruction} in the templates.
        query_template: Template with {query}, instead of that of the preset.
        document_template: Template with {document}, instead of that of the preset.
    """

    presets: ClassVar[Mapping[str, TextTemplates]] = {"plain": TextTemplates()}

    preset: str = "plain"
    # The instruction with which most of these models were trained.
    instruction: str = "Given a web search query, retrieve relevant passages that answer the query"
    query_template: str | None = None
    document_template: str | None = None

    @model_validator(mode="after")
    def _check_templates(self) -> TemplateConfig:
        if self.preset not in self.presets:
            raise ValueError(f"preset: {self.preset!r:.40}: no such preset; expected one of {', '.join(self.presets)}")
        for name, template in zip(("query", "document"), self.templates, strict=True):
            if f"{{{name}}}" not in template:
                raise ValueError(f"{name}_template: has no {{{name}}}; write it in place of the {name}")
        return self

    @property
    def templates(self) -> TextTemplates:
        """Templates of the model."""
        preset = self.presets[self.preset]
        return TextTemplates(self.query_template or preset.query, self.document_template or preset.document)

    def render_query(self, query: str) -> str:
        """Return the text to send for a query."""
        return self._render(self.templates.query, {"query": query})

    def render_document(self, document: str) -> str:
        """Return the text to send for a document."""
        return self._render(self.templates.document, {"document": document})

    def _render(self, template: str, values: Mapping[str, str]) -> str:
        # In one pass, so that a placeholder in a text from outside stays as it is.
        known = {"instruction": self.instruction, **values}
        return _PLACEHOLDER.sub(lambda match: known.get(match[1], match[0]), template)


# Max characters of a stored vector: 16,384 dimensions.
_MAX_VECTOR = 2**17
_ResultT = TypeVar("_ResultT")


class Embedding(JsonStruct, frozen=True):
    """Vector of a text, as base64 of little-endian float32."""

    vector: Annotated[str, msgspec.Meta(min_length=4, max_length=_MAX_VECTOR)]


class Score(JsonStruct, frozen=True):
    """Relevance of a document to a query."""

    score: float


_StoredT = TypeVar("_StoredT", Embedding, Score)


@dataclass(slots=True)
class PoolingClient(TokenCountingClient):
    """Client of one embedding model or cross-encoder.

    Attributes:
        purpose: What the model is for.
        batch: Max number of texts in a request.
        concurrency: Max number of requests at a time.
        dimensions: Length of the vectors; None for the model's own.
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
        return Request((Message("user", text),), {}, Sampling(), info.model, info.revision, {}, origin)

    async def embed(self, texts: Sequence[Request]) -> list[bytes]:
        """Return the vectors of texts as little-endian float32; empty for those that a replay misses.

        Raises:
            EngineError: The server failed.
        """
        optional = {} if self.dimensions is None else {"dimensions": self.dimensions}

        async def send(engine: PoolingEngine, sent: Sequence[str]) -> list[Embedding]:
            vectors = await engine.embed(sent, self.dimensions)
            return [Embedding(base64.b64encode(vector).decode()) for vector in vectors]

        found = await self._request("embedding", texts, lambda text: {"text": text, **optional}, Embedding, send)
        return [b"" if each is None else base64.b64decode(each.vector) for each in found]

    async def embed_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vectors of texts as `embed`, in one request; nothing is read from the cache or stored there."""
        assert self.engine is not None
        return await self._send(partial(self.engine.embed, texts, self.dimensions))

    async def score(self, query: str, documents: Sequence[Request]) -> list[float]:
        """Return the relevance of documents to a query; 0 for those that a replay misses; raise as `embed`."""

        async def send(engine: PoolingEngine, sent: Sequence[str]) -> list[Score]:
            return [Score(score) for score in await engine.score(query, sent)]

        found = await self._request(
            "score", documents, lambda document: {"query": query, "document": document}, Score, send
        )
        return [0.0 if each is None else each.score for each in found]

    async def fit(
        self,
        build: Callable[[str], str],
        document: str | RankedPassages,
        topic_id: str = "",
        document_id: str | None = None,
    ) -> str:
        """Return the text of a document, truncated if `build` would make it longer than the context.

        Raises:
            EngineError: The server cannot count tokens.
            PromptError: There is no room for the document.
        """

        def wrap(text: str) -> Request:
            return self.wrap(build(text), topic_id, document_id)

        text = document if isinstance(document, str) else document.whole.text
        whole, info = wrap(text), self.engine_info
        # The model may add as many tokens as the overhead to those that the server counts.
        fitted = await self.truncate_document(wrap, whole, document, info.context - info.overhead)
        if not isinstance(fitted, FailedRequest):
            return fitted[0]
        if fitted.attempts:
            reason = fitted.attempts[-1].reason
            raise self._fail_with(f"{whole.origin.subject}: too long, and its tokens cannot be counted: {reason}")
        return text

    def raise_on_misses(self) -> None:
        """Raise ReplayMiss if a replay needed results that the cache lacks."""
        if not self.misses:
            return
        # A text whose length is missing as well counts once.
        count = len({(each.origin.topic_id, each.origin.document_id or each.messages) for each in self.misses})
        raise ReplayMiss(
            f"{self.cache.path}: the cache lacks {count} results of {self.engine_info.model} that the run needs, the "
            f"first for {self.misses[0].origin.subject}; request them with `cache.mode: reuse` and the address of its "
            f"server (`{SECTIONS[self.purpose]}.url`)"
        )

    async def _request(
        self,
        kind: str,
        texts: Sequence[Request],
        name_parts: Callable[[str], Mapping[str, Any]],
        model: type[_StoredT],
        send: Callable[[PoolingEngine, Sequence[str]], Awaitable[list[_StoredT]]],
    ) -> list[_StoredT | None]:
        """Return the results for texts; those that the cache lacks are requested, each once.

        `name_parts` returns the parts of the key of a text besides the model.
        """
        info, engine = self.engine_info, self.engine
        keys = [
            hash_content(kind, model=info.model, revision=info.revision, **name_parts(each.messages[0].content))
            for each in texts
        ]
        found = {key: self.cache.get(key, model, refreshed=key in self._stored) for key in keys}
        self.counts.cache_hits += sum(value is not None for value in found.values())
        lacking = [(key, texts[keys.index(key)]) for key, value in found.items() if value is None]
        if engine is None:
            self.misses += [text for _, text in lacking]
            return [found[key] for key in keys]

        async def request(batch: Sequence[tuple[str, Request]]) -> None:
            results = await self._send(partial(send, engine, [text.messages[0].content for _, text in batch]))
            for (key, text), result in zip(batch, results, strict=True):
                origin = text.origin
                metadata = EntryMetadata(
                    key=key, kind=kind, model=info.model, topic=origin.topic_id, document=origin.document_id
                )
                self._stored.add(key)
                found[key] = await self.cache.store(metadata, result)

        batches = [lacking[start : start + self.batch] for start in range(0, len(lacking), self.batch)]
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
