"""Opening of models: language models, embedding models and cross-encoders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from touche_llm.api.progress import Progress, SilentProgress, default_progress
from touche_llm.data import concurrency
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
from touche_llm.errors import EngineError, UsageError
from touche_llm.judging.requests import RequestBuilder, make_request_builder
from touche_llm.llm.cache import Cache, CacheMode, Entry
from touche_llm.llm.client import StartUp
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import Engine, EngineInfo, Rejected, Transient
from touche_llm.llm.request import EMPTY_CHAT, hash_content, place_system_message
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.settings.section import read_settings

if TYPE_CHECKING:
    from touche_llm.engines.http import HttpClient

# JSON schemas of answers.
Schemas = Sequence[Mapping[str, Any]]
# `open_pooling`, or a function in its place.
OpenPooling = Callable[..., AbstractAsyncContextManager[PoolingClient]]
# Settings of an engine of chats or of a pooling model.
_ModelSettings = EngineConfig | PoolingConfig
# Log of a vLLM server or a Ray Data job that the program starts, beside the answer cache.
LOG = "vllm.log"
# Within which a server without a named model has to say who it is.
_LOOK_SECONDS = 5.0
# Tokens; longer than any document.
_ENDLESS = 2**30


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
        context=engine.context or _ENDLESS,
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
    """Return the client of a server, its description, and its start-up check if that can wait.

    `stack` ends all.
    """
    # Imported here because the HTTP libraries are slow to load, and most commands need no engine.
    from touche_llm.doctor.card import Survey
    from touche_llm.doctor.checks import RUN_PROBES, connect
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
        with progress.stage("checking the server", len(RUN_PROBES)) as step:
            facts = await connect(Survey(server, settings, sampling, schemas, progress.warn, step))
        store_engine_info(facts, cache)
        return facts

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
    settings: _ModelSettings,
    cache: Cache,
    client: HttpClient,
    purpose: PoolingPurpose | None = None,
) -> EngineInfo | None:
    """Return the stored description of an engine whose start-up check can wait.

    None if no single one fits.

    Where no model is named, the server has to say at once that it is the described one.
    """
    from touche_llm.engines.identification import identify

    if cache.mode is not CacheMode.REUSE:
        return None
    found = None
    if _get_model_name(settings) is None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                found = (await identify(client, settings, _get_section(purpose)))[0]
        except (EngineError, Transient, Rejected, TimeoutError):
            return None  # the start-up check reports it
        settings = settings.model_copy(update={"model": found.model})
    fitting = [
        known
        for known in _find_fitting(settings, cache, purpose)
        if found is None or (known.context, known.engine) == (found.context, found.engine)
    ]
    return (
        _choose(fitting, cache, purpose) if len({known.context for known in fitting}) == 1 else None
    )


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

        async with HttpClient(
            settings.url, concurrency=settings.concurrency, request_timeout=settings.request_timeout
        ) as client:
            server = PoolingServer(client, purpose, settings)

            async def start_up() -> EngineInfo:
                facts = await server.connect(dimensions)
                store_engine_info(facts, cache, purpose)
                return facts

            known = await _recall(settings, cache, client, purpose)
            facts, later = (await start_up(), None) if known is None else (known, start_up)
            yield PoolingClient(engine_info=facts, engine=server, start_up=later, **policy)


def store_engine_info(
    facts: EngineInfo, cache: Cache, purpose: PoolingPurpose | None = None
) -> None:
    """Store the facts about an engine in the cache, for a replay without the engine."""
    kind = name_kind(purpose)
    # A part that came later is left out where it is not used, so that earlier keys stay valid.
    value = facts.model_dump(exclude=None if facts.serving else {"serving"})
    cache.put(Entry(key=hash_content(kind, **value), kind=kind, model=facts.model, value=value))


def assume_engine_info(
    settings: _ModelSettings, cache: Cache, purpose: PoolingPurpose | None = None
) -> EngineInfo:
    """Return the facts about an engine without a request: from the cache, else from the configuration.

    For an unknown engine, `engine` is empty, a missing model too, and a missing context cuts no
    document.
    """
    if fitting := _find_fitting(settings, cache, purpose):
        return _choose(fitting, cache, purpose)
    model, context = _get_model_name(settings) or "", settings.context or _ENDLESS
    return EngineInfo(
        model=model, revision=settings.revision, context=context, overhead=0, engine=""
    )


def replay_engine_info(
    settings: _ModelSettings, cache: Cache, purpose: PoolingPurpose | None = None
) -> EngineInfo:
    """Return the facts about an engine from the cache.

    Raise UsageError if it does not know the engine.
    """
    if fitting := _find_fitting(settings, cache, purpose):
        return _choose(fitting, cache, purpose)
    if purpose is not None and cache.mode is not CacheMode.REPLAY:
        raise UsageError(
            f"{SECTIONS[purpose]}.url: missing; give the address of a server with the model"
        )
    models = sorted({entry.model for entry in cache.find(name_kind(purpose))})
    sought = f"model {_get_model_name(settings) or 'any'}, revision {settings.revision!r}"
    sought += f", context {settings.context}" if settings.context is not None else ""
    raise UsageError(
        f"{cache.path}: holds {', '.join(models) or 'no model'}; nothing to replay of {sought}"
    )


def name_kind(purpose: PoolingPurpose | None) -> str:
    """Return the kind of the cache entries with facts about a pooling model or, with None, an engine of chats."""
    return "engine" if purpose is None else f"{purpose} engine"


def _get_section(purpose: PoolingPurpose | None) -> str:
    return "engine" if purpose is None else SECTIONS[purpose]


def _get_model_name(settings: _ModelSettings) -> str | None:
    return settings.model_name if isinstance(settings, EngineConfig) else settings.model


def _find_fitting(
    settings: _ModelSettings, cache: Cache, purpose: PoolingPurpose | None
) -> list[EngineInfo]:
    """Return the cached facts about engines that fit the configured model, revision and context."""
    known, model = (
        [entry.read(EngineInfo) for entry in cache.find(name_kind(purpose))],
        _get_model_name(settings),
    )
    models = sorted({facts.model for facts in known})
    if model is None and len(models) > 1:
        choice = f"choose one with `{_get_section(purpose)}.model`"
        raise UsageError(f"{cache.path}: holds answers of {', '.join(models)}; {choice}")
    return [
        facts
        for facts in known
        if facts.model == (model or facts.model)
        and facts.revision == settings.revision
        and (settings.context is None or facts.context == settings.context)
    ]


def _choose(fitting: list[EngineInfo], cache: Cache, purpose: PoolingPurpose | None) -> EngineInfo:
    contexts = sorted({facts.context for facts in fitting})
    if len(contexts) > 1:
        raise UsageError(
            f"{cache.path}: {fitting[0].model} was used with contexts of {', '.join(map(str, contexts))} tokens, "
            f"and documents were truncated to fit; choose one with `{_get_section(purpose)}.context`"
        )
    # The smallest overhead needs no measurement that another did not need.
    return min(fitting, key=lambda facts: (facts.overhead, facts.engine))


class LanguageModel:
    """A model behind an OpenAI-compatible server, with an answer cache.

    A context manager: it connects at the start of the block, and closes at its end. Answers are
    stored as they arrive, so an interrupted program resumes where it stopped.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        answers: AnswerFunction | None = None,
        cache: Path | str | None = None,
        cache_mode: CacheMode | str = CacheMode.REUSE,
        engine: EngineConfig | None = None,
        sampling: SamplingConfig | None = None,
    ) -> None:
        """Set up the model without connecting.

        Args:
            url: Base URL of the server; None for that of `engine`, by default
                http://127.0.0.1:8000.
            name: Served name of the model; not needed if the server has only one.
            answers: Function that answers in place of a server, from a request to the text of its
                answer or to a `FunctionAnswer`; to try a pipeline, a template or a notebook.
            cache: File of the answers (`.sqlite`), or a cassette to replay (`.jsonl`); None for
                `.touche-llm/answers.sqlite`, and for no file with a function, which may change.
            cache_mode: `reuse`; `replay` sends nothing, and a missing answer is an error; `refresh`
                sends everything again; `off`.
            engine: All other settings of the engine, such as revision, context, concurrency and
                timeouts.
            sampling: Sampling parameters.

        Raises:
            UsageError: A setting is invalid, or both a server and a function are given.
        """
        if answers is not None and url is not None:
            raise UsageError("answers: given beside a url; give a function or a server")
        if answers is not None and not callable(answers):
            raise UsageError(f"answers: {answers!r:.80}: must be a function")
        values = read_settings(EngineConfig, engine, "engine").model_dump(exclude_unset=True)
        if url is not None:
            values["base_url"] = url
        if name is not None:
            values["model"] = name
        stored: dict[str, Any] = {"mode": cache_mode}
        if cache is not None:
            stored["file"] = cache
        elif answers is not None:
            stored["mode"] = CacheMode.OFF
        self._engine = read_settings(EngineConfig, values, "engine")
        self._sampling = read_settings(SamplingConfig, sampling, "sampling")
        self._cache = read_settings(CacheConfig, stored, "cache")
        self._answers = answers
        self._stack = AsyncExitStack()
        self._client: ModelClient | None = None

    def __repr__(self) -> str:
        name = self._engine.model_name if self._client is None else self._client.engine_info.model
        if name is None:
            name = self._engine.base_url if self._answers is None else FUNCTION
        cache = "no cache" if self._cache.mode is CacheMode.OFF else f"cache {self._cache.file}"
        return f"<LanguageModel {name}, {cache}>"

    @property
    def info(self) -> EngineInfo:
        """Name, revision and context of the model, as the server reports them."""
        return self.builder.model.engine_info

    @property
    def builder(self) -> RequestBuilder:
        """Builder of the requests to the open model."""
        if self._client is None:
            raise UsageError(
                "the model is not open; use it in a block: `with LanguageModel(...) as model:`"
            )
        return make_request_builder(self._client)

    def __enter__(self) -> Self:
        if self._client is not None:
            raise UsageError("the model is open already; use another LanguageModel")
        opening = open_client(
            self._engine,
            self._sampling,
            self._cache,
            answers=self._answers,
            progress=default_progress(),
        )
        self._client = concurrency.run(self._stack.enter_async_context(opening))
        return self

    def __exit__(self, *_: object) -> None:
        self._client = None
        concurrency.run(self._stack.aclose())
