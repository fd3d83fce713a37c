from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.expect import raises_at
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.qrels import Grades, Qrels, read_qrels
from touche_llm.tasks import get_task

TASK = get_task("comparative")
PAIRS = get_task("sentence_pairs")


def grades_of(folder: Path, content: str | bytes) -> Grades:
    path = folder / "qrels.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_qrels({"relevance": path}, TASK).grades["relevance"]


def qrels_of(folder: Path, **content: str) -> Qrels:
    files = {}
    for aspect, text in content.items():
        files[aspect] = folder / f"{aspect}.txt"
        files[aspect].write_text(text)
    return read_qrels(files, TASK)


@pytest.mark.parametrize("head", ["query-id\tcorpus-id\tscore", "query_id\tdoc_id\tscore"])
def test_tables_of_beir_have_a_head_and_three_columns(tmp_path: Path, head: str) -> None:
    assert grades_of(tmp_path, f"{head}\r\n1\ta\t2\n1\tb\t0\n2\ta\t1\n") == {
        "1": {"a": 2.0, "b": 0.0},
        "2": {"a": 1.0},
    }
    with raises_at(DataError, f"{tmp_path / 'qrels.txt'}:3", "2 columns"):
        grades_of(tmp_path, f"{head}\n1\ta\t2\n1\tb\n")
    with raises_at(DataError, f"{tmp_path / 'qrels.txt'}:2", "3 columns"):
        grades_of(tmp_path, "1 0 a 2\n1 b 0\n")


@pytest.mark.parametrize("grade", ["-3", "3.001", "1.2345", "nan", "1e0", "1_0", "٢", "NO", "."])
def test_what_is_no_grade_is_told_with_its_line(tmp_path: Path, grade: str) -> None:
    with raises_at(DataError, f"{tmp_path / 'qrels.txt'}:2", "topic 1, document b", "-2 to 2"):
        grades_of(tmp_path, f"1 0 a 1\n1 0 b {grade}\n")


@pytest.mark.parametrize(
    ("content", "line", "values"),
    [
        ("1 0 a\n", ":1", ["3 columns", "qid 0 doc grade"]),
        ("1 0 a 1\n1 0 a 0\n", ":2", ["topic 1, document a", "0.0, but 1.0 in a line above"]),
        ("1 0 a\0b 1\n", ":1", ["topic 1, document a", "an id must be"]),
        ("1 0 " + "a" * 20_000 + " 1\n", ":1", ["10,000 bytes"]),
        (b"1 0 \xff 1\n", ":1", ["UTF-8"]),
        ("", "", ["qid 0 doc grade"]),
    ],
)
def test_a_bad_line_is_told_with_its_number(
    tmp_path: Path, content: str | bytes, line: str, values: list[str]
) -> None:
    with raises_at(DataError, f"{tmp_path / 'qrels.txt'}{line}", *values):
        grades_of(tmp_path, content)


def test_files_are_joined_by_aspect_and_a_packed_one_is_read(tmp_path: Path) -> None:
    assert grades_of(tmp_path, gzip.compress(b"1 0 a 1\n")) == {"1": {"a": 1.0}}
    found = qrels_of(tmp_path, stance="1 0 a NO\n", quality="1 0 a 2\n", relevance="1 0 a 1\n")
    assert found.grades == {"relevance": {"1": {"a": 1.0}}, "quality": {"1": {"a": 2.0}}}
    assert found.stances == {"1": {"a": "NO"}}
    assert found.labels == TASK.stances


def test_an_aspect_that_the_task_does_not_have_is_told(tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text("1 0 a,b 1\n")
    assert read_qrels({"coherence": tmp_path / "qrels.txt"}, PAIRS).grades == {
        "coherence": {"1": {"a,b": 1.0}}
    }
    with pytest.raises(UsageError, match="coherence.*comparative.*relevance, quality, stance"):
        read_qrels({"coherence": tmp_path / "qrels.txt"}, TASK)
    with pytest.raises(UsageError, match="relevance, quality, stance"):
        read_qrels({}, TASK)


def test_judgments_of_some_topics_are_grades_and_stances_of_those_alone(tmp_path: Path) -> None:
    judged = qrels_of(
        tmp_path, relevance="1 0 a 1\n2 0 c 2\n", stance="1 0 a NO\n2 0 c FIRST\n3 0 d NO\n"
    )
    some = judged.restrict_to({"2", "4"})
    assert some.grades == {"relevance": {"2": {"c": 2.0}}}
    assert some.stances == {"2": {"c": "FIRST"}}
    assert judged.restrict_to({"3"}).grades == {"relevance": {}} and judged.restrict_to(
        {"3"}
    ).stances == {"3": {"d": "NO"}}
    assert set(judged.stances) == {"1", "2", "3"}, "the judgments themselves stay as they were"
