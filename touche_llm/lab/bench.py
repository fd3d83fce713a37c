"""The bench of a run: its configuration, topics and candidates, the prompts to edit, and the open model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from touche_llm.api.opening import open_client
from touche_llm.api.progress import SilentProgress, default_progress
from touche_llm.api.retrieve import add_objects
from touche_llm.config.configuration import Config
from touche_llm.data import concurrency
from touche_llm.data.records import Candidate, Topic
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.requests import RequestBuilder, make_request_builder
from touche_llm.kinds.known import get_kind
from touche_llm.lab.runs_of_lab import Workplace
from touche_llm.llm.cache import CacheMode
from touche_llm.prompts.prompt import Prompt, Purpose
from touche_llm.prompts.purposes import CatalogEntry, find_prompt, load, purposes_of
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.stages import retrieve_candidates

PURPOSE = "judge"
# Seconds after which a request about a pinned document is not retried: the page reports the server
# as gone.
_RETRY_FOR = 2.0


@dataclass
class Bench:
    """What prompts of a run are tried with.

    Attributes:
        run: Name of the run; empty for a configuration alone.
        config: Its configuration.
        context: Its context, with the corpus.
        directory: Its folder; None for a configuration alone.
        prompts: Folder of the user's templates for the task.
    """

    run: str
    config: Config
    context: RunContext
    directory: RunDirectory | None
    prompts: Path
    _builder: RequestBuilder | None = None
    _model: AsyncExitStack = field(default_factory=AsyncExitStack)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def purpose(self) -> Purpose:
        """Purpose of the prompts that the bench is for."""
        return purposes_of(self.context.task)[PURPOSE]

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """Topics by id, with the objects that the model found in the run."""
        found = [] if self.directory is None else self.directory.read_objects()
        return {topic.id: topic for topic in add_objects(self.context.topics, found)}

    def find_topic(self, topic: str) -> Topic:
        """Return a topic; raise DataError if there is none."""
        if topic not in self.topics:
            raise DataError(f"topic {topic:.80}: not in {self.config.topics}")
        return self.topics[topic]

    @cached_property
    def _rankings(self) -> Mapping[str, list[Candidate]]:
        if self.directory is None or not self.directory.candidates_file.exists():
            return {}
        are_made = get_kind(self.context.task).makes_documents
        return self.context.read_candidates(
            self.directory.candidates_file, are_made=are_made
        ).rankings

    def rank(self, topic: Topic) -> list[Candidate]:
        """Return the candidates of a topic: those of the run, else those of a search."""
        if topic.id in self._rankings:
            return self._rankings[topic.id]
        alone = self.config.model_copy(update={"topic": (topic.id,), "limit_topics": None})
        with RunContext(alone, SilentProgress()) as context:
            return asyncio.run(retrieve_candidates(context)).rankings.get(topic.id, [])

    def list_names(self) -> list[str]:
        """Return the names of prompts that may be read: the run's, the task's own, and those of the user's folder."""
        names = [
            self.config.prompts.judge,
            PURPOSE,
            *map(str, sorted(self.prompts.glob("*.jinja"))),
        ]
        return list(dict.fromkeys(names))

    def list_prompts(self) -> dict[str, CatalogEntry]:
        """Return the judge prompts by name, each template once."""
        found: dict[Path, tuple[str, CatalogEntry]] = {}
        for name in self.list_names():
            entry = self.find_prompt(name)
            if entry.loaded is None or entry.loaded[0].name == PURPOSE:
                found.setdefault(entry.path.resolve(), (name, entry))
        return dict(found.values())

    def find_baseline(self, name: str) -> str | None:
        """Return the prompt to compare another one with: the run's, else the task's own.

        None if it is both.
        """
        prompts, path = self.list_prompts(), self.find_prompt(name).path.resolve()
        names = [each for each in (self.config.prompts.judge, PURPOSE) if each in prompts]
        return next((each for each in names if prompts[each].path.resolve() != path), None)

    def find_prompt(self, name: str) -> CatalogEntry:
        """Return a prompt; raise UsageError if it is not among the names."""
        self._check_name(name)
        return find_prompt(self.context.task, name, self.config.prompts.folder)

    def load(self, name: str, text: str | None = None) -> Prompt:
        """Load a prompt of these names, with another text if one is given.

        Raise PromptError if it is invalid.
        """
        self._check_name(name)
        how: dict[str, Any] = {"judge_per": self.config.judge_per, "text": text}
        return load(self.context.task, self.purpose, name, self.config.prompts.folder, **how)

    def _check_name(self, name: str) -> None:
        if name not in self.list_names():
            raise UsageError(
                f"{name:.200}: no judge prompt here; there are {', '.join(self.list_names())}"
            )

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(self.config.engine.base_url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    async def open_model(self) -> RequestBuilder:
        """Return the builder of the requests to the model, opened at the first call.

        Raises:
            EngineError: The server cannot be used.
            UsageError: The engine answers in rounds.
        """
        async with self._opening:
            if self._builder is None:
                settings, cache = self.config.engine, self.config.cache
                if settings.name == "ray" and cache.mode is not CacheMode.REPLAY:
                    raise UsageError(
                        "engine.name: ray answers no single requests; start the lab with a server"
                    )
                engine = settings.model_copy(
                    update={"retry_for": min(settings.retry_for, _RETRY_FOR)}
                )
                opening = open_client(
                    engine, self.config.sampling, cache, progress=default_progress()
                )
                client = await concurrency.run_async(self._model.enter_async_context(opening))
                self._builder = make_request_builder(client)
            return self._builder

    async def close_model(self) -> None:
        """Close the model, so that the next request looks at the server again."""
        self._builder = None
        await concurrency.run_async(self._model.aclose())


class Benches:
    """The benches of a lab, each opened at its first use.

    Attributes:
        lab: The workplace.
        pages: Pages of the latest comparisons of prompts, by id.
    """

    def __init__(self, lab: Workplace) -> None:
        self.lab = lab
        self.pages: dict[str, str] = {}
        self._open: dict[str, tuple[object, Bench]] = {}

    def get(self, run: str) -> Bench:
        """Return the bench of a run, opened again if the run changed."""
        config = self.lab.configure(run)
        directory = self.lab.find_run(run) if run else None
        state = None if directory is None else directory.config_file.stat().st_mtime_ns
        if run not in self._open or self._open[run][0] != state:
            context = RunContext(config, SilentProgress())
            folder = self.lab.prompts_folder(config) / context.task.name
            self._open[run] = (state, Bench(run, config, context, directory, folder))
        return self._open[run][1]

    async def close(self) -> None:
        """Close all models and corpora."""
        for _, bench in self._open.values():
            await bench.close_model()
            # After what still runs in that thread for a page that went away.
            await self.lab.apart(bench.context.__exit__)
