"""Runs of a lab, and the judgments that its user may see."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from touche_llm.api.dataset import Dataset
from touche_llm.config.configuration import Config
from touche_llm.config.files import NO_USER_OPTIONS, UserOptions, load_run_config, load_with_origins
from touche_llm.config.origins import LoadedConfig, OriginKind, ValueOrigin
from touche_llm.config.own_folders import check_folder, is_own
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
P = ParamSpec("P")
# Folder of templates of the user, if the configuration names none.
PROMPTS = Path("lab-prompts")
DRAFTS = Path(".touche-llm/drafts")
# Settings of the inputs of a run: data outside of its folder, which only is read.
INPUTS = ("dataset", "topics", "corpus")
# How the settings of a folder that somebody else wrote are used.
_REMEDY = "the lab's page of the run lists them and uses them on a click"
# Run folders that are kept open; one of 50,000 documents takes 200 MB.
_MAX_OPEN = 3


async def run_in_thread(
    function: Callable[P, Coroutine[object, None, ResultT]], *args: P.args, **kwargs: P.kwargs
) -> ResultT:
    """Run a coroutine function in a thread of its own, since it computes more than it waits."""

    # Creates the coroutine in the thread. If it were created here and the page went away before the
    # thread began, the coroutine would never run, of which Python warns.
    def run() -> ResultT:
        return asyncio.run(function(*args, **kwargs))

    return await asyncio.to_thread(run)


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
    settings: Mapping[str, object] = field(default_factory=dict)
    qrels: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LabState:
    """What the page needs first, sent as JSON.

    Attributes:
        title: Title of the lab.
        runs: Whether it has a list of runs.
        default_run: Run that is shown first, empty for a configuration alone; None without runs.
        paths: What the lab reads and writes, by name.
    """

    title: str
    runs: bool
    default_run: str | None
    paths: dict[str, str]


@dataclass(frozen=True, slots=True)
class _OpenedRun:
    """An open run folder.

    Attributes:
        changed: When the run was changed before it was opened, in nanoseconds.
        folder: Its contents.
        stack: Closes it.
    """

    changed: int
    folder: RunFolder
    stack: ExitStack


class _OpenRuns:
    """The run folders that were opened last, by name."""

    def __init__(self) -> None:
        self._opened: dict[str, _OpenedRun] = {}

    def find(self, run: str, changed: int) -> RunFolder | None:
        """Return the open folder of a run; None if there is none, or if the run changed since.

        Args:
            run: Name of the run.
            changed: When the run was changed, in nanoseconds.
        """
        opened = self._opened.get(run)
        if opened is None or opened.changed != changed:
            return None
        return opened.folder

    def open(
        self, run: str, directory: RunDirectory, user_options: UserOptions, changed: int
    ) -> RunFolder:
        """Open the folder of a run, and close the oldest one if too many are open.

        Args:
            run: Name of the run.
            directory: Folder of the run.
            user_options: Settings by which it is read in place of its own.
            changed: When the run was changed, in nanoseconds.
        """
        self.close(run)
        self._make_room()

        # A collection would look at all the records that are read, and find nothing to free.
        with _without_garbage_collection():
            stack = ExitStack()
            folder = stack.enter_context(open_folder(directory.path, user_options))
        self._opened[run] = _OpenedRun(changed, folder, stack)
        return folder

    def _make_room(self) -> None:
        """Close the folders that were opened first, until one more may be open."""
        while len(self._opened) >= _MAX_OPEN:
            # A dictionary is in the order in which its entries were added.
            oldest_run = next(iter(self._opened))
            self.close(oldest_run)

    def close(self, run: str) -> None:
        """Close the folder of a run, if it is open."""
        opened = self._opened.pop(run, None)
        if opened is not None:
            opened.stack.close()

    def close_all(self) -> None:
        """Close all folders."""
        for run in list(self._opened):
            self.close(run)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Suspend the collection of garbage while the block reads records, nearly all of which stay.

    To look for garbage among them takes a third of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Workplace:
    """Runs and judgments of a lab.

    A run is named by its path below the root; the name is empty for a configuration alone.

    Attributes:
        inputs: What the lab was started with.
        warn: Receives what the user should know.
    """

    def __init__(self, inputs: LabInputs, warn: Warn) -> None:
        self.inputs = inputs
        self.warn = warn
        self._folders: dict[str, Path] = {}
        self._open_runs = _OpenRuns()
        self._qrels: dict[object, Qrels] = {}
        self._revealed: set[tuple[str, str]] = set()
        # Settings of runs that somebody else wrote, which the user had used, by run.
        self._chosen: dict[str, dict[str, object]] = {}
        # One thread for all that reads folders, so that the page's other requests do not wait.
        self._worker = ThreadPoolExecutor(1, "touche_llm folders")
        self._drafts_lock = ExitStack()
        self._has_claimed_drafts = False

    async def call_in_thread(
        self, function: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Call a function in the thread that reads folders."""
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    def claim_drafts(self) -> None:
        """Lock the folder of drafts until the lab ends.

        No other lab then replaces drafts of this one.

        Raises:
            UsageError: Another lab has locked it.
        """
        if self._has_claimed_drafts:
            return
        DRAFTS.mkdir(parents=True, exist_ok=True)
        self._drafts_lock.enter_context(lock_folder(DRAFTS, "lab", self.warn))
        self._has_claimed_drafts = True

    def close(self) -> None:
        """Close the run folders, and release the drafts."""
        self._worker.shutdown()
        self._drafts_lock.close()
        self._open_runs.close_all()

    def list_runs(self) -> dict[str, Path]:
        """Search for runs; return their folders by name."""
        root = self.inputs.root
        if root is not None:
            self._folders = {
                folder.relative_to(root).as_posix(): folder for folder in find_runs(root)
            }
        return self._folders

    def find_run(self, run: str) -> RunDirectory:
        """Return the folder of a run.

        Raises:
            DataError: The search does not find it, so that no other folder is read.
        """
        if run not in self._folders and run not in self.list_runs():
            place = self.inputs.root or "this lab"
            raise DataError(f"{run:.200}: no run in {place}; choose one of the list")
        return RunDirectory(self._folders[run])

    def find_default_run(self) -> str | None:
        """Return the name of the newest run that can be read; None if there is none.

        If the lab was started with a configuration in place of runs, the name is empty.
        """
        if self.inputs.root is None:
            return ""

        changed: dict[str, datetime] = {}
        for name, folder in self.list_runs().items():
            overview = read_overview(folder, self.make_user_options(name))
            # A run that is just starting is not broken, and has no configuration yet.
            is_readable = overview.state != BROKEN and overview.config is not None
            if is_readable:
                changed[name] = overview.changed
        return max(changed, key=lambda name: changed[name], default=None)

    def load(self, run: str) -> LoadedConfig:
        """Load the configuration of a run, with the settings that the lab was started with.

        If somebody else wrote its folder, only those of its settings that the user chose are used.

        Raises:
            DataError: The run has no configuration.
        """
        if self.inputs.root is None:
            return load_with_origins(self.inputs.config, dict(self.inputs.settings))
        return self._load_folder(run, self.list_used(run))

    def _load_folder(self, run: str, chosen: Mapping[str, object]) -> LoadedConfig:
        """Load the configuration in the folder of a run, with the settings that the lab was started with.

        If somebody else wrote the folder, its settings that could do harm are not used, except for
        those that the user chose.

        Args:
            run: Name of the run.
            chosen: Settings of the folder that the user chose; empty for a folder written here.

        Raises:
            DataError: The folder has no configuration.
        """
        directory = self.find_run(run)
        if not directory.config_file.is_file():
            problem = f"{directory.config_file}: no such file"
            raise DataError(f"{problem}; the run stopped before its first stage")

        # Of a setting that occurs twice, the last value is used.
        task_copy = {"task": find_copy(directory.path)}
        user_options = UserOptions(
            settings={**task_copy, **chosen, **self.inputs.settings},
            origins=self._list_origins(run, chosen),
            remedy=_REMEDY,
        )
        return load_run_config(directory.config_file, user_options)

    def _list_origins(self, run: str, chosen: Mapping[str, object]) -> dict[str, ValueOrigin]:
        """Return the origin of each setting that the user chose from the folder of a run.

        The origin is the folder, although the user chose the setting. The checks of the
        configuration can thus refuse a setting that lets vLLM run code, which only the user's own
        settings may do.
        """
        origin = ValueOrigin(OriginKind.FOLDER, str(self.find_run(run).config_file))
        return {name: origin for name in chosen if name not in self.inputs.settings}

    def make_user_options(self, run: str) -> UserOptions:
        """Return the settings that override those in the folder of a run when it is read.

        A folder that was written here is read with its own settings alone. For a folder that
        somebody else wrote, they are those of its settings that the user chose, and the inputs that
        the lab was started with, such as topics.
        """
        if is_own(self.find_run(run).config_file):
            return NO_USER_OPTIONS

        inputs = {name: self.inputs.settings.get(name) for name in INPUTS}
        given_inputs = {name: value for name, value in inputs.items() if value is not None}
        chosen = self.list_used(run)
        settings = {**chosen, **given_inputs}
        return UserOptions(
            settings=settings,
            origins=self._list_origins(run, chosen),
            remedy=_REMEDY,
        )

    def use_settings(self, run: str, settings: Mapping[str, object]) -> None:
        """Use settings of a folder that somebody else wrote, until the lab ends.

        Args:
            run: Name of the run.
            settings: Values that the user saw, by dotted name.

        Raises:
            UsageError: They are invalid, or let vLLM run code.
        """
        chosen = {**self.list_used(run), **settings}
        # Only for its check: invalid settings raise an error before anything is kept.
        self._load_folder(run, chosen)
        self._chosen[run] = chosen
        # Opened again with the settings at the next request.
        self._open_runs.close(run)

    def list_used(self, run: str) -> Mapping[str, object]:
        """Return the settings of a folder that the user chose, by dotted name."""
        return self._chosen.get(run, {})

    def has_titles(self, run: str) -> bool:
        """Return whether the topics of a run are read, which decide what is held out."""
        if self.inputs.root is None or is_own(self.find_run(run).config_file):
            return True
        return not self.load(run).is_without("topics")

    def open(self, run: str) -> RunFolder:
        """Return a finished run, opened again if it changed.

        Raises:
            DataError: A file of the run is missing or damaged, a stage is unfinished, or a link of
                somebody else's folder leads out of it.
        """
        directory = self.find_run(run)
        # Somebody else can change the folder while it is open.
        check_folder(directory.config_file)
        changed = _read_change_time(directory)
        folder = self._open_runs.find(run, changed)
        if folder is None:
            folder = self._open_runs.open(run, directory, self.make_user_options(run), changed)
        return folder

    def find_qrels(self, runs: Iterable[str], task: Task, config: Config) -> Mapping[str, Path]:
        """Return the qrels files of runs by aspect; empty if there are none.

        The first of these sources that has files is used:

        1. The files that the lab was started with.
        2. The files of the runs' last evaluation.
        3. The dataset of the configuration.

        Args:
            runs: Names of the runs; an empty name stands for a configuration without a run.
            task: Task of the runs.
            config: Configuration with the dataset.

        Raises:
            UsageError: Two runs were evaluated with different qrels.
            DataError: A file changed since, or is missing.
        """
        if self.inputs.qrels:
            return self.inputs.qrels
        directories = [self.find_run(run) for run in runs if run]
        evaluated = find_known_qrels(directories, task)
        if evaluated or config.dataset is None:
            return evaluated
        return Dataset(config.dataset, task.reference).qrels_files

    def read_qrels(self, runs: Iterable[str], task: Task, config: Config) -> Qrels | None:
        """Return all judgments of runs; None if there are none.

        They are read once, unless a file changes.

        Raises:
            UsageError: Two runs were evaluated with different qrels.
            DataError: A file changed since, or is missing or damaged.
        """
        files = self.find_qrels(runs, task, config)
        if not files:
            return None

        states = [(aspect, path, path.stat().st_mtime_ns) for aspect, path in files.items()]
        key = (task.reference, *states)
        if key not in self._qrels:
            self._qrels[key] = read_qrels(files, task)
        return self._qrels[key]

    def is_hidden(self, run: str, topic: Topic) -> bool:
        """Return whether the judgments of a topic are hidden.

        They are if it is held out and the user has not revealed them, and if its title is not read.
        """
        if not self.has_titles(run):
            return True
        return find_half(topic.title) == HOLD_OUT and (run, topic.id) not in self._revealed

    def read_visible_qrels(self, run: str, topics: Iterable[Topic], config: Config) -> Qrels | None:
        """Return the judgments of the topics that are not hidden; None without any qrels."""
        qrels = self.read_qrels([run], get_task(config.task), config)
        if qrels is None:
            return None
        visible = {topic.id for topic in topics if not self.is_hidden(run, topic)}
        return qrels.restrict_to(visible)

    def log_evaluation(self, run: str, qrels: Qrels) -> None:
        """Log an access to judgments before they are shown.

        Raises:
            DataError: The access cannot be logged.
        """
        # The function warns if it cannot log; here, nothing is shown then.
        problems: list[str] = []
        user_options = {self.find_run(run).path: self.make_user_options(run)}
        record_evaluations(user_options, qrels, warn=problems.append)
        if problems:
            raise DataError(problems[0])

    def reveal(self, run: str, topics: Collection[str], qrels: Qrels) -> None:
        """Show the judgments of held-out topics from now on.

        Raises:
            DataError: The access cannot be logged.
        """
        self.log_evaluation(run, qrels.restrict_to(topics))
        self._revealed.update((run, topic) for topic in topics)

    def prompts_folder(self, config: Config) -> Path:
        """Return the folder in which templates are saved, as `FOLDER/TASK/NAME.jinja`."""
        return config.prompts.folder or PROMPTS

    def describe_paths(self) -> dict[str, str]:
        """Return what the lab reads and writes, by name."""
        paths: dict[str, str] = {}
        if self.inputs.root is not None:
            paths["runs, and labels in each"] = str(self.inputs.root)

        run = self.find_default_run()
        if run is not None:
            config = self.load(run).config
            paths["answer cache"] = str(config.cache.file)
            paths["log of accesses"] = str(access_log(config.cache.file))
            paths["saved prompts"] = str(self.prompts_folder(config))

        paths["drafts"] = str(DRAFTS)
        return paths

    def describe(self) -> LabState:
        """Return what the page needs first."""
        root = self.inputs.root
        if root is not None:
            title = root.resolve().name
        else:
            title = str(self.inputs.config or "lab")
        return LabState(
            title=title,
            runs=root is not None,
            default_run=self.find_default_run(),
            paths=self.describe_paths(),
        )


def check_inputs(loaded: LoadedConfig, *names: str) -> None:
    """Raise DataError if an input of a run is not read, since somebody else wrote the folder.

    Args:
        loaded: Configuration of the run.
        names: `topics` or `corpus`.
    """
    if loaded.unused is None:
        return
    for name in names:
        setting = "index" if name == "corpus" else name
        if loaded.is_without(setting):
            raise DataError(loaded.unused.describe_input(name))


def _read_change_time(directory: RunDirectory) -> int:
    """Return when the metadata of a run was changed, in nanoseconds.

    Without metadata, when its folder was.
    """
    file = directory.metadata_file
    changed = file if file.exists() else directory.path
    return changed.stat().st_mtime_ns
