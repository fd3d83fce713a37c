"""What servers say about the models of a run, beside its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from touche_llm.config.configuration import Config
from touche_llm.engines.use import ModelRecord


@dataclass(frozen=True, slots=True)
class KnownModels:
    """Models of a run as their servers describe them; None for a model that is not open yet.

    Attributes:
        language_model: Model that judges and compares.
        embedding_model: Model of the dense index.
        cross_encoder: Model that scores documents.
    """

    language_model: ModelRecord | None = None
    embedding_model: ModelRecord | None = None
    cross_encoder: ModelRecord | None = None


def complete_config(config: Config, models: KnownModels) -> Config:
    """Return a configuration as a run records it: with names and contexts of its known models.

    A configured language model keeps its name, which may be a folder. The context of an embedding
    model is not recorded.
    """
    engine = config.engine
    if models.language_model is not None:
        values = {
            "model": engine.model or models.language_model.name,
            "context": models.language_model.context,
        }
        engine = engine.model_copy(update=values)

    dense = config.dense
    if dense is not None and models.embedding_model is not None:
        dense = dense.model_copy(update={"model": models.embedding_model.name})

    ranking = config.ranking
    if models.cross_encoder is not None:
        values = {
            "model": models.cross_encoder.name,
            "context": models.cross_encoder.context,
        }
        cross_encoder = ranking.cross_encoder.model_copy(update=values)
        ranking = ranking.model_copy(update={"cross_encoder": cross_encoder})

    return config.model_copy(update={"engine": engine, "dense": dense, "ranking": ranking})
