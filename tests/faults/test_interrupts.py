"""Commands that get Ctrl-C, SIGTERM or SIGHUP at random moments: each ends within seconds, with exit
code 130 and one line, and leaves neither temporary files nor locks; a second signal ends it at once."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.fake_server import FakeServer, fields_in
from tests.faults.fork_server import ENDINGS, Done, ForkServer
from tests.faults.interrupted import (
    Process,
    check_ended_twice,
    check_interrupted,
    find_left_over,
    is_interrupted,
    start_fork,
    start_program,
)
from tests.faults.model_server import steady
from tests.faults.scenarios import READERS, SCENARIOS, Scenario
from tests.faults.tally import Tally
from tests.faults.workplace import Workplace
from touche_llm.cli.demo import SAMPLES

CONCURRENCIES = (64, 256)
# Of each concurrency and signal, more than 1,000 in all.
_RUNS = 167
_SECOND_SIGNALS = 10
# Of each command.
_STARTS = 6
# Copies of the sample's topics, so that there are more requests than may be in flight.
_COPIES = 3
_SAMPLE = SAMPLES / "comparative"
# That an answer takes.
_MAX_SECONDS = 0.4
# By the form of the answer.
_replies: dict[bytes, bytes] = {}
_COMMANDS = {
    scenario.name.replace(", ", "-").replace(" ", "-"): scenario
    for scenario in (*SCENARIOS, *READERS)
}
# Makes a trial by a chance of its own; returns how the command ended, and what was wrong.
Attempt = Callable[[random.Random], tuple[Done, list[str]]]


def _get_name(ending: signal.Signals) -> str:
    return ending.name


@dataclass
class Runs:
    """Runs of many requests, one after the other.

    Attributes:
        folder: Folder of the inputs.
        forks: Process that starts them.
        server: The model's server.
        seconds: How long an undisturbed run takes.
        requests: How many requests it sends.
    """

    folder: Path
    forks: ForkServer
    server: FakeServer
    seconds: float = 0.0
    requests: int = 0

    @property
    def place(self) -> Path:
        """Folder in which they run."""
        return self.folder / "place"

    def start(self, concurrency: int) -> Process:
        """Start a run in an empty folder."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        return self.resume(concurrency)

    def resume(self, concurrency: int) -> Process:
        """Start a run in the folder as it is."""
        self.server.bodies.clear()
        data = f"--topics {self.folder}/topics.xml --corpus {_SAMPLE}/passages.jsonl"
        steps = "--depth 24 --rank judge,pairwise:3"
        server = f"--base-url {self.server.url} --concurrency {concurrency} --retry-for 1"
        index = f"--index {self.folder}/index"
        line = f"run --task comparative {data} {steps} {server} {index} --out run"
        return start_fork(self.forks, line.split(), self.place)

    def measure(self) -> None:
        """Measure an undisturbed run, whose index the others use."""
        # The first one makes the index.
        for _ in range(2):
            done = self.start(max(CONCURRENCIES)).wait()
            assert done.works, done.stderr
        self.seconds = done.seconds
        self.requests = len(self.server.bodies)
        assert self.server.most_open >= min(CONCURRENCIES)

    def wait_for_moment(self, process: Process, chance: random.Random) -> None:
        """Wait for a random time of a run, or for a random number of requests."""
        process.wait_for_handler()
        if chance.random() < 0.5:
            end = time.monotonic() + chance.uniform(0.0, 1.1 * self.seconds)
        else:
            count = chance.randint(0, self.requests)
            process.wait_for(lambda: len(self.server.bodies) >= count)
            end = time.monotonic() + chance.uniform(0.0, 0.05)
        process.wait_for(lambda: time.monotonic() >= end)


async def _answer_slowly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Give all requests of a form the same answer, which takes the server no work."""
    await asyncio.sleep(random.uniform(0.05, _MAX_SECONDS))
    form = orjson.dumps(fields_in(body))
    if form not in _replies:
        answer = await steady(request, body)
        _replies[form] = answer.body  # type: ignore[attr-defined]
    return web.Response(body=_replies[form], content_type="application/json")


@pytest.fixture(scope="module")
def runs(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs of several times the topics of the sample."""
    folder = tmp_path_factory.mktemp("interrupts")
    head, topics, tail = re.split(
        "(?<=<topics>)|(?=</topics>)", (_SAMPLE / "topics.xml").read_text()
    )
    copies = [
        topics.replace("<number>", f"<number>{copy}").replace("Which", f"{copy}: which")
        for copy in range(1, _COPIES + 1)
    ]
    (folder / "topics.xml").write_text(head + "".join(copies) + tail)
    server = FakeServer(rest=_answer_slowly)
    with server.in_thread():
        runs = Runs(folder, forks, server)
        runs.measure()
        yield runs
        # Answers to runs that have ended are still on their way.
        time.sleep(_MAX_SECONDS + 0.1)


