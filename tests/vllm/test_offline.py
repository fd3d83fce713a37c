"""vLLM in process against vLLM as a server, the real one: the same cache, the same run, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.vllm.conftest import Input, Tell
from tests.vllm.server import CONTEXT, OPTIONS, VENV, vllm_environment, vllm_server
from touche_llm.llm.cache import Cache

pytestmark = pytest.mark.vllm
# One process and one thread: the only way in which the CPU build is fast in process.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# Where a prompt is parted depends on what else arrives, and moves the last digit of some log-probabilities.
WHOLE_PROMPTS = {"enable_chunked_prefill": False, "enable_prefix_caching": False, "max_num_batched_tokens": CONTEXT}


@dataclass(frozen=True)
class Place:
    """Topics, documents and a model that two engines share."""

    input: Input
    model: Path
    folder: Path

    def command(self, python: Path, out: str, engine: dict[str, object], *more: str) -> list[str]:
        """The run of this input with an engine, in a folder and with a cache named `out`."""
        config = self.folder / f"{out}.yaml"
        config.write_text(yaml.safe_dump({"engine": engine | {"context": CONTEXT}}))
        arguments = ["run", "--task", "comparative", "--topics", self.input.topics, "--corpus", self.input.corpus]
        arguments += ["--config", config, "--index", self.folder / "index", "--depth", 20, "--limit-topics", 6]
        arguments += ["--out", self.folder / out, "--cache", self.folder / f"{out}.sqlite", *more]
        return [str(python), "-m", "touche_llm", *map(str, arguments)]

    def run(self, python: Path, out: str, engine: dict[str, object], *more: str, **variables: str) -> float:
        """Make a run; returns its judgments per second."""
        with vllm_environment():
            command, environment = self.command(python, out, engine, *more), os.environ | variables
            done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        assert done.stdout.startswith("run: ")
        metadata = yaml.safe_load((self.folder / out / "ir-metadata.yml").read_text())
        return float(metadata["stages"]["judge"]["judgments per second"])

    def cassette(self, out: str) -> bytes:
        """All that the cache of a run holds."""
        with Cache(self.folder / f"{out}.sqlite") as cache:
            cache.export_cassette(self.folder / f"{out}.jsonl")
        return (self.folder / f"{out}.jsonl").read_bytes()

    @property
    def offline(self) -> dict[str, object]:
        return {"name": "offline", "model": str(self.model), "options": OPTIONS | WHOLE_PROMPTS}


@pytest.fixture(scope="module")
def place(data: Input, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A model that brings sampling settings of its own, and documents of which some have to be cut."""
    folder = tmp_path_factory.mktemp("offline")
    shutil.copytree(tiny_model, folder / "models" / "tiny")
    settings = folder / "models" / "tiny" / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"top_k": 2}))
    corpus = folder / "passages.jsonl"
    opened = subprocess.run(["gzip", "-dcf", data.corpus], check=True, capture_output=True).stdout.splitlines()
    with corpus.open("w", encoding="utf-8") as stream:
        for number, line in enumerate(opened[:600]):
            document = json.loads(line)
            if number % 20 == 0:
                document["contents"] = (document["contents"] + " Naïve “words”, 漢字 and 🙂. ") * 40
            stream.write(json.dumps(document) + "\n")
    return Place(Input(data.topics, corpus), folder / "models" / "tiny", folder)


@pytest.fixture(scope="module")
def url(place: Place) -> Iterator[str]:
    # The name of the server's settings is the one thing that an engine in process has not.
    with vllm_server(place.model, place.folder / "server.log", fingerprint_mode="none", **WHOLE_PROMPTS) as base_url:
        yield base_url


@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_both_engines_fill_the_same_cache_and_make_the_same_run(
    temperature: str, place: Place, url: str, tell: Tell
) -> None:
    server, offline = f"server-{temperature}", f"offline-{temperature}"
    sampling = ("--temperature", temperature, "--stance-depth", "4", "--rank", "judge,setwise:8,listwise:5")
    asked = place.run(Path(sys.executable), server, {"base_url": url, "model": "tiny"}, *sampling)
    in_process = place.run(VENV / "bin" / "python", offline, place.offline, *sampling, **ONE_PROCESS)
    tell(f"judgments per second: server {asked:.1f}, in process {in_process:.1f}")
    cassette = place.cassette(offline)
    assert cassette == place.cassette(server)
    kinds = [json.loads(line)["kind"] for line in cassette.splitlines()]
    assert kinds.count("answer") > 50
    assert kinds.count("fit") > 5
    for name in ("run.txt", "judgments.jsonl", "stances.jsonl", "comparisons.jsonl", "failures.jsonl"):
        assert (place.folder / offline / name).read_bytes() == (place.folder / server / name).read_bytes()

    # And where there is no vLLM, under the folder's name or the model's.
    again = f"again-{temperature}"
    shutil.copy(place.folder / f"{server}.sqlite", place.folder / f"{again}.sqlite")
    for model in (str(place.model), "elsewhere/tiny"):
        replay = ("--cache-mode", "replay", *sampling)
        place.run(Path(sys.executable), again, place.offline | {"model": model}, *replay)
        assert (place.folder / again / "run.txt").read_bytes() == (place.folder / server / "run.txt").read_bytes()


def test_an_interrupted_run_in_process_ends_and_goes_on(place: Place) -> None:
    alone = ("--stance-depth", "0")
    # With vLLM's own processes, as it runs by itself; the terminal interrupts them as well.
    with vllm_environment():
        process = subprocess.Popen(
            place.command(VENV / "bin" / "python", "stopped", place.offline, *alone, "--concurrency", "8"),
            cwd=place.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stored = 0
        while stored < 20:
            assert process.poll() is None, "the run ended before it could be interrupted"
            time.sleep(0.2)
            if (place.folder / "stopped.sqlite").exists():
                with Cache(place.folder / "stopped.sqlite") as cache:
                    stored = len(cache.find("answer"))
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said[-4000:]
    assert "interrupted; every answer so far is in" in said
    assert left_in_session(process.pid) == []
    with Cache(place.folder / "stopped.sqlite") as cache:
        stored = len(cache.find("answer"))
    place.run(VENV / "bin" / "python", "stopped", place.offline, *alone, **ONE_PROCESS)
    metadata = yaml.safe_load((place.folder / "stopped" / "ir-metadata.yml").read_text())
    assert metadata["stages"]["judge"]["requests"]["cache_hits"] == stored


def test_a_server_that_was_stopped_leaves_no_process(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.symlink_to(tiny_model)
    with vllm_server(folder, tmp_path / "server.log"):
        # The server, and its guard in a session of its own.
        started = [pid for pid in processes() if str(folder).encode() in command_line(pid).split(b"\0")]
        assert sorted(len(in_session(pid)) > 1 for pid in started) == [False, True]
    assert [left_in_session(pid) for pid in started] == [[], []]


def left_in_session(session: int) -> list[int]:
    """What is left of a session; those that were killed may take a moment to go."""
    end = time.monotonic() + 20
    while in_session(session) and time.monotonic() < end:
        time.sleep(0.1)
    return in_session(session)


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def in_session(leader: int) -> list[int]:
    """The living processes of a session, as proc(5) tells: state, parent, group and session follow the name."""
    found = []
    for pid in processes():
        try:
            state, _, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(pid)
    return found
