from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.expect import raises_at
from touche_llm.data import io
from touche_llm.data.io import (
    BUILDING,
    iterate_records,
    open_atomic,
    open_scratch,
    read_file_state,
    read_record,
    read_records,
    replace_folder,
    write_records,
)
from touche_llm.data.records import Cut, Judgment, Reading
from touche_llm.errors import DataError, UsageError
from touche_llm.llm.engine import EngineInfo

ERRORS = [RuntimeError("halfway"), KeyboardInterrupt()]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_whole_file_appears_with_its_folders_and_the_usual_rights(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    with open_atomic(path) as stream:
        stream.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("old", [b"old", None])
def test_a_file_that_breaks_off_leaves_the_old_one_or_none(
    tmp_path: Path, error: BaseException, old: bytes | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(type(error)), open_atomic(path) as stream:
        stream.write(b"new")
        stream.flush()
        raise error
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == ([("file", old)] if old else [])


@pytest.mark.parametrize("there", [True, False])
def test_a_whole_folder_takes_the_place_of_the_old_one(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "folder"
    if there:
        path.mkdir()
        (path / "old").touch()
    with replace_folder(path, ["*"]) as building:
        (building / "new").touch()
        assert path.exists() == there
    assert list(tmp_path.iterdir()) == [path]
    assert list(path.iterdir()) == [path / "new"]
    assert path.stat().st_mode & 0o777 == 0o777 & ~umask()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_breaks_off_leaves_the_old_one_or_none(tmp_path: Path, error: BaseException, there: bool) -> None:
    path = tmp_path / "folder"
    if there:
        path.mkdir()
        (path / "old").touch()
    with pytest.raises(type(error)), replace_folder(path, ["*"]) as building:
        (building / "new").touch()
        raise error
    assert sorted(tmp_path.rglob("*")) == ([path, path / "old"] if there else [])


@pytest.mark.parametrize("failing", [1, 2])
def test_where_a_rename_fails_the_old_folder_is_in_its_place_and_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("kept")
    renamed: list[Path] = []
    rename, problem = Path.rename, OSError("the disk is full")

    def fails(self: Path, target: Path) -> Path:
        renamed.append(self)
        if len(renamed) == failing:
            raise problem
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError) as caught, replace_folder(path, ["*"]) as building:
        (building / "new").touch()
    assert caught.value is problem
    assert len(renamed) >= failing
    assert sorted(tmp_path.rglob("*")) == [path, path / "old"]
    assert (path / "old").read_text() == "kept"


@pytest.mark.parametrize("limit", [None, 2**16])
def test_an_array_that_finds_no_room_has_a_cause_and_a_place(tmp_path: Path, limit: int | None) -> None:
    """numpy reports neither."""
    path, before = tmp_path / "folder", resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(OSError) as caught, replace_folder(path, ["*"]) as building:
            if limit is None:
                # No byte fits into this device.
                (building / "a.npy").symlink_to("/dev/full")
            else:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            np.save(building / "a.npy", np.zeros(2**20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == (errno.ENOSPC if limit is None else errno.EFBIG)
    assert caught.value.filename == str(path) and list(tmp_path.iterdir()) == []


def test_a_record_that_cannot_be_made_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    write_records(path, [Cut(kept_chars=1, of_chars=2, prompt_tokens=3)])
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        write_records(path, (Cut(kept_chars=1 // n, of_chars=2, prompt_tokens=3) for n in (1, 0)))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


GOOD = b'{"kept_chars":1,"of_chars":2,"prompt_tokens":3}\n'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"kept_chars":1,"of_chars":"many","prompt_tokens":3}\n', "Expected `int`, got `str` - at `$.of_chars`"),
        (b'{"kept_chars":1,"of_chars":2}\n', "Object missing required field `prompt_tokens`"),
        (b'{"kept_chars":1,"of_chars":2,"prompt_tokens":3,"extra":4}\n', "Object contains unknown field `extra`"),
        (b"[1, 2, 3]\n", "Expected `object`, got `array`"),
        (b'{"kept_chars":1\n', "Input data was truncated"),
        (b"\n", "Input data was truncated"),
        (b"\xff\n", "JSON is malformed: invalid character (byte 0)"),
    ],
)
def test_a_line_that_is_no_such_record_is_named_with_its_problem(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_bytes(GOOD + GOOD + line + GOOD)
    with pytest.raises(DataError) as caught:
        read_records(path, Cut, "cuts")
    assert str(caught.value).startswith(f"{path}:3: not one of the cuts: {problem}")


def test_a_missing_file_is_named_with_what_it_should_hold(tmp_path: Path) -> None:
    with raises_at(DataError, tmp_path / "nowhere.jsonl"):
        read_records(tmp_path / "nowhere.jsonl", Cut, "cuts")


@pytest.mark.parametrize("length", [len(GOOD) + 1, 2 * len(GOOD), 5000])
def test_too_long_a_line_is_named_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(io, "MAX_LINE", len(GOOD))
    path = tmp_path / "cuts.jsonl"
    path.write_bytes(GOOD + GOOD[:-1].ljust(length - 1) + b"\n")
    with pytest.raises(DataError) as caught:
        read_records(path, Cut, "cuts")
    assert str(caught.value).startswith(f"{path}:2: longer than {len(GOOD)} bytes")


def test_the_state_of_a_file_shows_a_change_of_any_byte_of_a_small_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    content = bytes(range(250)) * 4
    path.write_bytes(content)
    status, states = path.stat(), {read_file_state(path)}
    for place in range(0, len(content), 50):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        states.add(read_file_state(path))
    assert len(states) == 21
    assert {(state.size, state.mtime_ns) for state in states} == {(1_000, status.st_mtime_ns)}


def test_the_state_of_a_large_file_shows_a_change_in_each_of_64_places(tmp_path: Path) -> None:
    path = tmp_path / "a"
    size = 2**30
    with path.open("wb") as stream:
        stream.truncate(size)
    status, states = path.stat(), {read_file_state(path)}
    for block in range(64):
        with path.open("r+b") as stream:
            stream.seek((size - 2**16) * block // 63)
            stream.write(b"x")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        states.add(read_file_state(path))
    assert len(states) == 65


@pytest.mark.parametrize("count", [0, 2])
def test_one_record_means_one(tmp_path: Path, count: int) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(GOOD)
    assert read_record(path, Cut, "cut") == Cut(kept_chars=1, of_chars=2, prompt_tokens=3)
    path.write_bytes(GOOD * count)
    with raises_at(DataError, path):
        read_record(path, Cut, "cut")


def test_records_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_bytes(GOOD + b"broken\n")
    records = iterate_records(path, Cut, "cuts")
    assert next(records) == Cut(kept_chars=1, of_chars=2, prompt_tokens=3)
    with pytest.raises(DataError):
        next(records)


numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**53)
readings = st.builds(
    Reading,
    answered=st.integers(-(2**53), 2**53) | st.text(),
    probabilities=st.none() | st.dictionaries(st.text(), numbers),
    off_label_mass=st.none() | numbers,
    shared=st.none() | numbers,
)
judgments = st.builds(
    Judgment,
    topic_id=st.text(),
    document_id=st.text(),
    grades=st.dictionaries(st.text(), st.floats(0, 3)),
    stance=st.text(),
    readings=st.dictionaries(st.text(), readings),
    source=st.sampled_from(["probabilities", "value", "inherited"]),
    cut=st.none() | st.builds(Cut, kept_chars=counts, of_chars=counts, prompt_tokens=counts),
    prompt=st.text(),
    key=st.none() | st.text(),
    sample=counts,
)


@pytest.mark.parametrize("grade", ["NaN", "Infinity", "-0.1", "10.1", "null"])
def test_a_judgment_with_a_grade_that_is_none_is_refused(tmp_path: Path, grade: str) -> None:
    judgment = Judgment(
        topic_id="1",
        document_id="d",
        grades={"relevance": 2.5, "quality": 1},
        stance="NO",
        readings={},
        source="value",
        prompt="p",
        key="k",
    )
    (tmp_path / "judgments.jsonl").write_text(judgment.to_json().decode().replace("2.5", grade))
    with raises_at(DataError, f"{tmp_path / 'judgments.jsonl'}:1"):
        read_records(tmp_path / "judgments.jsonl", Judgment, "judgments")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@settings(deadline=None, max_examples=30)
@given(records=st.lists(judgments, max_size=5))
@pytest.mark.slow
def test_written_judgments_read_back_the_same(folder: Path, records: list[Judgment]) -> None:
    path = folder / "judgments.jsonl"
    write_records(path, records)
    assert read_records(path, Judgment, "judgments") == records
    assert path.read_bytes().count(b"\n") == len(records)


def test_a_record_that_pydantic_reads_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(b'{"name": "' + b"x" * 2**20 + b'"}')
    with raises_at(DataError, f"{path}:1", "1,048,576 bytes"):
        read_record(path, EngineInfo, "engine")


@pytest.mark.parametrize("name", ["notes.txt", "part/notes.txt", ".hidden", "new.bak", "part/deep/new"])
def test_a_folder_with_a_file_of_the_user_is_not_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / "folder"
    own = ["new", "part/new"]
    with replace_folder(path, own) as building:
        (building / "new").touch()
        (building / "part").mkdir()
        (building / "part" / "new").touch()
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("mine")
    with raises_at(UsageError, path, name) as caught, replace_folder(path, own):
        pytest.fail("nothing is built")
    assert "part/new," not in str(caught.value)
    assert (path / name).read_text() == "mine"
    (path / name).unlink()
    with pytest.raises(UsageError), replace_folder(path, own):
        (path / name).write_text("added meanwhile")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    (path / name).rename(tmp_path / "elsewhere")
    with replace_folder(path, own):
        pass
    assert list(path.iterdir()) == []


def test_a_link_to_a_folder_is_a_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "precious")
    with raises_at(UsageError, tmp_path / "folder", "link"), replace_folder(tmp_path / "folder", ["new"]):
        pass


def test_what_a_killed_build_left_in_the_folder_is_no_file_of_the_user(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with open_scratch(folder / "part", BUILDING) as (place, _):
        (place / "half").touch()
    with replace_folder(folder, ["new"]):
        pass
    assert list(tmp_path.iterdir()) == [folder] and list(folder.iterdir()) == []


def test_records_that_are_held_in_memory_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_bytes(GOOD * 3)
    assert len(read_records(path, Cut, "cuts", max_bytes=3 * len(GOOD))) == 3
    with raises_at(DataError, path, f"{3 * len(GOOD) - 1:,} bytes"):
        read_records(path, Cut, "cuts", max_bytes=3 * len(GOOD) - 1)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(GOOD)
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert len(read_records(tmp_path / "link", Cut, "cuts")) == 1
    with raises_at(DataError, tmp_path / "pipe", "not a regular file"):
        read_records(tmp_path / "pipe", Cut, "cuts")
    with raises_at(DataError, tmp_path, "directory"):
        read_records(tmp_path, Cut, "cuts")
