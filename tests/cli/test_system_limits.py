"""A full disk and too many open files: errors that name the file and the cause, and leave what was there."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
DATA = [
    "--topics",
    str(SAMPLE / "topics.xml"),
    "--corpus",
    str(SAMPLE / "passages.jsonl"),
    "--index",
    "index",
]
REPLAY = [
    "--cache",
    "answers.sqlite",
    "--cache-mode",
    "replay",
    "--model",
    "written-for-the-demo",
    "--depth",
    "5",
]
# Some answers and a part of the index fit.
_BYTES = 60 * 1024


def limited(
    folder: Path, limits: Mapping[int, int], *arguments: str
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        for which, value in limits.items():
            resource.setrlimit(which, (value, value))

    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    }
    command = [sys.executable, "-m", "touche_llm", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        preexec_fn=limit,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }


@pytest.fixture
def filled(touche: Touche, tmp_path: Path) -> Path:
    """A folder with an index and a cache."""
    assert (
        touche(
            "cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", "answers.sqlite"
        ).returncode
        == 0
    )
    assert touche("index", *DATA[2:]).returncode == 0
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("files", [8, 14])
def test_too_many_open_files_are_no_damage(filled: Path, files: int) -> None:
    before = contents(filled / "index")
    done = limited(filled, {resource.RLIMIT_NOFILE: files}, "run", *DATA, *REPLAY, "--out", "run")
    assert done.returncode == 1, done.stderr
    assert "too many open files" in done.stderr.casefold() and "Traceback" not in done.stderr
    assert "damaged" not in done.stderr and "delete" not in done.stderr
    assert contents(filled / "index") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["cache", "export", "new.jsonl", "--cache", "answers.sqlite"], "new.jsonl"),
        (
            ["cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", "new.sqlite"],
            "new.sqlite",
        ),
        (["index", "--corpus", "large.jsonl", "--index", "new"], "new"),
    ],
)
def test_a_file_that_finds_no_room_is_named_and_none_is_left(
    filled: Path, arguments: list[str], name: str
) -> None:
    lines = (SAMPLE / "passages.jsonl").read_text()
    text = "".join(lines.replace('"id": "', f'"id": "{n}-') for n in range(20))
    (filled / "large.jsonl").write_text(text)
    before = contents(filled)
    done = limited(filled, {resource.RLIMIT_FSIZE: _BYTES}, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {name}: ") and "ulimit -f" in last, done.stderr
    left = contents(filled)
    assert {each: left[each] for each in before} == before
    assert {Path(each).name for each in left.keys() - before.keys()} <= {
        "new.sqlite",
        "answers.sqlite-wal",
        "answers.sqlite-shm",
    }


# From too little for numpy to enough: OpenBLAS reports a lack of memory by itself.
@pytest.mark.parametrize("mebibytes", [30, 50, 60, 160])
def test_a_lack_of_memory_is_one_line_wherever_it_shows(tmp_path: Path, mebibytes: int) -> None:
    limits = {resource.RLIMIT_AS: mebibytes * 2**20}
    done = limited(tmp_path, limits, "index", "--task", "comparative", *DATA[2:])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr, done.stderr
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1 and "memory" in errors[0].lower(), done.stderr


@pytest.mark.parametrize(
    "name",
    ["a" * 255, "é" * 127, "\N{GRINNING FACE}" * 63],
    ids=["one byte", "two bytes", "four bytes"],
)
def test_a_name_may_have_255_bytes(touche: Touche, tmp_path: Path, name: str) -> None:
    corpus = tmp_path / name
    corpus.write_bytes((SAMPLE / "passages.jsonl").read_bytes())
    assert touche("index", "--task", "comparative", "--corpus", name).returncode == 0
    assert touche("tasks", "new", f"new/{name}").returncode == 0
    cassette = f"new/{name[: len(name) - 7]}.jsonl"
    done = touche("cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", "answers.sqlite")
    assert done.returncode == 0
    assert touche("cache", "export", cassette, "--cache", "answers.sqlite").returncode == 0
    run = ("run", "--config", str(SAMPLE / "demo.yaml"), *DATA[:2], "--corpus", name)
    done = touche(*run, "--cache", cassette, "--cache-mode", "replay", "--out", f"runs/{name}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / name / "run.txt").exists()


@pytest.mark.parametrize("length", [248, 255, 256, 300])
def test_a_name_that_is_too_long_is_the_cause(touche: Touche, length: int) -> None:
    name = "a" * length
    done = touche("cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", name)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {name}: ")
    assert "name too long" in done.stderr.lower()
    if length <= 255:
        assert "247" in done.stderr and not os.path.lexists(name)
    else:
        done = touche("tasks", "new", name)
        assert done.returncode == 1 and done.stderr == f"error: {name}: File name too long\n"
