from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from tests.expect import raises_at
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.tasks import get_task

TASK = get_task("comparative")
REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "comparative" / "qrels-stance.txt"


def read_stances(path: Path) -> dict[str, dict[str, str]]:
    return read_qrels({"stance": path}, TASK).stances


def stances_of(folder: Path, content: str | bytes) -> dict[str, dict[str, str]]:
    path = folder / "qrels.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_stances(path)


def test_stances_are_read_by_topic_and_document(tmp_path: Path) -> None:
    content = "12 0 d2 NO\n3 0 d1 FIRST\n12 Q0 d1 NEUTRAL\n"
    assert stances_of(tmp_path, content) == {"12": {"d2": "NO", "d1": "NEUTRAL"}, "3": {"d1": "FIRST"}}


def test_columns_are_parted_by_any_white_space(tmp_path: Path) -> None:
    content = "\ufeff12\t0\td2   NO\r\n\r\n  3 0 d1 FIRST"
    assert stances_of(tmp_path, content) == {"12": {"d2": "NO"}, "3": {"d1": "FIRST"}}


def test_a_gzipped_file_is_read(tmp_path: Path) -> None:
    assert stances_of(tmp_path, gzip.compress(b"12 0 d2 NO\n", mtime=0)) == {"12": {"d2": "NO"}}


def test_a_line_that_is_there_twice_says_the_same(tmp_path: Path) -> None:
    assert stances_of(tmp_path, "12 0 d2 NO\n12 0 d2 NO\n") == {"12": {"d2": "NO"}}


@pytest.mark.parametrize(
    ("content", "line", "values"),
    [
        ("12 0 d1 NO\n12 0 d2\n", ":2", ["3 columns", "qid 0 doc label"]),
        ("12 0 d1 NO extra\n", ":1", ["5 columns"]),
        ("12 0 d1 1\n", ":1", ["topic 12, document d1", "'1'", "FIRST, SECOND, NEUTRAL, NO"]),
        ("12 0 d1 no\n", ":1", ["topic 12, document d1", "'no'"]),
        ("12 0 d1 NO\n\n12 0 d1 FIRST\n", ":3", ["topic 12, document d1", "FIRST, but NO in line 1"]),
        (b"12 0 d1 NO\n12 0 d\xff NO\n", ":2", ["UTF-8"]),
        ("12 0 d1 NO\n12 0 " + "d" * 20_000 + " NO\n", ":2", ["10,000 bytes"]),
        ("\n \n", "", ["qid 0 doc label"]),
        (gzip.compress(b"12 0 d2 NO\n" * 100, mtime=0)[:-9], "", ["gzip"]),
    ],
)
def test_a_bad_line_is_told_with_its_number(tmp_path: Path, content: str | bytes, line: str, values: list[str]) -> None:
    with raises_at(DataError, f"{tmp_path / 'qrels.txt'}{line}", *values):
        stances_of(tmp_path, content)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with raises_at(DataError, tmp_path / "none.txt"):
        read_stances(tmp_path / "none.txt")


@pytest.mark.skipif(not REAL.is_file(), reason=f"the real judgments are missing: {REAL}")
def test_every_line_of_the_real_judgments_is_read() -> None:
    stances = read_stances(REAL)
    lines = [line.split() for line in REAL.read_text().splitlines()]
    assert len(stances) == 25  # judged topics, as the organisers say
    assert sum(map(len, stances.values())) == len(lines)
    labels = Counter(label for topic in stances.values() for label in topic.values())
    assert labels == Counter(columns[3] for columns in lines)


def test_an_id_that_is_too_long_is_refused_without_repeating_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        stances_of(tmp_path, f"1 0 {'x' * 3823} NO\n")
    assert len(str(refused.value)) < len(str(tmp_path)) + 300
