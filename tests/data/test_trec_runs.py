from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from touche_llm.data.records import Candidate, RunLine
from touche_llm.data.runs.reading import read_candidates, read_run
from touche_llm.data.runs.writing import make_strictly_decreasing, write_candidates, write_run
from touche_llm.errors import DataError

# Beyond about 4e9 a 64-bit float has no six decimals left; scores of retrieval stay far below.
scores = st.floats(-1e9, 1e9)
falling = st.lists(scores).map(lambda values: sorted(values, reverse=True))


# Different as written with six decimals, equal as 32-bit floats.
NEAR = [62.089341, 62.08934, 1e6 + 0.00002, 1e6 + 0.00001, 1e9, -20.5, -20.500001]


@example([62.089341, 62.08934])
@example([-20.5, -20.500001])
@given(
    falling | st.lists(scores) | st.lists(st.sampled_from([*NEAR, 0.0, -0.0, -1e-7]), max_size=200)
)
def test_scores_fall_strictly_once_written_also_in_single_precision(values: list[float]) -> None:
    """trec_eval keeps scores as 32-bit floats: what differs in the file only beyond them would be a tie there."""
    decreasing = make_strictly_decreasing(values)
    texts = [f"{score:.6f}" for score in decreasing]
    assert len(texts) == len(values)
    for kind in (float, np.float32):
        assert all(kind(above) > kind(below) for above, below in pairwise(texts))
    assert decreasing == make_strictly_decreasing(values) == list(map(float, texts))


words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=12
)


@st.composite
def runs(draw: st.DrawFn) -> list[RunLine]:
    tag = draw(words)
    lines = []
    for topic in draw(st.lists(words, min_size=1, max_size=4, unique=True)):
        documents = draw(st.lists(words, min_size=1, max_size=8, unique=True))
        values = draw(st.lists(scores, min_size=len(documents), max_size=len(documents)))
        ordered = make_strictly_decreasing(sorted(values, reverse=True))
        for rank, (document, score) in enumerate(zip(documents, ordered, strict=True), start=1):
            lines.append(RunLine(topic, draw(words), document, rank, score, tag))
    return lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@settings(deadline=None, max_examples=50)
@given(lines=runs(), data=st.data())
def test_a_written_run_reads_back_the_same_whatever_the_order_of_its_lines(
    folder: Path, lines: list[RunLine], data: st.DataObject
) -> None:
    path = folder / "run.txt"
    expected: dict[str, list[Candidate]] = {}
    for line in lines:
        candidate = Candidate(line.topic_id, line.document_id, line.rank, line.score)
        expected.setdefault(line.topic_id, []).append(candidate)
    write_run(path, lines)
    assert list(read_candidates(path, 1000).items()) == list(expected.items())
    write_run(path, data.draw(st.permutations(lines)))
    assert read_candidates(path, 1000) == expected
    assert read_candidates(path, 2) == {
        topic: candidates[:2] for topic, candidates in expected.items()
    }


def test_candidates_are_written_as_a_run_whose_scores_agree_with_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "candidates.run.txt"
    tied = [Candidate("2", "a", 1, 7.25), Candidate("2", "b", 2, 7.25)]
    write_candidates(path, [tied, [], [Candidate("1", "a", 1, 3.0)]], "bm25")
    assert (
        path.read_text()
        == "2 Q0 a 1 7.250000 bm25\n2 Q0 b 2 7.249999 bm25\n1 Q0 a 1 3.000000 bm25\n"
    )
    assert [each.document_id for each in read_candidates(path, 10)["2"]] == ["a", "b"]


def run_file(folder: Path, content: str | bytes) -> Path:
    path = folder / "other.run"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


THREE = "2 Q0 a 1 3.0 t\n2 Q0 b 2 2.0 t\n2 Q0 c 3 1.0 t\n"
EXPECTED = {
    "2": [Candidate("2", "a", 1, 3.0), Candidate("2", "b", 2, 2.0), Candidate("2", "c", 3, 1.0)]
}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(" ", " \t  "),
        lambda text: text.replace(" t\n", " my run (final)\n"),
        lambda text: text.replace("Q0", "FIRST"),
        lambda text: (
            text.replace(" 1 3.0", " 0 3.0").replace(" 2 2.0", " 1 2.0").replace(" 3 1.0", " 2 1.0")
        ),
        lambda text: "".join(sorted(text.splitlines(keepends=True), reverse=True)),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
    ],
    ids=[
        "mixed white space",
        "tag with spaces",
        "stance",
        "ranks from 0",
        "unsorted",
        "BOM",
        "CRLF",
    ],
)
def test_a_run_of_another_tool_is_read(tmp_path: Path, change: Callable[[str], str]) -> None:
    assert read_candidates(run_file(tmp_path, change(THREE)), 10) == EXPECTED


