"""Servers in this process, to which every client of a model connects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from touche_llm.api import opening as engines
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.engines.settings import PoolingConfig
from touche_llm.engines.token_estimates import EstimatingTokenizer
from touche_llm.llm.protocol import Completion, Engine, EngineInfo
from touche_llm.llm.request import MAX_SAMPLES, Request

MODEL = "scripted"
CONTEXT = 32768
# Modules that announce requests, each of which makes its engines by itself.
_ANNOUNCING = ("touche_llm.runs.dry_run", "touche_llm.prompt_lab.comparison")


class RefusingServer:
    """Server that refuses all samples of a request but the last, and answers that as a dry run assumes.

    So all samples of every request are stored, and the requests that depend on answers are those of
    a dry run. It serves pooling models too.

    Attributes:
        requests: Requests for completions that it received.
        texts: Texts that it received for vectors or scores.
        dry_engines: Engines in its place, of everything that announces requests.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.texts: list[str] = []
        self.dry_engines: list[DryRunEngine] = []
        self.answers = DryRunEngine()

    @property
    def counter(self) -> EstimatingTokenizer:
        return EstimatingTokenizer()

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        if request.sample < MAX_SAMPLES - 1:
            return Completion(
                text="",
                finish_reason="stop",
                prompt_tokens=100,
                completion_tokens=1,
                refusal="not yet",
            )
        return await self.answers.complete(request)

    async def open(self, opener: engines._EngineOpener) -> engines._OpenedEngine[Engine]:
        """Open the server as the engine of the opener's settings."""
        settings = opener.engine
        info = EngineInfo(
            model=settings.model_name or MODEL,
            revision=settings.revision,
            context=settings.context or CONTEXT,
            overhead=0,
            engine="in this process",
        )
        store_engine_info(info, opener.cache)
        return engines._OpenedEngine(engine=self, info=info)

    @property
    def announced(self) -> set[str]:
        """Keys of the requests for completions that were announced."""
        return {key for engine in self.dry_engines for key in engine.answered}

    @property
    def first_samples(self) -> set[str]:
        """Keys of the received requests, without those of further samples."""
        return {request.key for request in self.requests if request.sample == 0}

    def list_sent(self) -> list[str]:
        """Return the keys of the received requests, and the texts for vectors or scores."""
        return [*(request.key for request in self.requests), *self.texts]

    def list_announced(self) -> list[str]:
        """Return the names of the prompts of announced requests, and of pooling models."""
        return [name for engine in self.dry_engines for name in engine.usage]

    def forget(self) -> None:
        """Forget all requests."""
        self.requests.clear()
        self.texts.clear()
        self.dry_engines.clear()


class _PoolingEngine:
    """Engine of a pooling model of the server."""

    def __init__(self, server: RefusingServer, *settings: Any) -> None:
        self._server = server
        (self._settings,) = (each for each in settings if isinstance(each, PoolingConfig))

    @property
    def counter(self) -> EstimatingTokenizer:
        return EstimatingTokenizer()

    async def connect(self, dimensions: int | None = None) -> EngineInfo:
        return EngineInfo(
            model=self._settings.model or MODEL,
            revision=self._settings.revision,
            context=self._settings.context or CONTEXT,
            overhead=0,
            engine="in this process",
        )

    async def embed(self, texts: Sequence[str], dimensions: int | None) -> list[bytes]:
        self._server.texts.extend(texts)
        return await self._server.answers.embed(texts, dimensions)

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        self._server.texts.extend(documents)
        return await self._server.answers.score(query, documents)


@contextmanager
def serving() -> Iterator[RefusingServer]:
    """Serve all clients that connect to the engine of their settings, and watch what is announced."""
    server = RefusingServer()

    class WatchedDryRun(DryRunEngine):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            server.dry_engines.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines._EngineOpener, "open", lambda opener: server.open(opener))
        patch.setattr(engines, "PoolingServer", partial(_PoolingEngine, server))
        for module in _ANNOUNCING:
            patch.setattr(f"{module}.DryRunEngine", WatchedDryRun)
        # A batch export counts tokens as the server does.
        patch.setattr("touche_llm.runs.batch.ChatTokenizer", lambda *_: EstimatingTokenizer())
        yield server
