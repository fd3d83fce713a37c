from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.data.scratches import leave_scratch
from tests.expect import raises_at
from touche_llm.data.files import open_atomic, read_record, read_records, replace_folder
from touche_llm.data.records import Cut
from touche_llm.errors import DataError, UsageError

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
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == (
        [("file", old)] if old else []
    )


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
def test_a_folder_that_breaks_off_leaves_the_old_one(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(type(error)), replace_folder(path, ["*"]) as building:
        (building / "new").touch()
        raise error
    assert sorted(tmp_path.rglob("*")) == [path, path / "old"]


GOOD = b'{"kept_chars":1,"of_chars":2,"prompt_tokens":3}\n'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            b'{"kept_chars":1,"of_chars":"many","prompt_tokens":3}\n',
            "Expected `int`, got `str` - at `$.of_chars`",
        ),
        (
            b'{"kept_chars":1,"of_chars":2,"prompt_tokens":3,"extra":4}\n',
            "Object contains unknown field `extra`",
        ),
        (b"\n", "Input data was truncated"),
    ],
)
def test_a_line_that_is_no_such_record_is_named_with_its_problem(
    tmp_path: Path, line: bytes, problem: str
) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_bytes(GOOD + GOOD + line + GOOD)
    with pytest.raises(DataError) as caught:
        read_records(path, Cut, "cuts")
    assert str(caught.value).startswith(f"{path}:3: not one of the cuts: {problem}")


@pytest.mark.parametrize("count", [0, 2])
def test_one_record_means_one(tmp_path: Path, count: int) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(GOOD)
    assert read_record(path, Cut, "cut") == Cut(kept_chars=1, of_chars=2, prompt_tokens=3)
    path.write_bytes(GOOD * count)
    with raises_at(DataError, path):
        read_record(path, Cut, "cut")


@pytest.mark.parametrize("name", ["part/notes.txt", ".hidden"])
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
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    (path / name).rename(tmp_path / "elsewhere")
    with replace_folder(path, own):
        pass
    assert list(path.iterdir()) == []


def test_what_a_killed_build_left_in_the_folder_is_no_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    left = leave_scratch(path)
    (left / "new" / "half").touch()
    with replace_folder(path, ["new"]):
        pass
    assert list(tmp_path.iterdir()) == [path] and list(path.iterdir()) == []


@pytest.mark.parametrize("name", ["folder", ".touche-llm-0123456789abcdef"])
def test_a_folder_of_the_user_in_it_keeps_a_folder_from_being_replaced(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "folder"
    (path / name).mkdir(parents=True)
    (path / name / "mine").touch()
    with raises_at(UsageError, path, f"{name}/mine"), replace_folder(path, ["new"]):
        pytest.fail("nothing is built")
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path / name / "mine"]


def test_a_file_of_the_user_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with raises_at(UsageError, path), replace_folder(path, ["*"]):
        pytest.fail("nothing is built")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "mine")]


def test_a_link_to_a_folder_is_replaced_and_its_folder_stays(tmp_path: Path) -> None:
    path = tmp_path / "link"
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "old").touch()
    path.symlink_to(linked)
    with replace_folder(path, ["*"]) as building:
        (building / "new").touch()
    assert not path.is_symlink() and list(path.iterdir()) == [path / "new"]
    assert list(linked.iterdir()) == [linked / "old"]
    assert {each.name for each in tmp_path.iterdir()} == {"link", "linked"}
