"""Trials: a command is killed or starved, then resumed; what must hold at each point."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import orjson

from tests.faults.fork_server import ENDINGS, Done, Fault
from tests.faults.interrupted import check_interrupted, is_interrupted
from tests.faults.scenarios import IN_FLIGHT, Scenario
from tests.faults.workplace import Snapshot, Workplace, differences, is_temporary, lasting

# Of ten kills so many are before a file operation, at a size and at a time.
_KILLS = (
    "operation",
    "size",
    "operation",
    "time",
    "operation",
    "size",
    "operation",
    "operation",
    "operation",
    "time",
)
# What the system refuses from a file operation on.
_ERRORS = {"no space": errno.ENOSPC, "read-only": errno.EROFS, "broken disk": errno.EIO}
_WANTS = ("RLIMIT_FSIZE", *_ERRORS, "RLIMIT_NOFILE", "RLIMIT_AS", "full disk")
_DATABASE_SIZE = 50_000
_METADATA = "ir-metadata.yml"
_OUTPUTS = {
    "retrieve": ("queries.jsonl", "query_failures.jsonl", "sentences.run.txt"),
    "judge": (
        "judgments.jsonl",
        "stances.jsonl",
        "failures.jsonl",
        "objects.jsonl",
        "sentence_judgments.jsonl",
    ),
    "rank": ("run.txt", "results.tsv", "comparisons.jsonl", "comparison_failures.jsonl"),
}
# Commands that only read, which must work or refuse at any time.
_READERS = (
    "validate run/run.txt --task {task}",
    "report run -o ../page.html",
    "evaluate run/run.txt --task {task} --relevance qrels/relevance",
)


@dataclass(frozen=True)
class Undisturbed:
    """What a scenario gives when nothing happens.

    Attributes:
        before: The files before the command, `after` it, and `final` after those that come next.
        skipped: The files where those that come next follow without the command; None where one of
            them refuses.
        events: File operations of the command, by name.
        seconds: How long the command took.
        requests: How often each request is sent by the command and those that come next.
    """

    before: Snapshot
    after: Snapshot
    final: Snapshot
    skipped: Snapshot | None
    events: dict[str, int]
    seconds: float
    requests: Counter[str]


@dataclass(frozen=True)
class Trial:
    """One disturbance.

    Attributes:
        kind: As in the counts.
        fault: What happens to the command.
        space: Free bytes on the disk, or None for no limit.
    """

    kind: str
    fault: Fault
    space: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.fault if self.space is None else f'{self.space} bytes'})"


def prepare(place: Workplace, scenario: Scenario) -> Undisturbed:
    """Run a scenario undisturbed and keep the state before the command."""
    place.restore("samples")
    for command in scenario.before:
        _expect_work(place.run(command), command)
    place.keep(scenario.name)
    before = place.snapshot()
    place.model.take()
    trace = place.folder.parent / "trace.json"
    done = place.run(scenario.command, trace=str(trace))
    _expect_work(done, scenario.command)
    after = place.snapshot()
    for command in scenario.then:
        _expect_work(place.run(command), command)
    final, requests = place.snapshot(), place.model.take()
    place.restore(scenario.name)
    skipped = place.snapshot() if _run_next(place, scenario) is None else None
    return Undisturbed(
        before, after, final, skipped, orjson.loads(trace.read_bytes()), done.seconds, requests
    )


def _run_next(place: Workplace, scenario: Scenario) -> Done | None:
    """Run the commands that come next until one does not work; return how that ended."""
    outcomes = (place.run(command) for command in scenario.then)
    return next((done for done in outcomes if not done.works), None)


def _expect_work(done: Done, command: object) -> None:
    assert done.works, f"undisturbed, {command} ended with {done.code}: {done.stderr}"


def plan_kill(scenario: Scenario, undisturbed: Undisturbed, seed: int, number: int) -> Trial:
    """Return kill `number` of a scenario: operations of all names take turns, the rest is drawn."""
    chance = random.Random(f"{seed} {scenario.name} {number}")
    kind = _KILLS[number % len(_KILLS)]
    if kind == "operation":
        turn = number // len(_KILLS) * _KILLS.count(kind) + _KILLS[: number % len(_KILLS)].count(
            kind
        )
        return Trial(kind, _at_operation(scenario, undisturbed, seed, turn, chance))
    if kind == "size":
        return Trial(kind, Fault(size=_size(undisturbed, chance)))
    return Trial(kind, Fault(after=chance.uniform(0.01, 1.1 * undisturbed.seconds)))


def plan_interrupt(scenario: Scenario, undisturbed: Undisturbed, seed: int, number: int) -> Trial:
    """Return interrupt `number` of a scenario: at an operation and at a time by turns."""
    chance = random.Random(f"{seed} {scenario.name} interrupt {number}")
    if number % 2 == 0:
        fault = _at_operation(scenario, undisturbed, seed, number // 2, chance)
    else:
        fault = Fault(after=chance.uniform(0.0, 1.1 * undisturbed.seconds))
    return Trial("interrupt", msgspec.structs.replace(fault, signal=chance.choice(ENDINGS)))


def plan_want(scenario: Scenario, undisturbed: Undisturbed, seed: int, number: int) -> Trial:
    """Return trial `number` of a scenario in which something is refused to the command."""
    chance = random.Random(f"{seed} {scenario.name} wants {number}")
    kind = _WANTS[number % len(_WANTS)]
    if kind in _ERRORS:
        fault = _at_operation(scenario, undisturbed, seed, number // len(_WANTS), chance)
        return Trial(kind, msgspec.structs.replace(fault, error=_ERRORS[kind]))
    if kind == "full disk":
        return Trial(kind, Fault(), space=chance.randint(1, max(sum(_written(undisturbed)), 1)))
    amount = {
        "RLIMIT_FSIZE": _size(undisturbed, chance),
        # With fewer, an event loop that could not be made complains when it is removed: that is
        # Python's.
        "RLIMIT_NOFILE": chance.randint(3, 18),
        "RLIMIT_AS": int(2 ** chance.uniform(16, 28)),
    }[kind]
    return Trial(kind, Fault(limits={kind: amount}))


def _at_operation(
    scenario: Scenario, undisturbed: Undisturbed, seed: int, turn: int, chance: random.Random
) -> Fault:
    names = sorted(undisturbed.events)
    random.Random(f"{seed} {scenario.name}").shuffle(names)
    name = names[turn % len(names)]
    return Fault(event=name, count=chance.randint(1, undisturbed.events[name]))


def _size(undisturbed: Undisturbed, chance: random.Random) -> int:
    return chance.randint(1, max(chance.choice(_written(undisturbed)), 1))


def _written(undisturbed: Undisturbed) -> list[int]:
    """Sizes of the files that the command changes; of a database that of a small one."""
    before, after = undisturbed.before, undisturbed.after
    changed = [content for path, content in after.items() if content != before.get(path)]
    return [
        len(content) if isinstance(content, bytes) else _DATABASE_SIZE for content in changed
    ] or [0]


def try_fault(
    place: Workplace,
    scenario: Scenario,
    undisturbed: Undisturbed,
    trial: Trial,
    chance: random.Random,
) -> Iterator[str]:
    """Disturb the command, check the files, resume; yield the outcome, then the violations."""
    place.restore(scenario.name, trial.space)
    place.model.take()
    done = place.run(scenario.command, trial.fault)
    place.give_space()
    yield _name_outcome(done)
    if trial.kind == "interrupt":
        yield from check_interrupted(done, place.folder)
    elif done.code >= 0 and not done.works and not (done.refuses and trial.kind in _WANTS):
        yield f"ended with {done.code}: {done.stderr}"
    if (
        done.refuses
        and trial.kind in _ERRORS
        and os.strerror(_ERRORS[trial.kind]) not in done.stderr
    ):
        yield f"the message does not say why: {done.stderr}"
    yield from _check_files(place.copied(), undisturbed)
    reader = tuple(chance.choice(_READERS).format(task=scenario.task).split())
    read = place.run(reader)
    if not read.works and not read.refuses:
        yield f"{' '.join(reader)} right after the kill ended with {read.code}: {read.stdout}{read.stderr}"
    resumed = False
    if scenario.then and chance.random() < 0.5:
        problems = _try_next(place, scenario, undisturbed)
        yield from problems
        resumed = not problems and lasting(place.snapshot()) == lasting(undisturbed.final)
    if not resumed:
        yield from _resume(place, scenario, undisturbed)
    again = place.model.take() - undisturbed.requests
    if again.total() > IN_FLIGHT:
        yield f"{again.total()} requests were sent again, and at most {IN_FLIGHT} were in flight"


def _name_outcome(done: Done) -> str:
    """Return how a command ended, as in the counts."""
    if done.code < 0:
        return "killed"
    if is_interrupted(done):
        return "interrupted"
    return "finished" if done.works else "refused"


def _try_next(place: Workplace, scenario: Scenario, undisturbed: Undisturbed) -> list[str]:
    """Run what comes next as if the killed command had finished: the state is the old one, the new one, or refused."""
    ended = _run_next(place, scenario)
    if ended is None:
        # What the killed command left, the next one that writes there removes.
        found = lasting(place.snapshot())
        if undisturbed.skipped is not None and _is_skipped(found, undisturbed):
            return []
        return [
            f"after the next commands, {each}"
            for each in differences(found, lasting(undisturbed.final))
        ]
    return [] if ended.refuses else [f"the next command ended with {ended.code}: {ended.stderr}"]


def _is_skipped(found: Snapshot, undisturbed: Undisturbed) -> bool:
    """Whether all is as if the killed command had not been given, but for answers that it stored before its end."""
    old, new = lasting(undisturbed.skipped or {}), lasting(undisturbed.final)
    return found.keys() == old.keys() and all(
        content == old[path]
        or (
            isinstance(content, list)
            and all(row in content for row in old[path])
            and all(row in old[path] or row in new.get(path, []) for row in content)
        )
        for path, content in found.items()
    )


def _resume(place: Workplace, scenario: Scenario, undisturbed: Undisturbed) -> Iterator[str]:
    """Run the same command and what comes next."""
    done = place.run(scenario.command)
    ended = _run_next(place, scenario)
    found = differences(place.snapshot(), undisturbed.final)
    # Where all is done already, a command may refuse to overwrite it.
    if not done.works and not (done.refuses and not found):
        yield f"the same command ended with {done.code}: {done.stderr}"
    if ended is not None:
        yield f"what follows the same command ended with {ended.code}: {ended.stderr}"
    yield from (f"after resuming, {each}" for each in found)


def _check_files(found: Snapshot, undisturbed: Undisturbed) -> Iterator[str]:
    """Each file is absent, as before or as after; the metadata records what the files hold."""
    states = (undisturbed.before, undisturbed.after, undisturbed.final)
    for path, content in found.items():
        known = [state[path] for state in states if path in state]
        if is_temporary(path) or content in known:
            continue
        if isinstance(content, list):
            rows = [row for state in known for row in state]
            unknown = [row for row in content if row not in rows]
            if unknown:
                yield f"{path}: holds rows that no undisturbed run stores: {unknown[0]!r:.300}"
        elif Path(path).name == _METADATA:
            yield from _check_metadata(path, content, found, states)
        else:
            yield f"{path}: neither old nor new: {content!r:.300}"


def _check_metadata(
    path: str, content: Any, found: Snapshot, states: tuple[Snapshot, ...]
) -> Iterator[str]:
    folder = Path(path).parent
    for stage, facts in content["stages"].items():
        files = [str(folder / name) for name in _OUTPUTS[stage]]
        for state in states:
            recorded = state.get(path, {}).get("stages", {}).get(stage)
            if facts == recorded and all(found.get(file) == state.get(file) for file in files):
                break
        else:
            yield f"{path}: records a {stage} stage that the files do not hold"
