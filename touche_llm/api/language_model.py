"""A language model as a program uses it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from touche_llm.api.progress import default_progress
from touche_llm.data import concurrency
from touche_llm.engines.answer_function import FUNCTION, AnswerFunction
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import UsageError
from touche_llm.judging.requests import Requester, make_requester
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.settings.section import read_settings

if TYPE_CHECKING:
    pass
from touche_llm.api.opening import open_client


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

        engine_values = read_settings(EngineConfig, engine, "engine").model_dump(exclude_unset=True)
        if url is not None:
            engine_values["base_url"] = url
        if name is not None:
            engine_values["model"] = name

        cache_values: dict[str, Any] = {"mode": cache_mode}
        if cache is not None:
            cache_values["file"] = cache
        elif answers is not None:
            cache_values["mode"] = CacheMode.OFF

        self._engine = read_settings(EngineConfig, engine_values, "engine")
        self._sampling = read_settings(SamplingConfig, sampling, "sampling")
        self._cache = read_settings(CacheConfig, cache_values, "cache")
        self._answers = answers
        self._stack = AsyncExitStack()
        self._client: ModelClient | None = None

    def __repr__(self) -> str:
        has_cache = self._cache.mode is not CacheMode.OFF
        cache = f"cache {self._cache.file}" if has_cache else "no cache"
        return f"<LanguageModel {self._find_name()}, {cache}>"

    def _find_name(self) -> str:
        """Return the name of the model, or while it is unknown what answers."""
        if self._client is not None:
            return self._client.engine_info.model
        if self._engine.model_name is not None:
            return self._engine.model_name
        return FUNCTION if self._answers is not None else self._engine.base_url

    @property
    def info(self) -> EngineInfo:
        """Name, revision and context of the model, as the server reports them."""
        return self.requester.client.engine_info

    @property
    def requester(self) -> Requester:
        """Client of the open model, and the builder of its requests."""
        if self._client is None:
            raise UsageError(
                "the model is not open; use it in a block: `with LanguageModel(...) as model:`"
            )
        return make_requester(self._client)

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
