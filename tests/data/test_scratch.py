"""Temporary files and folders: those of killed processes go, those of living ones and of other machines stay."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from touche_llm.data.io import (
    open_atomic,
    open_scratch,
    recover,
    remove_abandoned,
    replace_folder,
)

# Writes half of a file or of a folder, says so, and waits to be killed.
_HALF = """
import sys, time
from pathlib import Path
from touche_llm.data.io import open_atomic, replace_folder
path = Path(sys.argv[2])
if sys.argv[1] == "file":
    with open_atomic(path) as stream:
        stream.write(b"half")
        stream.flush()
        print("ready", flush=True)
        time.sleep(600)
else:
    with replace_folder(path, ["*"]) as building:
        (building / "half").touch()
        print("ready", flush=True)
        time.sleep(600)
"""


@contextmanager
def half_written(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is about to write `path`; killed at the end."""
    command = [sys.executable, "-c", _HALF, kind, str(path)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_goes_with_the_next_output_and_not_before(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "output"
    with half_written(kind, path) as process:
        (left,) = tmp_path.iterdir()
        with open_atomic(tmp_path / "other") as stream:
            stream.write(b"other")
        assert left.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert left.exists()
    if kind == "file":
        with open_atomic(path) as stream:
            stream.write(b"whole")
        assert path.read_bytes() == b"whole"
    else:
        with replace_folder(path, ["*"]) as building:
            (building / "whole").touch()
        assert list(path.iterdir()) == [path / "whole"]
    assert {each.name for each in tmp_path.iterdir()} == {"output", "other"}


def name(output: str, host: str = "") -> str:
    """The name of a temporary folder of a process that has died.

    Of this machine unless `host` is another.
    """
    with open_scratch(Path(f"/tmp/{output}")) as place:
        own = place.name.rsplit("-", 2)[1]
    return place.name.replace(f"-{own}-", f"-{host or own}-")


def test_only_names_of_this_program_and_this_machine_are_removed(tmp_path: Path) -> None:
    own = name("run.txt")
    kept = [
        name("run.txt", host="0123abcd"),
        own.removeprefix("."),
        f"{own}.bak",
        ".run.txt.writing",
        ".run.txt.swp",
        "run.txt.partial",
    ]
    for each in (own, *kept):
        (tmp_path / each).mkdir()
    remove_abandoned(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == set(kept)


# Is killed between the two renames, when the folder has no other copy than the retired one.
_BETWEEN = """
import os, signal, sys
from pathlib import Path
from touche_llm.data.io import replace_folder
rename = Path.rename
def killed(self, target):
    rename(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.rename = killed
with replace_folder(Path(sys.argv[1]), ["*"]) as building:
    (building / "new").touch()
"""


def killed_between_the_renames(path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    }
    done = subprocess.run([sys.executable, "-c", _BETWEEN, str(path)], env=environment, check=False)
    assert (done.returncode, path.exists()) == (-signal.SIGKILL, False)


def test_a_folder_whose_replacement_was_killed_between_the_renames_is_put_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    killed_between_the_renames(path)
    recover(path)
    assert [each.name for each in path.iterdir()] == ["old"]
    killed_between_the_renames(path)
    with replace_folder(path, ["*"]) as building:
        assert [each.name for each in path.iterdir()] == ["old"]
        (building / "new").touch()
    assert [each.name for each in path.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_is_an_error_that_names_the_output(tmp_path: Path, code: int) -> None:
    for work in (open_atomic, partial(replace_folder, own=())):
        with pytest.raises(OSError) as caught, work(tmp_path / "output"):
            raise OSError(code, os.strerror(code))
        assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path / "output"))
    assert not list(tmp_path.iterdir())
