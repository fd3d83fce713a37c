"""Temporary folders: those of killed processes go; those of living ones and of other hosts stay.

So do folders of the user.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.data.scratches import leave_scratch
from touche_llm.data.files import open_atomic, open_scratch, recover, replace_folder

# Writes half of a file or of a folder, says so, and waits to be killed.
_HALF = """
import sys, time
from pathlib import Path
from touche_llm.data.files import open_atomic, replace_folder
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


def environment() -> dict[str, str]:
    """The variables of a process that imports what this one imports."""
    folders = [os.path.abspath(folder) for folder in sys.path if folder]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)}


@contextmanager
def half_written(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is about to write `path`; killed at the end."""
    command = [sys.executable, "-c", _HALF, kind, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
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


def make_folder(path: Path, *names: str) -> Path:
    """Make a folder with empty files."""
    path.mkdir(parents=True)
    for name in names:
        (path / name).touch()
    return path


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def leave_retired(path: Path, host: str = "") -> Path:
    """Leave a temporary folder with an old version of `path`, as between the two renames."""
    left = leave_scratch(path.parent, host)
    make_folder(left / "old" / path.name, "old")
    return left


@pytest.mark.parametrize("is_new", [True, False])
def test_a_folder_of_the_user_with_a_similar_name_survives(tmp_path: Path, is_new: bool) -> None:
    names = [
        ".ix.old",
        ".ix.writing-0123abcd-0123456789abcdef",
        ".touche-llm-0123456789abcdef",
        ".touche-llm-0123456789abcdef.bak",
        ".touche-llm-0123456789ABCDEF",
        "touche-llm-0123456789abcdef",
    ]
    mine = [make_folder(tmp_path / name, "mine") / "mine" for name in names]
    # Only the name of the folder differs from a temporary one.
    left = leave_scratch(tmp_path)
    mine.append(left.rename(tmp_path / f"{left.name}0") / "new")
    path = tmp_path / "ix"
    if not is_new:
        make_folder(path, "old")

    recover(tmp_path)
    assert path.exists() != is_new
    with replace_folder(path, ["*"]) as building:
        (building / "new").touch()
    with replace_folder(path, ["*"]) as building:
        (building / "newer").touch()
    with pytest.raises(RuntimeError), replace_folder(path, ["*"]):
        raise RuntimeError
    with open_atomic(tmp_path / "file") as stream:
        stream.write(b"new")
    shutil.rmtree(path)
    recover(tmp_path)

    assert all(file.exists() for file in mine)
    assert list_names(tmp_path) == {"file", *(file.parent.name for file in mine)}


def test_only_temporary_folders_of_dead_processes_of_this_host_are_removed(tmp_path: Path) -> None:
    dead = leave_scratch(tmp_path)
    (dead / "new" / "half").touch()
    foreign = leave_scratch(tmp_path, host="elsewhere")
    unmarked = make_folder(tmp_path / ".touche-llm-0123456789abcdef")
    with open_scratch(tmp_path / "living") as content:
        recover(tmp_path)
        assert set(tmp_path.iterdir()) == {foreign, unmarked, content.parent}
    assert set(tmp_path.iterdir()) == {foreign, unmarked}


def test_nothing_counts_as_abandoned_where_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    left = leave_retired(tmp_path / "ix")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with replace_folder(tmp_path / "other", ["*"]) as building:
        (building / "new").touch()
    assert list_names(tmp_path / "other") == {"new"}
    assert set(tmp_path.iterdir()) == {left, tmp_path / "other"}


@pytest.mark.parametrize("is_replaced", [True, False])
def test_an_old_folder_without_a_successor_is_restored(tmp_path: Path, is_replaced: bool) -> None:
    path = tmp_path / "ix"
    leave_retired(path)
    if is_replaced:
        with replace_folder(path, ["*"]) as building:
            assert list_names(path) == {"old"}
            (building / "new").touch()
    else:
        recover(tmp_path)
    assert list_names(path) == ({"new"} if is_replaced else {"old"})
    assert list_names(tmp_path) == {"ix"}


def test_an_old_folder_with_a_successor_or_of_another_host_is_not_restored(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "ix", "new")
    leave_retired(path)
    other = tmp_path / "other"
    foreign = leave_retired(other, host="elsewhere")
    recover(tmp_path)
    assert list_names(path) == {"new"} and not other.exists()
    assert list_names(foreign / "old" / "other") == {"old"}
    assert list_names(tmp_path) == {"ix", foreign.name}


def test_a_folder_that_cannot_be_renamed_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_folder(tmp_path / "ix", "old")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "folder":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError) as caught, replace_folder(path, ["*"]) as building:
        (building / "new").touch()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
    assert list_names(path) == {"old"} and list_names(tmp_path) == {"ix"}


def test_a_recovery_between_the_renames_of_a_living_process_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_folder(tmp_path / "ix", "old")
    rename = Path.rename
    states: list[bool] = []

    def rename_and_recover(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        recover(tmp_path)
        states.append(path.exists())
        return renamed

    monkeypatch.setattr(Path, "rename", rename_and_recover)
    with replace_folder(path, ["*"]) as building:
        (building / "new").touch()
    assert states[:2] == [False, True]
    assert list_names(path) == {"new"} and list_names(tmp_path) == {"ix"}


def test_of_two_processes_that_replace_a_folder_the_later_one_wins(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "ix", "old")
    with replace_folder(path, ["*"]) as late:
        with replace_folder(path, ["*"]) as early:
            (early / "early").touch()
        assert list_names(path) == {"early"}
        (late / "late").touch()
    assert list_names(path) == {"late"} and list_names(tmp_path) == {"ix"}


def test_a_temporary_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removed: list[Path] = []

    def recover_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            recover(tmp_path)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", recover_first)
    with open_atomic(tmp_path / "file") as stream:
        stream.write(b"new")
        assert len(removed) == 1 and not removed[0].exists()
    assert (tmp_path / "file").read_bytes() == b"new" and list_names(tmp_path) == {"file"}


def test_a_folder_that_was_removed_in_part_is_never_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_folder(tmp_path / "ix", "old", "older")
    rmtree = shutil.rmtree

    def remove_in_part(folder: Path) -> None:
        files = [file for file in folder.rglob("*") if file.is_file()]
        if not files:
            rmtree(folder)
            return
        files[0].unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", remove_in_part)
        with replace_folder(path, ["*"]) as building:
            (building / "new").touch()
    left = [file for file in tmp_path.rglob("*old*") if file.is_file()]
    assert len(left) == 1
    shutil.rmtree(path)
    recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Replaces a file or a folder again and again, each time stopped at a later file operation, by a kill
# or by an error of this and all later operations. Prints how each process ended, and
# the files that are left once it is recovered.
_STOPPED = """
import errno, itertools, json, os, signal, sys
from pathlib import Path
from touche_llm.data.files import open_atomic, recover, replace_folder

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
NOT_STOPPED = 3
kind, way, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def write(path, text):
    if kind == "file":
        with open_atomic(path) as stream:
            stream.write(text)
    else:
        with replace_folder(path, ["*"]) as building:
            (building / "content").write_bytes(text)

def write_until(path, number):
    events = []
    def stop(event, _):
        if event in EVENTS:
            events.append(event)
        if event in EVENTS and len(events) > number:
            if way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    sys.addaudithook(stop)
    try:
        write(path, b"new")
    except OSError:
        os._exit(1)
    os._exit(NOT_STOPPED if len(events) <= number else 0)

for number in itertools.count():
    path = root / str(number) / "target"
    write(path, b"old")
    child = os.fork()
    if child == 0:
        write_until(path, number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    recover(path.parent)
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    print(json.dumps([code, [(file.name, file.read_text()) for file in files]]))
    if code == NOT_STOPPED:
        break
"""
_NOT_STOPPED = 3


@pytest.mark.parametrize("way", ["kill", "error"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_process_that_is_stopped_anywhere_leaves_the_old_or_the_new_content(
    tmp_path: Path, kind: str, way: str
) -> None:
    command = [sys.executable, "-c", _STOPPED, kind, way, str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    stops = [json.loads(line) for line in done.stdout.splitlines()]
    codes = [code for code, _ in stops]
    files = [files for _, files in stops]
    name = "target" if kind == "file" else "content"
    old = [[name, "old"]]
    new = [[name, "new"]]
    # Nothing else is left, and the new content never gives way to the old one again.
    first_new = files.index(new)
    assert first_new > 0
    assert all(content == old for content in files[:first_new])
    assert all(content == new for content in files[first_new:])
    assert codes[0] == (-signal.SIGKILL if way == "kill" else 1) and codes[-1] == _NOT_STOPPED
    # An error while the temporary folder is removed is no error of the output.
    assert all(content == new for code, content in stops if code in (0, _NOT_STOPPED))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_is_an_error_that_names_the_output(tmp_path: Path, code: int) -> None:
    for work in (open_atomic, partial(replace_folder, own=())):
        with pytest.raises(OSError) as caught, work(tmp_path / "output"):
            raise OSError(code, os.strerror(code))
        assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path / "output"))
    assert not list(tmp_path.iterdir())
