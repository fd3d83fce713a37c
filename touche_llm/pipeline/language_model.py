"""The language model of the library: settings, then an open client."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from touche_llm.data import concurrency
from touche_llm.data.settings import read_settings
from touche_llm.errors import UsageError
from touche_llm.judging.pointwise import RequestBuilder
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.model import ModelClient
from touche_llm.llm.settings import CacheConfig, EngineConfig, SamplingConfig
from touche_llm.pipeline.engines import make_request_builder, open_model
from touche_llm.pipeline.progress import default_progress


class LanguageModel:
    """A model behind an OpenAI-compatible server, with an answer cache.

    A context manager, also an asynchronous one: it connects at the start of the block, and closes at its end. Answers
    are stored as they arrive, so an interrupted program resumes where it stopped.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        cache: Path | str = Path(".touche-llm/answers.sqlite"),
        cache_mode: CacheMode | str = CacheMode.REUSE,
        engine: EngineConfig | None = None,
        sampling: SamplingConfig | None = None,
    ) -> None:
        """Set up the model without connecting.

        Args:
            url: Base URL of the server; None for that of `engine`, by default http://127.0.0.1:8000.
            name: Served name of the model; not needed if the server has only one.
            cache: File of the answers (`.sqlite`), or a cassette to replay (`.jsonl`).
            cache_mode: `reuse`; `replay` sends nothing, and a missing answer is an error; `refresh` sends everything
                again; `off`.
            engine: All other settings of the engine, such as revision, context, concurrency and timeouts.
            sampling: Sampling parameters.

        Raises:
            UsageError: A setting is invalid.
        """
        engine = read_settings(EngineConfig, engine, "engine")
        given = {"base_url": url, "model": name}
        values = engine.model_dump(exclude_unset=True) | {
            key: value for key, value in given.items() if value is not None
        }
        self._engine = read_settings(EngineConfig, values, "engine")
        self._sampling = read_settings(SamplingConfig, sampling, "sampling")
        self._cache = read_settings(CacheConfig, {"file": cache, "mode": cache_mode}, "cache")
        self._stack: AsyncExitStack | None = None
        self._client: ModelClient | None = None

    def __repr__(self) -> str:
        name = self._engine.model_name if self._client is None else self._client.engine_info.model
        state = "closed" if self._client is None else "open"
        return f"<LanguageModel {name or self._engine.base_url}, cache {self._cache.file}, {state}>"

    @property
    def info(self) -> EngineInfo:
        """Name, revision and context of the model, as the server reports them."""
        return self.builder.model.engine_info

    @property
    def builder(self) -> RequestBuilder:
        """Builder of the requests; raises UsageError unless the model is open."""
        if self._client is None:
            raise UsageError("the model is not open; use it in a block: `with LanguageModel(...) as model:`")
        return make_request_builder(self._client, self._engine, self._sampling)

    def __enter__(self) -> Self:
        concurrency.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        concurrency.run(self._close())

    async def __aenter__(self) -> Self:
        await concurrency.run_async(self._open())
        return self

    async def __aexit__(self, *_: object) -> None:
        await concurrency.run_async(self._close())

    async def _open(self) -> None:
        if self._stack is not None:
            raise UsageError("the model is open already; use another LanguageModel")
        async with AsyncExitStack() as stack:
            opening = open_model(self._engine, self._sampling, self._cache, progress=default_progress())
            self._client = await stack.enter_async_context(opening)
            self._stack = stack.pop_all()

    async def _close(self) -> None:
        stack, self._stack, self._client = self._stack, None, None
        if stack is not None:
            await stack.aclose()
