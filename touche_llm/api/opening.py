"""Opening of clients: language models, embedding models and cross-encoders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
from touche_llm.llm.protocol import Engine, EngineInfo, PoolingEngine
from touche_llm.llm.request import EMPTY_CHAT, place_system_message
from touche_llm.llm.settings import CacheConfig, SamplingConfig

if TYPE_CHECKING:
    from touche_llm.engines.chat import ChatServer
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


EngineT = TypeVar("EngineT")


@dataclass(frozen=True, slots=True)
class _OpenedEngine(Generic[EngineT]):
    """What answers the requests of a client.

    Attributes:
        engine: None if only stored answers count.
        info: Description, with the model's name and context.
        start_up: Start-up check of a server that can wait until a request is sent; None if it was
            made or there is none.
    """

    engine: EngineT | None
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
    # A round of a Ray job holds all requests that do not depend on others.
    concurrency = MAX_ROUND if engine.name == "ray" else engine.concurrency

    async with AsyncExitStack() as stack:
        stored = stack.enter_context(Cache(cache.file, cache.mode, observe))
        if answers is not None:
            opened = _open_answers(answers, info, engine, stored)
        elif cache.mode is CacheMode.REPLAY:
            opened = _OpenedEngine(engine=None, info=replay_engine_info(engine, stored))
        else:
            opener = _EngineOpener(
                stack=stack,
                engine=engine,
                sampling=sampling,
                schemas=schemas,
                cache=stored,
                progress=progress or SilentProgress(),
            )
            opened = await opener.open()

        yield ModelClient(
            engine_info=opened.info,
            engine=opened.engine,
            start_up=opened.start_up,
            cache=stored,
            sampling=sampling,
            concurrency=concurrency,
            retry_for=engine.retry_for,
            retry_failures=cache.retry_failures,
        )


def _open_answers(
    answers: Answers, info: EngineInfo | None, engine: EngineConfig, cache: Cache
) -> _OpenedEngine[Engine]:
    """Return what answers in place of the engine of the settings.

    Args:
        answers: An engine, a function, or the stored answers alone.
        info: Description of an engine; None for what the cache or else the settings say.
        engine: Settings of the engine.
        cache: Cache of the answers, which stores the description of a function.
    """
    if isinstance(answers, StoredAnswers):
        return _OpenedEngine(engine=None, info=info or assume_engine_info(engine, cache))
    if not callable(answers):
        return _OpenedEngine(engine=answers, info=info or assume_engine_info(engine, cache))

    function_info = EngineInfo(
        model=engine.model_name or FUNCTION,
        revision=engine.revision,
        context=engine.context or ENDLESS,
        overhead=0,
        engine=FUNCTION,
    )
    store_engine_info(function_info, cache)
    return _OpenedEngine(engine=FunctionEngine(answers), info=function_info)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineOpener:
    """Opener of the engine that the settings name.

    Attributes:
        stack: Closes what was opened.
        engine: Settings of the engine.
        sampling: Settings of the requests.
        schemas: Schemas of answers whose labels the start-up check must be able to read.
        cache: Cache of the answers, beside which the log of a server is written.
        progress: Receives the problems that the start-up check finds.
    """

    stack: AsyncExitStack
    engine: EngineConfig
    sampling: SamplingConfig
    schemas: Schemas
    cache: Cache
    progress: Progress

    async def open(self) -> _OpenedEngine[Engine]:
        """Open the engine: a server, or jobs of Ray Data.

        Raises:
            EngineError: The engine cannot be used.
        """
        try:
            if self.engine.name == "ray":
                return await self._open_ray()
            return await self._open_server()
        except EngineError as error:
            has_stored_answers = bool(self.cache.find(name_kind(None)))
            if not has_stored_answers:
                raise
            raise EngineError(
                f"{error}; stored answers alone need no server (`cache.mode: replay`)"
            ) from error

    async def _open_ray(self) -> _OpenedEngine[Engine]:
        """Open the engine of Ray Data jobs, which needs no start-up check."""
        from touche_llm.engines.ray_engine import RayEngine, RayJob

        job = RayJob.from_settings(self.engine, self.cache.path.with_name(LOG))
        tokenizer = ChatTokenizer(job.folder, self.sampling.chat_template_kwargs)
        empty_chat = place_system_message(EMPTY_CHAT, self.sampling.system_message)
        info = EngineInfo(
            model=get_model_name(job.folder),
            revision=self.engine.revision,
            context=job.context,
            overhead=await tokenizer.count_tokens(empty_chat),
            engine="Ray Data job",
        )
        store_engine_info(info, self.cache)

        engine = RayEngine(job, tokenizer, self.progress.warn)
        return _OpenedEngine(engine=await self.stack.enter_async_context(engine), info=info)

    async def _open_server(self) -> _OpenedEngine[Engine]:
        """Open the client of a server, after its start-up check unless that can wait."""
        # Imported here because the HTTP libraries are slow to load, and most commands need no engine.
        from touche_llm.engines.chat import ChatServer

        if self._is_managed:
            check_model_folder(self.engine.model)
        client = ChatServer(
            self.engine.base_url,
            concurrency=self.engine.concurrency,
            request_timeout=self.engine.request_timeout,
            chat_template_kwargs=self.sampling.chat_template_kwargs,
        )
        server = await self.stack.enter_async_context(client)

        known = await _recall(self.engine, self.cache, server)
        if known is None:
            info = await self._start_up(server, self.engine.context)
            return _OpenedEngine(engine=server, info=info)
        start_up = partial(self._start_up, server, known.context)
        return _OpenedEngine(engine=server, info=known, start_up=start_up)

    @property
    def _is_managed(self) -> bool:
        """Whether the program starts the server itself."""
        return self.engine.name == "managed"

    async def _start_up(self, server: ChatServer, context: int | None) -> EngineInfo:
        """Check a server, which is started first if it is managed, and return its description.

        Args:
            server: Client of the server.
            context: Context length to check; None for that of the server.

        Raises:
            EngineError: The server cannot be used.
        """
        from touche_llm.doctor.checks import list_checks
        from touche_llm.doctor.examination import connect
        from touche_llm.doctor.registry import Occasion
        from touche_llm.doctor.survey import ServerUnderTest

        if self._is_managed:
            server.base_url = await self._start_server()

        values = {"model": self.engine.model_name, "context": context}
        count = len(list_checks(Occasion.START_UP))
        with self.progress.stage("checking the server", count) as step:
            subject = ServerUnderTest(
                server=server,
                engine=self.engine.model_copy(update=values),
                sampling=self.sampling,
                schemas=self.schemas,
                warn=self.progress.warn,
                step=step,
            )
            examined = await connect(subject)

        server.dialect = examined.dialect
        store_engine_info(examined.info, self.cache)
        return examined.info

    async def _start_server(self) -> str:
        """Start a vLLM server, which ends with the stack, and return its base URL."""
        from touche_llm.engines.managed import serve

        serving = serve(
            check_model_folder(self.engine.model),
            self.engine.options,
            self.cache.path.with_name(LOG),
            context=self.engine.context,
        )
        return await self.stack.enter_async_context(serving)


async def _recall(
    settings: ModelSettings,
    cache: Cache,
    client: HttpClient,
    purpose: PoolingPurpose | None = None,
) -> EngineInfo | None:
    """Return the stored description of an engine whose start-up check can wait.

    A run whose answers are all stored then needs no server.

    Args:
        settings: Settings of the engine. If they name no model, the server has to say which one it
            serves, and it must be the described one.
        cache: Cache with descriptions of engines.
        client: Client of the server.
        purpose: What an embedding model or cross-encoder is for; None for a language model.

    Returns:
        The description; None if no description fits the settings, or several with different
        contexts.
    """
    if cache.mode is not CacheMode.REUSE:
        return None

    if get_configured_name(settings) is not None:
        fitting = find_fitting_engines(settings, cache, purpose)
    else:
        served = await _look_at_server(settings, client, purpose)
        if served is None:
            return None
        fitting = _find_described(served, settings, cache, purpose)

    contexts = {known.context for known in fitting}
    if len(contexts) != 1:
        return None
    return choose_engine(fitting, cache, purpose)


def _find_described(
    served: EngineInfo,
    settings: ModelSettings,
    cache: Cache,
    purpose: PoolingPurpose | None,
) -> list[EngineInfo]:
    """Return the stored descriptions of the engine that a server says it is."""
    named_settings = settings.model_copy(update={"model": served.model})
    described: list[EngineInfo] = []
    for known in find_fitting_engines(named_settings, cache, purpose):
        if known.context == served.context and known.engine == served.engine:
            described.append(known)
    return described


async def _look_at_server(
    settings: ModelSettings, client: HttpClient, purpose: PoolingPurpose | None
) -> EngineInfo | None:
    """Return the description of the only model of a server.

    None if the server does not reply soon, or serves several models: the start-up check, which
    follows then, reports it.
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
    """Open the client of an embedding model or of a cross-encoder.

    In a replay, and if the settings have no address, there is no server: the cache must have all
    results.

    Args:
        purpose: `embedding` or `score`.
        settings: Settings of the model and its server.
        answers: File of stored results, and its use.
        dimensions: Dimensions of the vectors; None for the model's own.

    Raises:
        DataError: The cache cannot be opened.
        EngineError: The server cannot be used.
        UsageError: A replay does not know the model.
    """
    async with AsyncExitStack() as stack:
        cache = stack.enter_context(Cache(answers.file, answers.mode))
        if cache.mode is CacheMode.REPLAY or settings.url is None:
            info = replay_engine_info(settings, cache, purpose)
            opened: _OpenedEngine[PoolingEngine] = _OpenedEngine(engine=None, info=info)
        else:
            client = await stack.enter_async_context(_connect_pooling(purpose, settings))
            opened = await _open_pooling_server(client, purpose, settings, cache, dimensions)

        yield PoolingClient(
            engine_info=opened.info,
            engine=opened.engine,
            start_up=opened.start_up,
            cache=cache,
            purpose=purpose,
            retry_for=settings.retry_for,
            batch=settings.batch,
            concurrency=settings.concurrency,
            dimensions=dimensions,
        )


def _connect_pooling(purpose: PoolingPurpose, settings: PoolingConfig) -> HttpClient:
    """Return the HTTP client of a server, to be opened; nothing is sent yet."""
    # Imported here because the HTTP libraries are slow to load.
    from touche_llm.engines.http import HttpClient

    assert settings.url is not None, "else there is no server"
    section = SECTIONS[purpose]
    return HttpClient(
        settings.url,
        concurrency=settings.concurrency,
        request_timeout=settings.request_timeout,
        section=section,
        address=f"`{section}.url`",
    )


async def _open_pooling_server(
    client: HttpClient,
    purpose: PoolingPurpose,
    settings: PoolingConfig,
    cache: Cache,
    dimensions: int | None,
) -> _OpenedEngine[PoolingEngine]:
    """Return the engine of a server, after its start-up check unless that can wait."""
    server = PoolingServer(client, purpose, settings)

    async def start_up() -> EngineInfo:
        info = await server.connect(dimensions)
        store_engine_info(info, cache, purpose)
        return info

    known = await _recall(settings, cache, client, purpose)
    if known is None:
        return _OpenedEngine(engine=server, info=await start_up())
    return _OpenedEngine(engine=server, info=known, start_up=start_up)
