"""Records of models, and of the use of embedding models and cross-encoders."""

from __future__ import annotations

from touche_llm.data.records import Count, JsonStruct
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.settings import TemplateConfig
from touche_llm.llm.protocol import EngineInfo


class ModelRecord(JsonStruct, frozen=True, kw_only=True):
    """A model, and the engine that answers for it.

    Attributes:
        name: Name of the model.
        revision: Name of its weights, from the settings.
        context: Max tokens of a prompt and its completion.
        engine: Program that serves the model, with its version.
        serving: What the server reports of how it serves the model, by name; empty if nothing.
    """

    name: str
    revision: str
    context: Count
    engine: str
    serving: dict[str, str]

    @classmethod
    def from_info(cls, info: EngineInfo) -> ModelRecord:
        """Return the record of the model that an engine answers for."""
        return cls(
            name=info.model,
            revision=info.revision,
            context=info.context,
            engine=info.engine,
            serving=info.serving,
        )


class PoolingCounts(JsonStruct, frozen=True, kw_only=True):
    """Counts of a stage's requests to an embedding model or a cross-encoder.

    Attributes:
        requests: Requests sent to the server, without retries.
        cache_hits: Vectors or scores taken from the answer cache.
        retries: Repetitions of requests after transient failures.
        cut: Documents that were truncated to fit the context.
    """

    requests: Count
    cache_hits: Count
    retries: Count
    cut: Count


class PoolingUse(JsonStruct, frozen=True, kw_only=True):
    """A stage's use of an embedding model or a cross-encoder.

    Attributes:
        model: Model that answered.
        templates: Template of the query and of the document, by these names.
        instruction: Text in place of `{instruction}` in the templates.
        dimensions: Numbers in a vector; null for a cross-encoder.
        counts: Counts of requests.
    """

    model: ModelRecord
    templates: dict[str, str]
    instruction: str
    dimensions: Count | None
    counts: PoolingCounts

    @classmethod
    def from_client(
        cls,
        client: PoolingClient,
        settings: TemplateConfig,
        dimensions: int | None = None,
    ) -> PoolingUse:
        """Return the record of what a client has sent so far."""
        counts = PoolingCounts(
            requests=client.counts.requests,
            cache_hits=client.counts.cache_hits,
            retries=client.counts.retries,
            cut=client.counts.cut,
        )
        return cls(
            model=ModelRecord.from_info(client.engine_info),
            templates=settings.templates._asdict(),
            instruction=settings.instruction,
            dimensions=dimensions,
            counts=counts,
        )
