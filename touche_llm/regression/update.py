"""A new expectation for a recorded run, after a wanted change: first what differs, then the new recording."""

from __future__ import annotations

import tempfile
from pathlib import Path

from touche_llm.errors import UsageError
from touche_llm.regression import differences
from touche_llm.regression.check import check_in, run_findings
from touche_llm.regression.differences import Finding
from touche_llm.regression.record import Recording, finished_run, record
from touche_llm.regression.recorded import Recorded, settings_of
from touche_llm.run_files import RUN


async def preview(recorded: Recorded, prompts: Path | None, run: Path | None) -> list[Finding]:
    """What an update would change: what `check` finds, and how the new run differs, if one is given.

    Args:
        recorded: the run.
        prompts: a folder of templates that go before the project's own.
        run: the folder of a new run to take in its place; None: the replay's run is taken.

    Raises:
        UsageError: a new run of another task.
        DataError: as `finished_run`.
    """
    with tempfile.TemporaryDirectory() as name:
        findings = (await check_in(recorded, prompts, Path(name))).findings
    if run is None:
        return findings
    config = finished_run(run)
    if config.task != recorded.task.name:
        raise UsageError(f"{run}: a run of {config.task}; {recorded.folder} is one of {recorded.task.name}")
    # Settings and ranks are those of the new run, not those of a replay that it takes the place of.
    kept = [each for each in findings if each.kind in ("error", "prompt", "request", "missing")]
    settings = differences.values(recorded.name, "setting", recorded.manifest.settings, settings_of(config))
    return [*settings, *kept, *run_findings(recorded, run / RUN)]


def check_answers(recorded: Recorded, findings: list[Finding]) -> None:
    """Raise UsageError where a replay cannot give a new expectation: answers are missing, or it is not possible."""
    if any(each.kind in ("missing", "error") for each in findings):
        raise UsageError(
            f"{recorded.folder}: the recorded answers do not suffice any more; make a new run of its topics, and give "
            "its folder with --run"
        )


async def update(recorded: Recorded, prompts: Path | None, run: Path | None) -> Recording:
    """Record the replay, or the new run, in the place of what was recorded; judgments stay.

    Args:
        recorded: the run.
        prompts: as for `preview`.
        run: as for `preview`.

    Raises:
        UsageError: answers are missing, and no new run is given.
        DataError: as `record`.
    """
    if run is not None:
        return await record(finished_run(run), run, recorded.folder, recorded.qrels())
    with tempfile.TemporaryDirectory() as name:
        found = await check_in(recorded, prompts, Path(name))
        check_answers(recorded, found.findings)
        assert found.walk is not None
        return await record(found.config, found.walk.folder, recorded.folder, recorded.qrels())
