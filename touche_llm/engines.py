"""From a configuration to a language model that is checked and ready."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from touche_llm.config import Config
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache, CacheMode, Entry
from touche_llm.llm.engine import EngineFacts
from touche_llm.llm.language_model import LanguageModel
from touche_llm.llm.request import content_key
from touche_llm.llm.vllm_server import VllmServer


@asynccontextmanager
async def open_model(config: Config) -> AsyncIterator[LanguageModel]:
    """The language model of a configuration, checked and ready; in replay no engine is touched."""
    engine, sampling = config.engine, config.sampling
    with Cache(config.cache.file, config.cache.mode) as cache:
        policy: Mapping[str, Any] = {
            "cache": cache,
            "retry_for": engine.retry_for,
            "resample_temperature": sampling.resample_temperature,
        }
        if cache.mode is CacheMode.REPLAY:
            yield LanguageModel(facts=_replayed_facts(config, cache), engine=None, **policy)
            return
        async with VllmServer(
            engine.base_url,
            concurrency=engine.concurrency,
            request_timeout=engine.request_timeout,
            chat_template_kwargs=sampling.chat_template_kwargs,
        ) as server:
            facts = await server.connect(engine.model, engine.revision, 20 if sampling.logprobs else 0)
            key = content_key("engine", model=facts.model, revision=facts.revision)
            cache.replace(Entry(key=key, kind="engine", model=facts.model, value=facts.model_dump()))
            yield LanguageModel(facts=facts, engine=server, **policy)


def _replayed_facts(config: Config, cache: Cache) -> EngineFacts:
    entries = cache.find("engine")
    models = sorted({entry.model for entry in entries})
    if config.engine.model is None and len(models) > 1:
        raise UsageError(f"{cache.path}: holds answers of {', '.join(models)}; choose one with --model")
    model = config.engine.model or next(iter(models), None)
    for entry in entries:
        facts = EngineFacts.model_validate(entry.value)
        if facts.model == model and facts.revision == config.engine.revision:
            return facts
    known = ", ".join(models) or "no model"
    raise UsageError(
        f"{cache.path}: holds {known}; nothing to replay of model {model or 'any'}, revision {config.engine.revision!r}"
    )
