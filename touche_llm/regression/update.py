"""Update of a recorded run after an intended change: a preview, then the new recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import Config
from touche_llm.errors import UsageError
from touche_llm.pipeline.run_files import RUN
from touche_llm.regression.check import compare_replay, compare_runs
from touche_llm.regression.differences import RunDifference, compare_values
from touche_llm.regression.record import Recording, load_finished_run, record
from touche_llm.regression.snapshot import Snapshot, run_settings


@dataclass(frozen=True, slots=True)
class Preview:
    """Preview of an update.

    Attributes:
        differences: Differences from the recorded run.
        config: Configuration of the run to store.
        run: Folder of the run to store; None if the recorded answers do not suffice for a replay.
    """

    differences: list[RunDifference]
    config: Config
    run: Path | None


async def preview_update(snapshot: Snapshot, prompts: Path | None, run: Path | None, work: Path) -> Preview:
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
        is_incomplete = any(difference.kind in ("missing", "error") for difference in compared.differences)
        folder = None if is_incomplete or compared.replay is None else compared.replay.directory.path
        return Preview(compared.differences, compared.config, folder)
    config = load_finished_run(run)
    if config.task != snapshot.task.name:
        raise UsageError(f"{run}: a run of {config.task}; {snapshot.folder} is one of {snapshot.task.name}")
    # Settings and ranks are those of the new run, not of the replay.
    kinds = ("error", "prompt", "version", "request", "missing")
    kept = [difference for difference in compared.differences if difference.kind in kinds]
    settings = compare_values(snapshot.name, "setting", snapshot.manifest.settings, run_settings(config))
    return Preview([*settings, *kept, *compare_runs(snapshot, run / RUN)], config, run)


def require_run(snapshot: Snapshot, preview: Preview) -> Path:
    """Return the run that an update would store; raise UsageError if the replay gave none."""
    if preview.run is None:
        raise UsageError(
            f"{snapshot.folder}: the recorded answers no longer suffice; make a new run of its topics, and give its "
            "folder with --run"
        )
    return preview.run


async def update(snapshot: Snapshot, preview: Preview) -> Recording:
    """Replace a recorded run by the previewed one; the judgments remain.

    Args:
        snapshot: The recorded run.
        preview: Its preview, whose working folder must still exist.

    Raises:
        UsageError: Answers are missing, and no new run was given.
        DataError: As `record`, also if a template changed since the preview.
    """
    return await record(preview.config, require_run(snapshot, preview), snapshot.folder, snapshot.qrels())
