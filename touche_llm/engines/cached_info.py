"""What a cache knows of engines."""

from __future__ import annotations

from touche_llm.engines.settings import SECTIONS, EngineConfig, PoolingConfig, PoolingPurpose
from touche_llm.errors import UsageError
from touche_llm.llm.answer_key import hash_content
from touche_llm.llm.cache import Cache, CacheMode, Entry
from touche_llm.llm.protocol import EngineInfo

# Settings of an engine of chats or of a pooling model.
ModelSettings = EngineConfig | PoolingConfig
# Tokens; longer than any document.
ENDLESS = 2**30


def store_engine_info(
    info: EngineInfo, cache: Cache, purpose: PoolingPurpose | None = None
) -> None:
    """Store the description of an engine in the cache, for a replay without the engine."""
    kind = name_kind(purpose)
    value = info.model_dump()
    if not info.serving:
        # It came later, and is left out where it is not used, so that earlier keys stay valid.
        del value["serving"]
    cache.put(Entry(key=hash_content(kind, **value), kind=kind, model=info.model, value=value))


def assume_engine_info(
    settings: ModelSettings, cache: Cache, purpose: PoolingPurpose | None = None
) -> EngineInfo:
    """Return the facts about an engine without a request: from the cache, else from the configuration.

    For an unknown engine, `engine` is empty, a missing model too, and a missing context cuts no
    document.
    """
    fitting = find_fitting_engines(settings, cache, purpose)
    if fitting:
        return choose_engine(fitting, cache, purpose)
    return EngineInfo(
        model=get_configured_name(settings) or "",
        revision=settings.revision,
        context=settings.context or ENDLESS,
        overhead=0,
        engine="",
    )


def replay_engine_info(
    settings: ModelSettings, cache: Cache, purpose: PoolingPurpose | None = None
) -> EngineInfo:
    """Return the description of an engine from the cache.

    Raises:
        UsageError: The cache has no description of an engine that fits the settings, or several.
    """
    fitting = find_fitting_engines(settings, cache, purpose)
    if fitting:
        return choose_engine(fitting, cache, purpose)

    if purpose is not None and cache.mode is not CacheMode.REPLAY:
        raise UsageError(
            f"{SECTIONS[purpose]}.url: missing; give the address of a server with the model"
        )
    models = sorted({entry.model for entry in cache.find(name_kind(purpose))})
    held = ", ".join(models) or "no model"
    sought = f"model {get_configured_name(settings) or 'any'}, revision {settings.revision!r}"
    if settings.context is not None:
        sought += f", context {settings.context}"
    raise UsageError(f"{cache.path}: holds {held}; nothing to replay of {sought}")


def name_kind(purpose: PoolingPurpose | None) -> str:
    """Return the kind of the cache entries with facts about a pooling model or, with None, an engine of chats."""
    return "engine" if purpose is None else f"{purpose} engine"


def get_section(purpose: PoolingPurpose | None) -> str:
    """Return the section of the settings of a pooling model or, with None, of an engine of chats."""
    return "engine" if purpose is None else SECTIONS[purpose]


def get_configured_name(settings: ModelSettings) -> str | None:
    """Return the name of the model in the settings, None if they name none."""
    return settings.model_name if isinstance(settings, EngineConfig) else settings.model


def find_fitting_engines(
    settings: ModelSettings, cache: Cache, purpose: PoolingPurpose | None
) -> list[EngineInfo]:
    """Return the cached facts about engines that fit the configured model, revision and context."""
    known = [cache.read(entry, EngineInfo) for entry in cache.find(name_kind(purpose))]
    model = get_configured_name(settings)
    models = sorted({info.model for info in known})
    if model is None and len(models) > 1:
        choice = f"choose one with `{get_section(purpose)}.model`"
        raise UsageError(f"{cache.path}: holds answers of {', '.join(models)}; {choice}")

    fitting: list[EngineInfo] = []
    for info in known:
        has_model = not model or info.model == model
        has_context = settings.context is None or info.context == settings.context
        if has_model and has_context and info.revision == settings.revision:
            fitting.append(info)
    return fitting


def choose_engine(
    fitting: list[EngineInfo], cache: Cache, purpose: PoolingPurpose | None
) -> EngineInfo:
    """Return the engine to replay, of those that fit the settings.

    Raises:
        UsageError: They have different contexts.
    """
    contexts = sorted({info.context for info in fitting})
    if len(contexts) > 1:
        sizes = ", ".join(map(str, contexts))
        raise UsageError(
            f"{cache.path}: {fitting[0].model} was used with contexts of {sizes} tokens, "
            f"and documents were truncated to fit; choose one with `{get_section(purpose)}.context`"
        )
    # The smallest overhead needs no measurement that another did not need.
    return min(fitting, key=lambda info: (info.overhead, info.engine))
