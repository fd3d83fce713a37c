"""A new expectation for a recorded run, after a wanted change: first what differs, then the new recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import Config
from touche_llm.errors import UsageError
from touche_llm.pipeline.run_files import RUN
from touche_llm.regression import differences
from touche_llm.regression.check import check_in, run_findings
from touche_llm.regression.differences import Finding
from touche_llm.regression.record import Recording, finished_run, record
from touche_llm.regression.snapshot import Recorded, settings_of


@dataclass(frozen=True, slots=True)
class Preview:
    """What an update would store.

    Attributes:
        findings: how it differs from what was recorded.
        config: of the run to store.
        run: its folder; None where the recorded answers do not suffice for one.
    """

    findings: list[Finding]
    config: Config
    run: Path | None


async def preview(recorded: Recorded, prompts: Path | None, run: Path | None, work: Path) -> Preview:
    """What an update would change: what `check` finds, and how the new run differs, if one is given.

    Args:
        recorded: the run.
        prompts: a folder of templates that go before the project's own.
        run: the folder of a new run to take in its place; None: the replay's run is taken.
        work: an empty folder to work in, where the replay's run stays.

    Raises:
        UsageError: a new run of another task.
        DataError: as `finished_run`.
    """
    found = await check_in(recorded, prompts, work)
    if run is None:
        lost = any(each.kind in ("missing", "error") for each in found.findings)
        return Preview(found.findings, found.config, None if lost or found.walk is None else found.walk.folder)
    config = finished_run(run)
    if config.task != recorded.task.name:
        raise UsageError(f"{run}: a run of {config.task}; {recorded.folder} is one of {recorded.task.name}")
    # Settings and ranks are those of the new run, not those of a replay that it takes the place of.
    kept = [each for each in found.findings if each.kind in ("error", "prompt", "version", "request", "missing")]
    settings = differences.values(recorded.name, "setting", recorded.manifest.settings, settings_of(config))
    return Preview([*settings, *kept, *run_findings(recorded, run / RUN)], config, run)


def new_run(recorded: Recorded, found: Preview) -> Path:
    """The run that an update would store; raises UsageError where a replay cannot give one."""
    if found.run is None:
        raise UsageError(
            f"{recorded.folder}: the recorded answers do not suffice any more; make a new run of its topics, and give "
            "its folder with --run"
        )
    return found.run


async def update(recorded: Recorded, found: Preview) -> Recording:
    """Record what was previewed in the place of what was recorded; judgments stay.

    Args:
        recorded: the run.
        found: its preview, whose folder to work in is still there.

    Raises:
        UsageError: answers are missing, and no new run was given.
        DataError: as `record`, also where a template renders otherwise since the preview.
    """
    return await record(found.config, new_run(recorded, found), recorded.folder, recorded.qrels())
