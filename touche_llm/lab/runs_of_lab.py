"""What the lab works on: runs with their configurations and judgments, and the judgments that its user may see."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from touche_llm.api.dataset import Dataset
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.config.task_copies import find_copy
from touche_llm.data.locks import lock_folder
from touche_llm.data.records import Topic
from touche_llm.errors import DataError, Warn
from touche_llm.evaluation.qrels import Qrels, read_qrels
from touche_llm.prompt_lab.holdout import HOLD_OUT, access_log, find_half, record_evaluations
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.open_folder import RunFolder, open_folder
from touche_llm.runs.overview import BROKEN, find_known_qrels, find_runs, read_overview
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

ResultT = TypeVar("ResultT")
# Folder of templates of the user, if the configuration names none.
PROMPTS = Path("lab-prompts")
DRAFTS = Path(".touche-llm/drafts")
# Run folders that are kept open; one of 50,000 documents takes 200 MB.
_MAX_OPEN = 3


async def run_apart(
    function: Callable[..., Coroutine[Any, Any, ResultT]], *arguments: Any
) -> ResultT:
    """Run a coroutine that computes more than it waits in a thread of its own."""
    # Called only there: a page that goes away before may leave no coroutine that nobody awaits.
    return await asyncio.to_thread(lambda: asyncio.run(function(*arguments)))


@dataclass(frozen=True, slots=True)
class LabInputs:
    """What the lab was started with.

    Attributes:
        root: Folder of runs, or of one run; None for a configuration alone.
        config: Configuration file; only without a root.
        settings: Settings by dotted name, which override those of a run or of the file.
        qrels: Qrels files by aspect; empty for those of each run's last evaluation.
    """

    root: Path | None = None
    config: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    qrels: Mapping[str, Path] = field(default_factory=dict)


class Workplace:
    """Runs and judgments of a lab, by the name of a run: its path below the root, empty for a configuration alone.

    Attributes:
        inputs: What the lab was started with.
        warn: Receives what the user should know.
    """

    def __init__(self, inputs: LabInputs, warn: Warn) -> None:
        self.inputs, self.warn = inputs, warn
        self._folders: dict[str, Path] = {}
        self._opened: dict[str, tuple[int, RunFolder, ExitStack]] = {}
        self._qrels: dict[object, Qrels] = {}
        self._revealed: set[tuple[str, str]] = set()
        # One thread for all that reads folders, so that the page's other requests do not wait for
        # it.
        self._worker = ThreadPoolExecutor(1, "touche_llm folders")
        self._claim = ExitStack()
        self._has_claimed_drafts = False

    async def apart(
        self, function: Callable[..., ResultT], *arguments: Any, **named: Any
    ) -> ResultT:
        """Call a function in the thread that reads folders."""
        call = partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    def claim_drafts(self) -> None:
        """Lock the folder of drafts until the lab ends, so that no other lab replaces drafts of this one.

        Raises:
            UsageError: Another lab has locked it.
        """
        if self._has_claimed_drafts:
            return
        DRAFTS.mkdir(parents=True, exist_ok=True)
        self._claim.enter_context(lock_folder(DRAFTS, "lab", self.warn))
        self._has_claimed_drafts = True

    def close(self) -> None:
        """Close the run folders, and release the drafts."""
        self._worker.shutdown()
        self._claim.close()
        for _, _, stack in self._opened.values():
            stack.close()

    def list_runs(self) -> dict[str, Path]:
        """Search for runs; return their folders by name."""
        if self.inputs.root is not None:
            folders = find_runs(self.inputs.root)
            self._folders = {
                folder.relative_to(self.inputs.root).as_posix(): folder for folder in folders
            }
        return self._folders

    def find_run(self, run: str) -> RunDirectory:
        """Return the folder of a run.

        Raise DataError unless the search finds it, so that no other folder is read.
        """
        if run not in self._folders and run not in self.list_runs():
            raise DataError(
                f"{run:.200}: no run in {self.inputs.root or 'this lab'}; choose one of the list"
            )
        return RunDirectory(self._folders[run])

    def find_default_run(self) -> str | None:
        """Return the newest run that is not broken, empty for a configuration alone.

        None if there is none.
        """
        if self.inputs.root is None:
            return ""
        overviews = {name: read_overview(folder) for name, folder in self.list_runs().items()}
        usable = {
            name: each.changed
            for name, each in overviews.items()
            if each.state != BROKEN and each.config
        }
        return max(usable, key=lambda name: usable[name], default=None)

    def configure(self, run: str) -> Config:
        """Return the configuration of a run, with the settings that the lab was started with."""
        given = dict(self.inputs.settings)
        if self.inputs.root is None:
            return load_config(self.inputs.config, given)
        directory = self.find_run(run)
        if not directory.config_file.is_file():
            raise DataError(
                f"{directory.config_file}: no such file; the run stopped before its first stage"
            )
        return load_config(directory.config_file, {"task": find_copy(directory.path)} | given)

    def open(self, run: str) -> RunFolder:
        """Return a finished run, opened again if it changed; see `open_folder` for errors."""
        directory = self.find_run(run)
        changed = os.stat(
            directory.metadata_file if directory.metadata_file.exists() else directory.path
        ).st_mtime_ns
        if run in self._opened and self._opened[run][0] == changed:
            return self._opened[run][1]
        for name in (run, *list(self._opened)[: len(self._opened) - _MAX_OPEN + 1]):
            if name in self._opened:
                self._opened.pop(name)[2].close()
        # All of these records stay, and to look for garbage among them takes a third of the time.
        gc.disable()
        try:
            with ExitStack() as stack:
                opened = stack.enter_context(open_folder(directory.path))
                self._opened[run] = (changed, opened, stack.pop_all())
        finally:
            gc.enable()
        return opened

    def find_qrels(self, runs: Iterable[str], task: Task, config: Config) -> Mapping[str, Path]:
        """Return the qrels of runs: given ones, those of their last evaluation, or the dataset's.

        Empty without any.

        Raises:
            UsageError: Two runs were evaluated with different qrels.
            DataError: A file changed since, or is missing.
        """
        if self.inputs.qrels:
            return self.inputs.qrels
        known = find_known_qrels([self.find_run(run) for run in runs if run], task)
        return (
            known
            if known or config.dataset is None
            else Dataset(config.dataset, task.reference).qrels_files
        )

    def read_qrels(self, runs: Iterable[str], task: Task, config: Config) -> Qrels | None:
        """Return all judgments of runs; None without any. Errors as `find_qrels`."""
        files = self.find_qrels(runs, task, config)
        if not files:
            return None
        key = (
            task.reference,
            *((aspect, path, path.stat().st_mtime_ns) for aspect, path in files.items()),
        )
        if key not in self._qrels:
            self._qrels[key] = read_qrels(files, task)
        return self._qrels[key]

    def is_hidden(self, run: str, topic: Topic) -> bool:
        """Return whether the judgments of a topic are hidden: it is held out, and the user has not asked for them."""
        return find_half(topic.title) == HOLD_OUT and (run, topic.id) not in self._revealed

    def read_visible_qrels(self, run: str, topics: Iterable[Topic], config: Config) -> Qrels | None:
        """Return the judgments of the topics that are not hidden; None without any qrels."""
        qrels = self.read_qrels([run], get_task(config.task), config)
        return qrels and qrels.restrict_to(
            {topic.id for topic in topics if not self.is_hidden(run, topic)}
        )

    def log_evaluation(self, run: str, qrels: Qrels) -> None:
        """Log an access to judgments before they are shown; raise DataError if that fails."""
        problems: list[str] = []
        record_evaluations([self.find_run(run).path], qrels, problems.append)
        if problems:
            raise DataError(problems[0])

    def reveal(self, run: str, topics: Collection[str], qrels: Qrels) -> None:
        """Show the judgments of held-out topics from now on; errors as `log_evaluation`."""
        self.log_evaluation(run, qrels.restrict_to(topics))
        self._revealed.update((run, topic) for topic in topics)

    def prompts_folder(self, config: Config) -> Path:
        """Return the folder in which templates are saved, as `FOLDER/TASK/NAME.jinja`."""
        return config.prompts.folder or PROMPTS

    def describe_paths(self) -> dict[str, str]:
        """Return what the lab reads and writes, by name."""
        run = self.find_default_run()
        paths = (
            {} if self.inputs.root is None else {"runs, and labels in each": str(self.inputs.root)}
        )
        if run is not None:
            config = self.configure(run)
            paths["answer cache"] = str(config.cache.file)
            paths["log of accesses"] = str(access_log(config.cache.file))
            paths["saved prompts"] = str(self.prompts_folder(config))
        return paths | {"drafts": str(DRAFTS)}

    def describe(self) -> dict[str, Any]:
        """Return what the page needs first."""
        root = self.inputs.root
        return {
            "title": str(self.inputs.config or "lab") if root is None else root.resolve().name,
            "runs": root is not None,
            "default_run": self.find_default_run(),
            "paths": self.describe_paths(),
        }
