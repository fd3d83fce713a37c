"""Regression check: replay a recorded run, compare the result with it, and preview an update."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import Config, flatten
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import PromptError, ToucheError, UsageError, describe_os_error, list_fields
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RUN
from touche_llm.prompts.prompt import Prompt
from touche_llm.regression.differences import (
    RunDifference,
    compare_measures,
    compare_rankings,
    compare_requests,
    compare_values,
)
from touche_llm.regression.record import load_finished_run
from touche_llm.regression.replay import replay
from touche_llm.regression.snapshot import Snapshot, choose_templates, open_snapshot, run_settings
from touche_llm.tasks import get_task


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """A replay, or a new run, and how it differs from the recorded run.

    Attributes:
        differences: Empty if the runs are equal byte for byte and no answer was missing.
        config: Configuration of the run; of a replay, with the index of its documents in the working folder.
        run: Folder of the run; None if the replay failed or lacked an answer.
    """

    differences: list[RunDifference]
    config: Config
    run: Path | None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The differences of one recorded run, and a note on what the check does not cover."""

    name: str
    differences: list[RunDifference]
    note: str = ""


async def check_all(folders: Sequence[Path], prompts: Path | None = None) -> AsyncIterator[CheckResult]:
    """Check recorded runs one after the other; a run that cannot be read has that error as its only difference.

    Args:
        folders: The recorded runs.
        prompts: A folder of templates that take precedence over the project's own. Runs of a task without a subfolder
            there are replayed without it.

    Raises:
        UsageError: The folder of templates has none for any of the runs.
    """
    opened = [_open(folder) for folder in folders]
    snapshots = [result for result in opened if isinstance(result, Snapshot)]
    templates = iter(choose_templates(snapshots, prompts))
    for folder, result in zip(folders, opened, strict=True):
        if isinstance(result, RunDifference):
            yield CheckResult(folder.name, [result])
            continue
        given = next(templates)
        try:
            checked = CheckResult(result.name, await check_snapshot(result, given), result.describe_unchecked(given))
        except (ToucheError, OSError) as error:
            checked = CheckResult(result.name, [_describe_error(result.name, error)])
        yield checked


def _open(folder: Path) -> Snapshot | RunDifference:
    try:
        return open_snapshot(folder)
    except (ToucheError, OSError) as error:
        return _describe_error(folder.name, error)


def _describe_error(name: str, error: ToucheError | OSError) -> RunDifference:
    return RunDifference(name, "error", text=describe_os_error(error) if isinstance(error, OSError) else str(error))


async def check_snapshot(snapshot: Snapshot, prompts: Path | None = None) -> list[RunDifference]:
    """Replay a recorded run with the current program and templates, in a temporary folder.

    Args:
        snapshot: The recorded run.
        prompts: A folder of templates that take precedence over the project's own.

    Returns:
        The differences; empty if the replay gives the recorded run.

    Raises:
        DataError, UsageError: The recorded run itself is damaged.
    """
    with tempfile.TemporaryDirectory() as name:
        return (await compare_replay(snapshot, prompts, Path(name))).differences


async def compare_replay(snapshot: Snapshot, prompts: Path | None, work: Path) -> ReplayComparison:
    """Do the work of `check_snapshot` in an empty folder, where the replayed run remains."""
    name = snapshot.name
    config = snapshot.config(prompts).model_copy(update={"index": work / "index"})
    settings = compare_settings(snapshot, config)
    try:
        now = await replay(config, snapshot.first_stage, work, snapshot.folder)
    except ToucheError as error:
        return ReplayComparison([RunDifference(name, "error", text=str(error)), *settings], config, None)
    if now.missing:
        requests = compare_requests(name, _load_recorded_prompts(snapshot, config), now, snapshot.manifest.examples)
        return ReplayComparison([*settings, *requests], config, None)
    differences = compare_runs(snapshot, now.directory.run_file)
    return ReplayComparison([*settings, *differences] if differences else [], config, now.directory.path)


def _load_recorded_prompts(snapshot: Snapshot, config: Config) -> dict[str, Prompt]:
    """Return the recorded prompts by purpose; none if the program no longer accepts them."""
    try:
        with RunContext(snapshot.with_recorded_templates(config), SilentProgress()) as context:
            return context.load_prompts()
    except PromptError:
        return {}


def compare_settings(snapshot: Snapshot, config: Config) -> list[RunDifference]:
    """Compare the settings with the recorded ones; a default that the program did not have then is no difference."""
    recorded, now = snapshot.manifest.settings, run_settings(config)
    defaults = flatten({name: field.default for name, field in list_fields(Config)})
    new = {name: value for name, value in now.items() if name in recorded or value != defaults.get(name)}
    return compare_values(snapshot.name, "setting", recorded, new)


def compare_runs(snapshot: Snapshot, run: Path) -> list[RunDifference]:
    """Compare a run file with the recorded one; include measures if judgments were recorded."""
    if run.read_bytes() == snapshot.run.read_bytes():
        return []
    labels = snapshot.task.stances
    old, new = read_run(snapshot.run, labels), read_run(run, labels)
    differences = compare_rankings(snapshot.name, old, new)
    qrels = snapshot.qrels()
    if qrels is None or differences[0].kind == "run":
        return differences
    return differences + compare_measures(snapshot.name, old, new, qrels)


async def preview_update(snapshot: Snapshot, prompts: Path | None, run: Path | None, work: Path) -> ReplayComparison:
    """Compare the recorded run with its replay, or with a new run if one is given.

    Args:
        snapshot: The recorded run.
        prompts: A folder of templates that take precedence over the project's own.
        run: The folder of a new run to store; if None, the replayed run is stored.
        work: An empty folder, where the replayed run remains.

    Raises:
        UsageError: The new run is of another task.
        DataError: As `load_finished_run`.
    """
    compared = await compare_replay(snapshot, prompts, work)
    if run is None:
        return compared
    config = load_finished_run(run)
    if (own := get_task(config.task).name) != snapshot.task.name:
        raise UsageError(f"{run}: a run of {own}; {snapshot.folder} is one of {snapshot.task.name}")
    # Settings and ranks are those of the new run, not of the replay.
    kinds = ("error", "prompt", "version", "request", "missing")
    kept = [difference for difference in compared.differences if difference.kind in kinds]
    settings = compare_settings(snapshot, config)
    return ReplayComparison([*settings, *kept, *compare_runs(snapshot, run / RUN)], config, run)


def require_run(snapshot: Snapshot, preview: ReplayComparison) -> Path:
    """Return the run that an update would store; raise UsageError if the replay gave none."""
    if preview.run is None:
        raise UsageError(
            f"{snapshot.folder}: the recorded answers no longer suffice; make a new run of its topics, and give its "
            "folder (`run: FOLDER`)"
        )
    return preview.run
