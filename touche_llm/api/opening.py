"""Opening of clients: language models, embedding models and cross-encoders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from touche_llm.api.progress import Progress, SilentProgress
from touche_llm.engines.answer_function import FUNCTION, AnswerFunction, FunctionEngine
from touche_llm.engines.pooling import PoolingClient, PoolingServer
from touche_llm.engines.settings import (
    MAX_ROUND,
    SECTIONS,
    EngineConfig,
    PoolingConfig,
    PoolingPurpose,
    check_model_folder,
    get_model_name,
)
from touche_llm.engines.tokenizers import ChatTokenizer
from touche_llm.errors import EngineError, Rejected, Transient, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.client import StartUp
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import Engine, EngineInfo
from touche_llm.llm.request import EMPTY_CHAT, place_system_message
from touche_llm.llm.settings import CacheConfig, SamplingConfig

if TYPE_CHECKING:
    from touche_llm.engines.http import HttpClient
from touche_llm.engines.cached_info import (
    ENDLESS,
    ModelSettings,
    assume_engine_info,
    choose_engine,
    find_fitting_engines,
    get_configured_name,
    get_section,
    name_kind,
    replay_engine_info,
    store_engine_info,
)

# JSON schemas of answers.
Schemas = Sequence[Mapping[str, Any]]
# `open_pooling`, or a function in its place.
OpenPooling = Callable[..., AbstractAsyncContextManager[PoolingClient]]
# Log of a vLLM server or a Ray Data job that the program starts, beside the answer cache.
LOG = "vllm.log"
# Within which a server without a named model has to say who it is.
_LOOK_SECONDS = 5.0


class StoredAnswers:
    """In place of an engine: only stored answers count, and another request is a replay miss."""


# What answers the requests of a client: an engine, a function, or the stored answers alone.
Answers = Engine | AnswerFunction | StoredAnswers


@dataclass(frozen=True, slots=True)
class _OpenedEngine:
    """What answers the requests of a client.

    Attributes:
        engine: None if only stored answers count.
        info: Description, with the model's name and context.
        start_up: Start-up check of a server that can wait until a request is sent; None if it was
            made or there is none.
    """

    engine: Engine | None
    info: EngineInfo
    start_up: StartUp | None = None


@asynccontextmanager
async def open_client(
    engine: EngineConfig,
    sampling: SamplingConfig,
    cache: CacheConfig,
    *,
    answers: Answers | None = None,
    info: EngineInfo | None = None,
    schemas: Schemas = (),
    observe: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[ModelClient]:
    """Open the client of a language model; every request of the program goes through one.

    The start-up check of a named model that the cache knows waits for the first request without a
    cached answer.

    Args:
        engine: Settings of the engine.
        sampling: Settings of the requests.
        cache: File of stored answers, and its use.
        answers: What answers requests; None for the engine of the settings, or for the stored
            answers alone in the cache's mode `replay`.
        info: Description of `answers`; None for what the cache or else the settings say.
        schemas: Schemas of answers whose labels the start-up check must be able to read.
        observe: Called with the key of each stored result that is used.
        progress: Receives the problems that the start-up check finds.

    Raises:
        DataError: The cache cannot be opened.
        EngineError: The engine cannot be used.
        UsageError: The settings contradict each other, or a replay does not know the model.
    """
    if answers is None and cache.retry_failures and cache.mode is CacheMode.REPLAY:
        raise UsageError(
            "cache.retry_failures: a replay sends nothing; set `cache.mode: reuse`, and a server"
        )
    async with AsyncExitStack() as stack:
        stored = stack.enter_context(Cache(cache.file, cache.mode, observe))
        if answers is not None:
            opened = _open_answers(answers, info, engine, stored)
        elif cache.mode is CacheMode.REPLAY:
            opened = _OpenedEngine(engine=None, info=replay_engine_info(engine, stored))
        else:
            opened = await _open_configured(
                stack,
                engine,
                sampling,
                schemas,
                stored,
                progress or SilentProgress(),
            )
        yield ModelClient(
            engine_info=opened.info,
            engine=opened.engine,
            start_up=opened.start_up,
            cache=stored,
            sampling=sampling,
            # A round of a Ray job holds all requests that do not depend on others.
            concurrency=MAX_ROUND if engine.name == "ray" else engine.concurrency,
            retry_for=engine.retry_for,
            retry_failures=cache.retry_failures,
        )


def _open_answers(
    answers: Answers, info: EngineInfo | None, engine: EngineConfig, cache: Cache
) -> _OpenedEngine:
    """Return what answers in place of the engine of the settings."""
    if isinstance(answers, StoredAnswers):
        return _OpenedEngine(engine=None, info=info or assume_engine_info(engine, cache))
    if not callable(answers):
        return _OpenedEngine(engine=answers, info=info or assume_engine_info(engine, cache))

    info = EngineInfo(
        model=engine.model_name or FUNCTION,
        revision=engine.revision,
        context=engine.context or ENDLESS,
        overhead=0,
        engine=FUNCTION,
    )
    store_engine_info(info, cache)
    return _OpenedEngine(engine=FunctionEngine(answers), info=info)


async def _open_configured(
    stack: AsyncExitStack,
    engine: EngineConfig,
    sampling: SamplingConfig,
    schemas: Schemas,
    cache: Cache,
    progress: Progress,
) -> _OpenedEngine:
    """Open the engine of the settings; `stack` closes it."""
    try:
        if engine.name == "ray":
            return await _open_ray(stack, engine, sampling, cache, progress)
        return await _open_server(stack, engine, sampling, schemas, cache, progress)
    except EngineError as error:
        if not cache.find(name_kind(None)):
            raise
        raise EngineError(
            f"{error}; stored answers alone need no server (`cache.mode: replay`)"
        ) from error


async def _open_ray(
    stack: AsyncExitStack,
    engine: EngineConfig,
    sampling: SamplingConfig,
    cache: Cache,
    progress: Progress,
) -> _OpenedEngine:
    """Open the engine of Ray Data jobs."""
    from touche_llm.engines.ray_engine import RayEngine, RayJob

    job = RayJob.from_settings(engine, cache.path.with_name(LOG))
    tokenizer = ChatTokenizer(job.folder, sampling.chat_template_kwargs)
    empty_chat = place_system_message(EMPTY_CHAT, sampling.system_message)
    info = EngineInfo(
        model=get_model_name(job.folder),
        revision=engine.revision,
        context=job.context,
        overhead=await tokenizer.count_tokens(empty_chat),
        engine="Ray Data job",
    )
    store_engine_info(info, cache)
    ray = await stack.enter_async_context(RayEngine(job, tokenizer, progress.warn))
    return _OpenedEngine(engine=ray, info=info)


async def _open_server(
    stack: AsyncExitStack,
    engine: EngineConfig,
    sampling: SamplingConfig,
    schemas: Schemas,
    cache: Cache,
    progress: Progress,
) -> _OpenedEngine:
    """Open the client of a server, after its start-up check unless that can wait."""
    # Imported here because the HTTP libraries are slow to load, and most commands need no engine.
    from touche_llm.doctor.checks import list_checks
    from touche_llm.doctor.examination import connect
    from touche_llm.doctor.registry import Occasion
    from touche_llm.doctor.survey import ServerUnderTest
    from touche_llm.engines.chat import ChatServer
    from touche_llm.engines.managed import serve

    is_managed = engine.name == "managed"
    folder = check_model_folder(engine.model) if is_managed else Path()

    async def start_up(context: int | None) -> EngineInfo:
        if is_managed:
            log = cache.path.with_name(LOG)
            server.base_url = await stack.enter_async_context(
                serve(folder, engine.options, log, context=engine.context)
            )
        settings = engine.model_copy(update={"model": engine.model_name, "context": context})
        with progress.stage("checking the server", len(list_checks(Occasion.START_UP))) as step:
            subject = ServerUnderTest(
                server=server,
                engine=settings,
                sampling=sampling,
                schemas=schemas,
                warn=progress.warn,
                step=step,
            )
            examined = await connect(subject)
        server.dialect = examined.dialect
        store_engine_info(examined.info, cache)
        return examined.info

    server = await stack.enter_async_context(
        ChatServer(
            engine.base_url,
            concurrency=engine.concurrency,
            request_timeout=engine.request_timeout,
            chat_template_kwargs=sampling.chat_template_kwargs,
        )
    )
    known = await _recall(engine, cache, server)
    if known is None:
        return _OpenedEngine(engine=server, info=await start_up(engine.context))
    return _OpenedEngine(engine=server, info=known, start_up=partial(start_up, known.context))


async def _recall(
    settings: ModelSettings,
    cache: Cache,
    client: HttpClient,
    purpose: PoolingPurpose | None = None,
) -> EngineInfo | None:
    """Return the stored description of an engine whose start-up check can wait.

    Where no model is named, the server has to say at once that it is the described one.

    Returns:
        The description, or None if no single one fits.
    """
    if cache.mode is not CacheMode.REUSE:
        return None

    if get_configured_name(settings) is not None:
        fitting = find_fitting_engines(settings, cache, purpose)
    else:
        served = await _look_at_server(settings, client, purpose)
        if served is None:
            return None
        named = settings.model_copy(update={"model": served.model})
        fitting = []
        for known in find_fitting_engines(named, cache, purpose):
            if known.context == served.context and known.engine == served.engine:
                fitting.append(known)

    contexts = {known.context for known in fitting}
    if len(contexts) != 1:
        return None
    return choose_engine(fitting, cache, purpose)


async def _look_at_server(
    settings: ModelSettings, client: HttpClient, purpose: PoolingPurpose | None
) -> EngineInfo | None:
    """Return what a server says of its only model.

    None if it does not reply soon, or serves several; the start-up check then reports it.
    """
    from touche_llm.engines.identification import identify

    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            identification = await identify(client, settings, get_section(purpose))
    except (EngineError, Transient, Rejected, TimeoutError):
        return None
    return identification.info


@asynccontextmanager
async def open_pooling(
    purpose: PoolingPurpose,
    settings: PoolingConfig,
    answers: CacheConfig,
    dimensions: int | None = None,
) -> AsyncIterator[PoolingClient]:
    """Open an embedding model, with vectors of `dimensions` or of the model's own length, or a cross-encoder.

    A replay needs no server, nor does a configuration without an address: the cache must have all
    results.
    """
    with Cache(answers.file, answers.mode) as cache:
        policy: Mapping[str, Any] = {
            "cache": cache,
            "purpose": purpose,
            "retry_for": settings.retry_for,
            "batch": settings.batch,
            "concurrency": settings.concurrency,
            "dimensions": dimensions,
        }
        if cache.mode is CacheMode.REPLAY or settings.url is None:
            yield PoolingClient(
                engine_info=replay_engine_info(settings, cache, purpose), engine=None, **policy
            )
            return
        # Imported here because the HTTP libraries are slow to load.
        from touche_llm.engines.http import HttpClient

        section = SECTIONS[purpose]
        connection = HttpClient(
            settings.url,
            concurrency=settings.concurrency,
            request_timeout=settings.request_timeout,
            section=section,
            address=f"`{section}.url`",
        )
        async with connection as client:
            server = PoolingServer(client, purpose, settings)

            async def start_up() -> EngineInfo:
                facts = await server.connect(dimensions)
                store_engine_info(facts, cache, purpose)
                return facts

            known = await _recall(settings, cache, client, purpose)
            if known is None:
                yield PoolingClient(engine_info=await start_up(), engine=server, **policy)
            else:
                yield PoolingClient(engine_info=known, engine=server, start_up=start_up, **policy)
