"""Standard output as shells and pipes give it: of another encoding, closed, full, with a reader that leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.report.reports import sample_run, write_qrels
from tests.write_regressions import FOLDER
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
TOUCHE = [sys.executable, "-m", "touche_llm"]
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
REPLAY = ["--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay"]
# A process takes a second to start.
_SCRIPT = """
import json, sys
from touche_llm.cli import main
from touche_llm.evaluation import significance
significance.RESAMPLES = 300
for arguments, code in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
        ended = 0
    except SystemExit as error:
        ended = error.code or 0
    assert ended == code, (arguments, ended)
"""


def call_in_ascii(folder: Path, commands: dict[tuple[str, ...], int]) -> subprocess.CompletedProcess[bytes]:
    """Run commands, each with its exit code, in one process whose streams are ASCII."""
    script = [sys.executable, "-c", _SCRIPT, json.dumps(list(commands.items()))]
    variables = os.environ | {"PYTHONIOENCODING": "ascii"}
    return subprocess.run(script, cwd=folder, env=variables, capture_output=True, timeout=120)


def in_shell(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `$@` is the command; PIPESTATUS and the like are the line's own."""
    command = ["bash", "-c", script, "bash", *TOUCHE, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_every_kind_of_output_fits_an_encoding_that_lacks_most_of_it(tmp_path: Path) -> None:
    run = sample_run("comparative", tmp_path)
    qrels = [part for aspect, path in write_qrels(run, tmp_path).items() for part in (f"--{aspect}", str(path))]
    (tmp_path / "bad.txt").write_text("3 FIRST caf\u00e9 1 9 \u2013\n3 \u00c9 a 2\n")
    commands: dict[tuple[str, ...], int] = {
        ("prompts", "show", "judge"): 0,
        ("run", *DATA, *REPLAY, "--out", "new", "--depth", "5"): 0,
        ("demo", "--task", "controversial", "--out", "demo"): 0,
        ("validate", "bad.txt", "--task", "comparative"): 1,
        ("evaluate", str(run), "--task", "comparative", *qrels): 0,
        ("compare", "new/run.txt", str(run), "--task", "comparative", *qrels): 0,
        ("prompts", "list"): 0,
        ("regress", "check", "--dir", str(FOLDER)): 0,
    }
    done = call_in_ascii(tmp_path, commands)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert done.stdout and done.stdout.isascii() and done.stderr.isascii()


@pytest.mark.slow
def test_rows_for_programs_are_utf_8_whatever_the_terminal_s_encoding(tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("3 FIRST caf\u00e9 1 9 t\n3 \u00c9\u2013 b 2 8 t\n")
    validate = ("validate", "run.txt", "--task", "comparative", "--format")
    done = call_in_ascii(tmp_path, {(*validate, output): 1 for output in ("json", "tsv")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().count("\u00c9\u2013") == 2


def test_a_reader_that_leaves_is_no_error_to_read_about(tmp_path: Path) -> None:
    # The reader is gone before anything is printed, and nothing is flushed but at the end.
    done = in_shell(tmp_path, '{ sleep 0.3; "$@"; } | true', "--version")
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
def test_a_full_standard_output_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = in_shell(tmp_path, '"$@" >/dev/full', "--version")
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: No space left on device") and done.stderr.count("\n") == 1


def test_a_run_in_a_folder_whose_name_is_not_utf_8_needs_its_corpus_elsewhere(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system takes names of UTF-8 alone")
    monkeypatch.chdir(folder)
    done = touche("retrieve", *DATA, "--out", "run", "--depth", "3")
    assert (done.returncode, (folder / "run" / "candidates.run.txt").is_file()) == (0, True), done.stderr
    shutil.copy(SAMPLE / "passages.jsonl", folder)
    done = touche("index", "--corpus", "passages.jsonl", "--index", str(tmp_path / "index"))
    assert done.returncode == 1 and "rename the file or folder" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width and the encoding of the machine that runs the tests are none of their concern."""
    settings: Mapping[str, str] = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("PYTHONIOENCODING", "PYTHONUTF8", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
