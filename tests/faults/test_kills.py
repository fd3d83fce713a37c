"""Commands that are killed, interrupted or starved: no file is half-written, no request is sent twice, one line
says why, the same command resumes, and the next stage refuses or gives what it gives undisturbed."""

from __future__ import annotations

import functools
import random
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.tally import Tally
from tests.faults.trials import (
    Trial,
    Undisturbed,
    plan_interrupt,
    plan_kill,
    plan_want,
    prepare,
    try_fault,
)
from tests.faults.workplace import Workplace

# Trials per scenario, twice as many with requests to a model: enough to kill more than 400
# commands.
_KILLS = 14
_INTERRUPTS = 10
# Of each scenario: each kind once.
_WANTS = 7
# Of the problems of a trial.
_SHOWN = 4

Plan = Callable[[Scenario, Undisturbed, int, int], Trial]
# Parts of the names of the tests.
_TESTS: dict[Plan, str] = {
    plan_kill: "killed_at",
    plan_interrupt: "interrupted_at",
    plan_want: "starved_of",
}
SLUGS = {scenario.name.replace(", ", "-").replace(" ", "-"): scenario for scenario in SCENARIOS}
pytestmark = pytest.mark.parametrize("name", SLUGS)


def _try_faults(
    place: Workplace,
    tally: Tally,
    plan: Plan,
    name: str,
    seed: int,
    numbers: Iterable[int],
    one: int | None = None,
) -> None:
    scenario, problems = SLUGS[name], []
    undisturbed = prepare(place, scenario)
    for number in numbers if one is None else [one]:
        trial = plan(scenario, undisturbed, seed, number)
        if trial.space is not None and not _can_mount(place.folder.parent):
            tally.add(trial.kind, impossible=1)
            continue
        outcome, *found = try_fault(
            place, scenario, undisturbed, trial, random.Random(f"{seed} {number}")
        )
        tally.add(_name_line(plan, scenario, trial), tried=1, held=not found, **{outcome: 1})
        if found:
            problems.append(
                "\n  ".join(
                    [f"trial {number}, {trial}:", *found[:_SHOWN], f"({len(found)} in all)"]
                )
            )
    which = _TESTS[plan]
    repeat = f"pytest -m '' tests/faults/test_kills.py -k '{which} and {name}' --fault-seed {seed} --fault-trial NUMBER"
    assert not problems, "\n".join([*problems, f"to repeat one: {repeat}"])


def _name_line(plan: Plan, scenario: Scenario, trial: Trial) -> str:
    """Return the line of the counts that a trial belongs to."""
    if plan is plan_kill:
        return f"kill: {scenario.name}"
    if plan is plan_interrupt:
        return "interrupt: commands, at file operations and times"
    return f"want: {trial.kind}"


@functools.cache
def _can_mount(folder: Path) -> bool:
    """Whether this user may make a small disk."""
    disk = folder / "disk"
    disk.mkdir()
    made = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", disk], stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )
    if made:
        subprocess.run(["umount", disk], check=True)
    return made


@pytest.mark.slow
def test_a_command_is_killed(place: Workplace, tally: Tally, fault_seed: int, name: str) -> None:
    _try_faults(place, tally, plan_kill, name, fault_seed, [list(SLUGS).index(name)])


@pytest.mark.nightly
def test_a_command_is_killed_at_all_points(
    place: Workplace, tally: Tally, fault_seed: int, fault_trial: int | None, name: str
) -> None:
    numbers = range(_KILLS * (2 if SLUGS[name].asks else 1))
    _try_faults(place, tally, plan_kill, name, fault_seed, numbers, fault_trial)


@pytest.mark.nightly
def test_a_command_is_interrupted_at_all_points(
    place: Workplace, tally: Tally, fault_seed: int, fault_trial: int | None, name: str
) -> None:
    _try_faults(place, tally, plan_interrupt, name, fault_seed, range(_INTERRUPTS), fault_trial)


@pytest.mark.nightly
def test_a_command_is_starved_of_everything(
    place: Workplace, tally: Tally, fault_seed: int, fault_trial: int | None, name: str
) -> None:
    _try_faults(place, tally, plan_want, name, fault_seed, range(_WANTS), fault_trial)
