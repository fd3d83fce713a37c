"""Replaying a recorded run and comparing it with what was recorded."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import PromptError, ToucheError, describe_os_error
from touche_llm.regression import differences
from touche_llm.regression.differences import Finding
from touche_llm.regression.replay import Walk, walk
from touche_llm.regression.snapshot import Recorded, open_recorded, settings_of, templates_for


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a replay.

    Attributes:
        findings: what differs; none where the run is what was recorded, byte for byte, and no answer was missing.
        config: of the replay, with the index of its documents in the folder to work in.
        walk: the way that was gone; None where it could not be.
    """

    findings: list[Finding]
    config: Config
    walk: Walk | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check says of one recorded run: what differs, and what it could not see."""

    name: str
    findings: list[Finding]
    note: str = ""


async def check_all(folders: Sequence[Path], prompts: Path | None = None) -> AsyncIterator[Outcome]:
    """Check recorded runs, one after the other; one that cannot be opened or read has that as its only finding.

    Args:
        folders: of the runs.
        prompts: a folder of templates that go before the project's own; runs of a task that it has no folder for are
            replayed without it.

    Raises:
        UsageError: that folder has nothing for any of the runs.
    """
    opened = [_opened(folder) for folder in folders]
    runs = [each for each in opened if isinstance(each, Recorded)]
    templates = iter(templates_for(runs, prompts))
    for folder, each in zip(folders, opened, strict=True):
        if isinstance(each, Finding):
            yield Outcome(folder.name, [each])
            continue
        given = next(templates)
        try:
            outcome = Outcome(each.name, await check(each, given), each.unseen(given))
        except (ToucheError, OSError) as error:
            outcome = Outcome(each.name, [_unreadable(each.name, error)])
        yield outcome


def _opened(folder: Path) -> Recorded | Finding:
    try:
        return open_recorded(folder)
    except (ToucheError, OSError) as error:
        return _unreadable(folder.name, error)


def _unreadable(name: str, error: ToucheError | OSError) -> Finding:
    return Finding(name, "error", text=describe_os_error(error) if isinstance(error, OSError) else str(error))


async def check(recorded: Recorded, prompts: Path | None = None) -> list[Finding]:
    """Replay a recorded run with the current program and templates; nothing is written but to a temporary folder.

    Args:
        recorded: the run.
        prompts: a folder of templates that go before the project's own.

    Returns:
        what differs, finding by finding; nothing where the run comes out as it was recorded.

    Raises:
        DataError, UsageError: the recorded folder itself is not as it should be.
    """
    with tempfile.TemporaryDirectory() as name:
        return (await check_in(recorded, prompts, Path(name))).findings


async def check_in(recorded: Recorded, prompts: Path | None, work: Path) -> Checked:
    """As `check`, with an empty folder to work in, where the run that comes out stays."""
    name, examples = recorded.name, recorded.manifest.examples
    folder = _folder(work, "now")
    config = recorded.config(prompts).model_copy(update={"index": folder / "index"})
    settings = differences.values(name, "setting", recorded.manifest.settings, settings_of(config))
    try:
        now = await walk(config, recorded.first_stage, folder, recorded.folder)
    except ToucheError as error:
        return Checked([Finding(name, "error", text=str(error)), *settings], config, None)
    if now.missing:
        before = None
        try:
            before = await walk(
                recorded.as_recorded(config), recorded.first_stage, _folder(work, "before"), recorded.folder
            )
        except PromptError:
            # The recorded templates do not suit this program any more; the recorded examples are left to compare with.
            pass
        findings = [
            *settings,
            *differences.prompts(name, before, now, examples),
            *differences.parameters(name, now, examples),
            *differences.missing(name, now),
        ]
        if now.problem:
            findings.append(Finding(name, "error", text=f"with the answers that are there: {now.problem}"))
        return Checked(findings, config, now)
    if now.run.read_bytes() == recorded.run.read_bytes():
        return Checked([], config, now)
    return Checked([*settings, *run_findings(recorded, now.run)], config, now)


def run_findings(recorded: Recorded, run: Path) -> list[Finding]:
    """How another run file differs from the one that was recorded, and how its figures do."""
    if run.read_bytes() == recorded.run.read_bytes():
        return []
    labels = recorded.task.stances
    old, new = read_run(recorded.run, labels), read_run(run, labels)
    findings = differences.moves(recorded.name, old, new)
    qrels = recorded.qrels()
    if qrels is None or findings[0].kind == "run":
        return findings
    return findings + differences.measures(recorded.name, old, new, qrels)


def _folder(work: Path, name: str) -> Path:
    folder = work / name
    folder.mkdir()
    return folder
