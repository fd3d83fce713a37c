from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from touche_llm.data.files import encode_line
from touche_llm.errors import DataError
from touche_llm.prompt_lab.looks import (
    Look,
    LookTemplate,
    describe_looks,
    hash_grades,
    look_log,
    read_looks,
    record_look,
)

GRADES = {"1": {"a": 2.0, "b": 0.0}, "2": {"c": 1.0}}


def look(
    number: int = 0,
    task: str = "comparative",
    grades: dict[str, dict[str, float]] | None = None,
    topics: list[str] | None = None,
) -> Look:
    return Look(
        time=datetime(2026, 1, 2, 3, number % 60, tzinfo=UTC),
        task=task,
        aspect="relevance",
        qrels=hash_grades(grades or GRADES),
        topics=topics or ["1", "2"],
        templates=[LookTemplate(name=f"prompt {number}", version=1, hash=f"{number:06}")],
    )


def test_looks_are_counted_by_task_and_judgments(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "looks"
    others = [look(1, task="controversial"), look(2, grades={"1": {"a": 1.0}})]
    assert [record_look(path, each) for each in (look(0), *others)] == [[], [], []]
    assert record_look(path, look(3)) == [look(0)]
    assert read_looks(path) == [look(0), *others, look(3)]


def test_looks_at_other_topics_are_logged_and_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "looks"
    for topics in (["1", "3"], ["4"], ["2", "4", "6"]):
        record_look(path, look(topics=topics))
    assert [past.topics for past in record_look(path, look(topics=["2", "1"]))] == [["1", "3"], ["2", "4", "6"]]


def test_judgments_are_the_same_in_any_order() -> None:
    assert hash_grades({"2": {"c": 1.0}, "1": {"b": 0.0, "a": 2.0}}) == hash_grades(GRADES)
    assert hash_grades({"1": {"a": 2.0}, "2": {"c": 1.0}}) != hash_grades(GRADES)


@pytest.mark.parametrize(
    ("damaged", "line"),
    [(b"{}\n", 2), (b"\n", 2), (encode_line(look())[:40], 2), (encode_line(look()).rstrip(), 2), (b"\xff\n", 2)],
)
def test_a_damaged_log_is_an_error_with_file_and_line_and_stays_as_it_is(
    tmp_path: Path, damaged: bytes, line: int
) -> None:
    path = tmp_path / "looks"
    path.write_bytes(encode_line(look()) + damaged)
    with pytest.raises(DataError) as caught:
        record_look(path, look(1))
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert path.read_bytes() == encode_line(look()) + damaged


@pytest.mark.slow
def test_processes_that_append_at_a_time_lose_no_look(tmp_path: Path) -> None:
    path = tmp_path / "looks"
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.prompt_lab.test_looks import look\n"
        "from touche_llm.prompt_lab.looks import record_look\n"
        "for number in range(40):\n    print(len(record_look(Path(sys.argv[1]), look(number))))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    counted = [int(line) for process in started for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in started] == [0, 0, 0]
    # No two of them saw as many before.
    assert sorted(counted) == list(range(120)) and len(read_looks(path)) == 120


def test_the_log_is_beside_a_cache_and_not_beside_a_cassette() -> None:
    assert look_log(Path("mine/answers.sqlite")) == Path("mine/hold_out_looks.jsonl")
    assert look_log(Path("mine/cassette.jsonl")) == Path(".touche-llm/hold_out_looks.jsonl")


def test_a_note_lists_the_latest_looks(tmp_path: Path) -> None:
    assert "first look" in describe_looks([], tmp_path)
    note = describe_looks([look(number) for number in range(8)], tmp_path)
    listed = [f"{number:06}" in note for number in range(8)]
    assert listed == [False] * 3 + [True] * 5 and "before this one: 8;" in note
    assert note.endswith(f"(3 more in {tmp_path})")
    note = describe_looks([look(number) for number in range(5)], tmp_path)
    assert [f"{number:06}" in note for number in range(5)] == [True] * 5 and note.endswith(f" 000000 ({tmp_path})")
