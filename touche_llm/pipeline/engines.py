"""Opening of a language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from touche_llm.errors import DataError, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.cache_file import Entry
from touche_llm.llm.engines.base import Engine, EngineInfo
from touche_llm.llm.engines.vllm_common import check_model_folder
from touche_llm.llm.model import NOTHING_LOST, LostRequests, ModelClient
from touche_llm.llm.request import hash_content
from touche_llm.llm.settings import CacheConfig, EngineConfig, SamplingConfig

# Log of a vLLM server that the program starts, beside the answer cache.
LOG = "vllm.log"
# Tokens; longer than any document.
_ENDLESS = 2**30


@asynccontextmanager
async def open_model(
    engine: EngineConfig, sampling: SamplingConfig, answers: CacheConfig, lost: LostRequests = NOTHING_LOST
) -> AsyncIterator[ModelClient]:
    """Open a language model.

    A replay needs no engine, nor do batch files: `batch.rounds` has stored their answers in the cache.

    Args:
        engine: Engine that answers requests.
        sampling: Sampling parameters of the requests.
        answers: Cache of the answers.
        lost: Requests that batch files left without an answer.

    Raises:
        UsageError: Failures are to be retried in replay, or the cache does not know the engine to replay.
        EngineError: The engine cannot be used.
    """
    if answers.retry_failures and answers.mode is CacheMode.REPLAY:
        raise UsageError("cache.retry_failures: a replay sends nothing; set `cache.mode: reuse`, and a server")
    with Cache(answers.file, answers.mode) as cache:
        policy: Mapping[str, Any] = {
            "cache": cache,
            "retry_for": engine.retry_for,
            "resample_temperature": sampling.resample_temperature,
            "retry_failures": answers.retry_failures,
        }
        if cache.mode is CacheMode.REPLAY or engine.name == "batch":
            # With batch files, failures are sent again in the files.
            policy = {**policy, "retry_failures": False}
            yield ModelClient(engine_info=_replayed_facts(engine, cache), engine=None, lost=lost, **policy)
            return
        log = cache.path.with_name(LOG)
        opening = _managed(engine, sampling, log) if engine.name == "managed" else _server(engine, sampling)
        async with opening as (opened, facts):
            store_engine_info(facts, cache)
            yield ModelClient(engine_info=facts, engine=opened, **policy)


@asynccontextmanager
async def _managed(
    asked: EngineConfig, sampling: SamplingConfig, log: Path
) -> AsyncIterator[tuple[Engine, EngineInfo]]:
    # Imported here because the HTTP libraries are slow to load.
    from touche_llm.llm.engines.vllm_process import serve

    folder = check_model_folder(asked.model)
    async with AsyncExitStack() as serving:

        async def start() -> str:
            """Serve the model, in place of a server that has died."""
            await serving.aclose()
            return await serving.enter_async_context(serve(folder, asked.options, log, context=asked.context))

        there = asked.model_copy(update={"base_url": await start(), "model": asked.model_name})
        async with _server(there, sampling, start) as opened:
            yield opened


@asynccontextmanager
async def _server(
    asked: EngineConfig, sampling: SamplingConfig, restart: Callable[[], Awaitable[str]] | None = None
) -> AsyncIterator[tuple[Engine, EngineInfo]]:
    # Imported here because the HTTP libraries are slow to load, and most commands need no engine.
    from touche_llm.llm.engines.server import ChatServer
    from touche_llm.llm.engines.startup import connect

    async with ChatServer(
        asked.base_url,
        concurrency=asked.concurrency,
        request_timeout=asked.request_timeout,
        chat_template_kwargs=sampling.chat_template_kwargs,
        restart=restart,
    ) as server:
        yield server, await connect(server, asked, sampling)


def store_engine_info(facts: EngineInfo, cache: Cache) -> None:
    """Store the facts about an engine in the cache, for a replay without the engine."""
    key = hash_content("engine", **facts.model_dump())
    cache.put(Entry(key=key, kind="engine", model=facts.model, value=facts.model_dump()), EngineInfo)


def assume_engine_info(asked: EngineConfig, cache: Cache) -> EngineInfo:
    """Return the facts about the engine without a request: from the cache, else from the configuration.

    For an unknown engine `engine` is empty, as is the model if the configuration names none; a context that is not
    configured is so long that nothing is truncated.
    """
    fitting = _known_facts(asked, cache)
    if fitting:
        return _one_of(fitting, cache)
    model, context = asked.model_name or "", asked.context or _ENDLESS
    return EngineInfo(model=model, revision=asked.revision, context=context, overhead=0, engine="")


def _replayed_facts(asked: EngineConfig, cache: Cache) -> EngineInfo:
    fitting = _known_facts(asked, cache)
    if not fitting:
        models = sorted({entry.model for entry in cache.find("engine")})
        wanted = f"model {asked.model_name or 'any'}, revision {asked.revision!r}"
        wanted += f", context {asked.context}" if asked.context is not None else ""
        raise UsageError(f"{cache.path}: holds {', '.join(models) or 'no model'}; nothing to replay of {wanted}")
    return _one_of(fitting, cache)


def _known_facts(asked: EngineConfig, cache: Cache) -> list[EngineInfo]:
    """Return the cached facts about engines that fit the configuration."""
    known = [_facts(entry, cache) for entry in cache.find("engine")]
    models = sorted({facts.model for facts in known})
    if asked.model_name is None and len(models) > 1:
        raise UsageError(f"{cache.path}: holds answers of {', '.join(models)}; choose one with `engine.model`")
    return [
        facts
        for facts in known
        if facts.model == (asked.model_name or facts.model)
        and facts.revision == asked.revision
        and (asked.context is None or facts.context == asked.context)
    ]


def _one_of(fitting: list[EngineInfo], cache: Cache) -> EngineInfo:
    contexts = sorted({facts.context for facts in fitting})
    if len(contexts) > 1:
        raise UsageError(
            f"{cache.path}: {fitting[0].model} was used with contexts of {', '.join(map(str, contexts))} tokens, and "
            "documents were truncated to fit; choose one with `engine.context`"
        )
    # The smallest overhead needs no measurement that another did not need.
    return min(fitting, key=lambda facts: (facts.overhead, facts.engine))


def _facts(entry: Entry, cache: Cache) -> EngineInfo:
    try:
        return entry.read(EngineInfo)
    except DataError as error:
        raise DataError(f"{cache.path}: entry {entry.key} holds no facts about an engine: record it anew") from error
