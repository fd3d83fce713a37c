"""Regression check: replay a recorded run and compare the result with it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import PromptError, ToucheError, describe_os_error
from touche_llm.regression.differences import (
    RunDifference,
    compare_measures,
    compare_parameters,
    compare_prompt_texts,
    compare_rankings,
    compare_values,
    list_missing,
)
from touche_llm.regression.replay import ReplayResult, replay
from touche_llm.regression.snapshot import Snapshot, choose_templates, open_snapshot, run_settings


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """A replay and how it differs from the recorded run.

    Attributes:
        differences: Empty if the runs are equal byte for byte and no answer was missing.
        config: The configuration of the replay, with the index of its documents in the working folder.
        replay: The replay; None if it failed.
    """

    differences: list[RunDifference]
    config: Config
    replay: ReplayResult | None


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
    name, requests = snapshot.name, snapshot.manifest.examples
    folder = _make_folder(work, "now")
    config = snapshot.config(prompts).model_copy(update={"index": folder / "index"})
    settings = compare_values(name, "setting", snapshot.manifest.settings, run_settings(config))
    try:
        now = await replay(config, snapshot.first_stage, folder, snapshot.folder)
    except ToucheError as error:
        return ReplayComparison([RunDifference(name, "error", text=str(error)), *settings], config, None)
    if now.missing:
        before = None
        try:
            before = await replay(
                snapshot.with_recorded_templates(config),
                snapshot.first_stage,
                _make_folder(work, "before"),
                snapshot.folder,
            )
        except PromptError:
            # The program no longer accepts the recorded templates; the recorded requests remain for the comparison.
            pass
        differences = [
            *settings,
            *compare_prompt_texts(name, before, now, requests),
            *compare_parameters(name, now, requests),
            *list_missing(name, now),
        ]
        if now.problem:
            differences.append(RunDifference(name, "error", text=f"with the available answers: {now.problem}"))
        return ReplayComparison(differences, config, now)
    differences = compare_runs(snapshot, now.run)
    return ReplayComparison([*settings, *differences] if differences else [], config, now)


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


def _make_folder(work: Path, name: str) -> Path:
    folder = work / name
    folder.mkdir()
    return folder