@pytest.mark.parametrize(
    ("content", "line", "fragments"),
    [
        (b"\n \n", "", ["empty run"]),
        (b"2 Q0 \xff 1 1 t\n", ":1", ["not UTF-8"]),
        ("\ufeff2 Q0 b 2 2.0 t" + " " * 10_001, ":1", ["longer than 10,000 bytes"]),
        (THREE + "2 Q0 b 4 0.5 t\n", ":4", ["topic 2", "document b", "line 2"]),
        ("2 Q0 a 1 3.0 t\n2 Q0 b 2 2.0\n", ":2", ["5 columns"]),
        ("2 Q0 a 1 3.0 t\n\n2 Q0 b one 2.0 t\n", ":3", ["rank", "'one'"]),
        ("2 Q0 a 1 nan t\n", ":1", ["score 'nan' is not a finite number"]),
        ("2 Q0 a 1 1.0 t\n2 Q0 b 2 2.0 t\n", ":2", ["topic 2", "document b", "line 1", "agree"]),
    ],
)
def test_a_bad_file_or_line_is_named(
    tmp_path: Path, content: str | bytes, line: str, fragments: list[str]
) -> None:
    path = run_file(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_candidates(path, 1)
    assert str(caught.value).startswith(f"{path}{line}: ")
    for fragment in fragments:
        assert fragment in str(caught.value)


def rerank_file(folder: Path, *records: dict[str, Any], name: str = "rerank.jsonl") -> Path:
    path = folder / name
    content = "".join(
        json.dumps({"query": "q", "text": "t", **record}) + "\n" for record in records
    ).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def ranked(document: str, rank: Any, score: Any, topic: Any = "2") -> dict[str, Any]:
    return {"qid": topic, "docno": document, "rank": rank, "score": score}


@pytest.mark.parametrize("name", ["rerank.jsonl", "rerank.jsonl.gz"])
def test_the_first_stage_of_a_rerank_file_is_read_as_a_run_is(tmp_path: Path, name: str) -> None:
    records = [
        ranked("c", 3, 1),
        ranked("a", 1, 3.0),
        ranked("x", 7, -1.5, topic=10),
        ranked("b", 2, 2.0),
    ]
    found = read_candidates(rerank_file(tmp_path, *records, name=name), 10)
    assert list(found.items()) == [("2", EXPECTED["2"]), ("10", [Candidate("10", "x", 1, -1.5)])]
    assert read_candidates(tmp_path / name, 1)["2"] == EXPECTED["2"][:1]


def test_a_rerank_file_without_ranks_keeps_the_order_of_its_lines_in_each_topic(
    tmp_path: Path,
) -> None:
    path = rerank_file(
        tmp_path,
        ranked("z", None, None),
        ranked("a", 5, 9.0, topic="3"),
        {"qid": "2", "docno": "b"},
        ranked("y", None, None),
    )
    found = read_candidates(path, 2)
    assert [(each.document_id, each.rank) for each in found["2"]] == [("z", 1), ("b", 2)]
    assert found["2"][0].score > found["2"][1].score
    assert found["3"] == [Candidate("3", "a", 1, 9.0)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (ranked("b", None, None), "topic 2, document b: no rank or score"),
        (ranked("b", 2, None), "topic 2, document b: no rank or score"),
        (ranked("b", "2", 1.0), "$.rank"),
        (ranked("b", 2, float("nan")), "JSON"),
        (ranked("b", 2, 1.0, topic="2 3"), "`qid`"),
        (ranked("b c", 2, 1.0), "`docno`"),
    ],
)
def test_a_line_of_a_rerank_file_that_cannot_be_used_is_named(
    tmp_path: Path, bad: dict[str, Any], reason: str
) -> None:
    path = rerank_file(tmp_path, ranked("a", 1, 3.0), bad)
    with pytest.raises(DataError) as caught:
        read_candidates(path, 1)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert reason in str(caught.value)


def test_stances_are_read_with_a_run_and_q0_is_none(tmp_path: Path) -> None:
    path = run_file(tmp_path, "2 Q0 a 1 3 t\n2 PRO b 2 2 t\n3\tCON\tb 1 1 t\n")
    found = read_run(path)
    assert found.stances == {("2", "b"): "PRO", ("3", "b"): "CON"}
    assert read_run(path, ("PRO", "CON")) == found
    assert found.rankings == read_candidates(path, 10)
    assert read_run(rerank_file(tmp_path, ranked("a", 1, 3.0))).stances == {}


def test_a_stance_that_is_none_of_the_labels_is_named(tmp_path: Path) -> None:
    path = run_file(tmp_path, "2 PRO a 1 3 t\n2 pro b 2 2 t\n")
    with pytest.raises(DataError) as caught:
        read_run(path, ("PRO", "CON"))
    assert str(caught.value).startswith(f"{path}:2: topic 2, document b: stance 'pro'")
