"""The bench of a run: topics, candidates, the prompts to edit, and the open model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from touche_llm.api.opening import open_client
from touche_llm.api.progress import SilentProgress, default_progress
from touche_llm.api.retrieve import add_objects
from touche_llm.config.configuration import Config
from touche_llm.data import concurrency
from touche_llm.data.records import Candidate, Topic
from touche_llm.errors import DataError, UsageError
from touche_llm.judging.requests import Requester, make_requester
from touche_llm.kinds.known import get_kind
from touche_llm.lab.runs_of_lab import Workplace, check_inputs
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
    _requester: Requester | None = None
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
        """Candidates of the run by topic; empty before its first stage, and without a run."""
        if self.directory is None or not self.directory.candidates_file.exists():
            return {}
        run = self.context.read_candidates(
            self.directory.candidates_file,
            are_made=get_kind(self.context.task).makes_documents,
        )
        return run.rankings

    def rank(self, topic: Topic) -> list[Candidate]:
        """Return the candidates of a topic: those of the run, else those of a search."""
        if topic.id in self._rankings:
            return self._rankings[topic.id]

        # A search for this topic alone, even if the run is limited to the first topics.
        search_config = self.config.model_copy(update={"topic": (topic.id,), "limit_topics": None})
        with RunContext(search_config, SilentProgress()) as context:
            candidates = asyncio.run(retrieve_candidates(context))
        return candidates.rankings.get(topic.id, [])

    def list_names(self) -> list[str]:
        """Return the names of prompts that may be read.

        They are the run's, the task's own, and those in the user's folder.
        """
        templates = sorted(self.prompts.glob("*.jinja"))
        names = [self.config.prompts.judge, PURPOSE, *map(str, templates)]
        return list(dict.fromkeys(names))

    def list_prompts(self) -> dict[str, CatalogEntry]:
        """Return the judge prompts by name; a template that has several names, by the first."""
        prompts: dict[str, CatalogEntry] = {}
        listed_paths: set[Path] = set()
        for name in self.list_names():
            entry = self.find_prompt(name)
            path = entry.path.resolve()
            if path not in listed_paths and _may_judge(entry):
                listed_paths.add(path)
                prompts[name] = entry
        return prompts

    def find_baseline(self, name: str) -> str | None:
        """Return the name of the prompt to compare another one with; None if there is no other.

        It is the prompt of the run or, to compare that one, the task's own.
        """
        prompts = self.list_prompts()
        path = self.find_prompt(name).path.resolve()
        # The name of the task's own judge prompt is that of its purpose, `judge`.
        own_prompt = PURPOSE
        for baseline in (self.config.prompts.judge, own_prompt):
            if baseline in prompts and prompts[baseline].path.resolve() != path:
                return baseline
        return None

    def find_prompt(self, name: str) -> CatalogEntry:
        """Return a prompt; raise UsageError if it is not among the names."""
        self._check_name(name)
        return find_prompt(self.context.task, name, self.config.prompts.folder)

    def load(self, name: str, text: str | None = None) -> Prompt:
        """Load a judge prompt.

        Args:
            name: Name of the prompt.
            text: Text in place of that of its file; None for the file's.

        Raises:
            PromptError: The prompt is invalid.
            UsageError: There is no prompt of this name.
        """
        self._check_name(name)
        return load(
            self.context.task,
            self.purpose,
            name,
            self.config.prompts.folder,
            judge_per=self.config.judge_per,
            text=text,
        )

    def _check_name(self, name: str) -> None:
        """Raise UsageError if a prompt is not among the names."""
        names = self.list_names()
        if name not in names:
            known = ", ".join(names)
            raise UsageError(f"{name:.200}: no judge prompt here; there are {known}")

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(self.config.engine.base_url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    async def open_model(self) -> Requester:
        """Return the requester of the requests to the model, opened at the first call.

        Raises:
            EngineError: The server cannot be used.
            UsageError: The engine answers in rounds.
        """
        async with self._opening:
            if self._requester is None:
                self._requester = await self._open_requester()
            return self._requester

    async def _open_requester(self) -> Requester:
        """Open the client of the model, which `close_model` closes, and return its requester."""
        cache = self.config.cache
        engine = self.config.engine
        if engine.name == "ray" and cache.mode is not CacheMode.REPLAY:
            problem = "engine.name: ray answers no single requests"
            raise UsageError(f"{problem}; start the lab with a server")

        # Somebody waits at the page, so a server that does not answer is given up sooner than by a
        # run.
        retry_for = min(engine.retry_for, _RETRY_FOR)
        impatient_engine = engine.model_copy(update={"retry_for": retry_for})
        opening = open_client(
            impatient_engine,
            self.config.sampling,
            cache,
            progress=default_progress(),
        )
        client = await concurrency.run_async(self._model.enter_async_context(opening))
        return make_requester(client)

    async def close_model(self) -> None:
        """Close the model, so that the next request looks at the server again."""
        self._requester = None
        await concurrency.run_async(self._model.aclose())


def _may_judge(entry: CatalogEntry) -> bool:
    """Return whether a template is a judge prompt, or cannot be loaded."""
    if entry.loaded is None:
        return True
    purpose, _ = entry.loaded
    return purpose.name == PURPOSE


@dataclass(frozen=True, slots=True)
class _OpenBench:
    """Bench that was opened.

    Attributes:
        bench: The bench.
        changed: When its configuration file was changed before, in nanoseconds; None without a run.
    """

    bench: Bench
    changed: int | None

    def is_current(self, config: Config, changed: int | None) -> bool:
        """Return whether a run still has the configuration that the bench was opened with."""
        return self.changed == changed and self.bench.config == config


class Benches:
    """The benches of a lab, each opened at its first use.

    Attributes:
        lab: The workplace.
        pages: Pages of the latest comparisons of prompts, by id.
    """

    def __init__(self, lab: Workplace) -> None:
        self.lab = lab
        self.pages: dict[str, str] = {}
        self._open: dict[str, _OpenBench] = {}

    def get(self, run: str) -> Bench:
        """Return the bench of a run, opened again if the run or its settings changed.

        Raises:
            DataError: Somebody else wrote the run's folder, and its topics or corpus are not read.
        """
        loaded = self.lab.load(run)
        check_inputs(loaded, "topics", "corpus")
        config = loaded.config
        # Without a run, the bench is for a configuration alone.
        directory: RunDirectory | None = None
        changed: int | None = None
        if run:
            directory = self.lab.find_run(run)
            changed = directory.config_file.stat().st_mtime_ns

        opened = self._open.get(run)
        if opened is not None and opened.is_current(config, changed):
            return opened.bench

        context = RunContext(config, SilentProgress())
        bench = Bench(
            run=run,
            config=config,
            context=context,
            directory=directory,
            prompts=self.lab.prompts_folder(config) / context.task.name,
        )
        self._open[run] = _OpenBench(bench, changed)
        return bench

    async def close(self) -> None:
        """Close all models and corpora."""
        for opened in self._open.values():
            await opened.bench.close_model()
            # After what still runs in that thread for a page that went away.
            await self.lab.call_in_thread(opened.bench.context.__exit__)