@dataclass(frozen=True)
class Trials:
    """Trials of one test.

    Attributes:
        test: Identifier of the test.
        seed: Seed of all trials.
        one: Number of the one trial to make; None for all.
        tally: Counts of the outcomes.
    """

    test: str
    seed: int
    one: int | None
    tally: Tally

    def make(self, what: str, count: int, attempt: Attempt) -> None:
        """Make trials, count them, and fail with what was wrong."""
        numbers = range(count) if self.one is None else [self.one]
        problems = [problem for number in numbers for problem in self._make(what, number, attempt)]
        repeat = f"pytest -m '' '{self.test}' --fault-seed {self.seed} --fault-trial NUMBER"
        assert not problems, "\n".join([*problems, f"to repeat one: {repeat}"])

    def _make(self, what: str, number: int, attempt: Attempt) -> list[str]:
        chance = random.Random(f"{self.seed} {what} {number}")
        done, problems = attempt(chance)
        self.tally.add(
            f"interrupt: {what.partition(':')[0]}",
            tried=1,
            held=not problems,
            interrupted=is_interrupted(done),
            finished=done.works,
            **{"by the signal": done.code < 0, "above 1 s": done.seconds > 1.0},
        )
        if not problems:
            return []
        return [f"trial {number}: {'; '.join(problems)}\n{done.stderr}"]


@pytest.fixture
def trials(
    request: pytest.FixtureRequest, tally: Tally, fault_seed: int, fault_trial: int | None
) -> Trials:
    """The trials of a test."""
    return Trials(request.node.nodeid, fault_seed, fault_trial, tally)


@pytest.mark.parametrize("ending", ENDINGS, ids=_get_name)
@pytest.mark.parametrize("concurrency", CONCURRENCIES)
@pytest.mark.nightly
def test_a_signal_ends_a_run(
    runs: Runs, trials: Trials, concurrency: int, ending: signal.Signals
) -> None:
    what = f"run, {concurrency}, {ending.name}"
    trials.make(what, _RUNS, partial(_interrupt_run, runs, concurrency, ending))


def _interrupt_run(
    runs: Runs, concurrency: int, ending: signal.Signals, chance: random.Random
) -> tuple[Done, list[str]]:
    """Send a signal to a run."""
    process = runs.start(concurrency)
    runs.wait_for_moment(process, chance)
    process.send(ending)
    done = process.wait()
    return done, list(check_interrupted(done, runs.place))


@pytest.mark.parametrize("ending", ENDINGS, ids=_get_name)
@pytest.mark.parametrize("concurrency", CONCURRENCIES)
@pytest.mark.nightly
def test_a_second_signal_ends_a_run_which_then_resumes(
    runs: Runs, trials: Trials, concurrency: int, ending: signal.Signals
) -> None:
    what = f"run, two signals: {concurrency} {ending.name}"
    trials.make(what, _SECOND_SIGNALS, partial(_interrupt_run_twice, runs, concurrency, ending))


def _interrupt_run_twice(
    runs: Runs, concurrency: int, ending: signal.Signals, chance: random.Random
) -> tuple[Done, list[str]]:
    """Send two signals to a run, then run it to its end."""
    process = runs.start(concurrency)
    runs.wait_for_moment(process, chance)
    process.send(ending)
    time.sleep(chance.uniform(0.0, 0.1))
    second = chance.choice(ENDINGS)
    process.send(second)
    done = process.wait()
    problems = list(check_ended_twice(done, second, runs.place))

    resumed = runs.resume(concurrency).wait()
    if not resumed.works:
        problems.append(f"the same command ended with {resumed.code}: {resumed.stderr}")
    problems += find_left_over(runs.place)
    return done, problems


@pytest.mark.parametrize("name", _COMMANDS)
@pytest.mark.nightly
def test_a_signal_ends_a_command_from_its_imports_on(
    place: Workplace, trials: Trials, name: str
) -> None:
    scenario = _COMMANDS[name]
    seconds = _measure(place, scenario)
    what = f"commands with their imports: {name}"
    trials.make(what, _STARTS, partial(_interrupt_command, place, scenario, seconds))


def _measure(place: Workplace, scenario: Scenario) -> float:
    """Make the state before a command, run it undisturbed, and return the seconds that it took."""
    place.restore("samples")
    for command in scenario.before:
        done = place.run(command)
        assert done.works, done.stderr
    place.keep(scenario.name)
    done = start_program(place.fill(scenario.command), place.folder).wait()
    assert done.works, done.stderr
    return done.seconds


def _interrupt_command(
    place: Workplace, scenario: Scenario, seconds: float, chance: random.Random
) -> tuple[Done, list[str]]:
    """Send a signal to a command within the time that it takes."""
    place.restore(scenario.name)
    process = start_program(place.fill(scenario.command), place.folder)
    process.wait_for_handler()
    end = time.monotonic() + chance.uniform(0.0, seconds)
    process.wait_for(lambda: time.monotonic() >= end)
    process.send(chance.choice(ENDINGS))
    done = process.wait()
    return done, list(check_interrupted(done, place.folder))
