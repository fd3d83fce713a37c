from __future__ import annotations

from pathlib import Path

import pytest

from tests.expect import raises_at
from touche_llm.errors import UsageError
from touche_llm.integrations.tira import detect_input

PLAIN = "<topics><topic><number>1</number><title>Are zoos good?</title></topic></topics>"
COMPARED = (
    "<topics><topic><number>1</number><title>Are cats or dogs better?</title><objects>cat, dog</objects></topic>"
    "</topics>"
)


def folder_with(folder: Path, topics: str, *names: str) -> Path:
    (folder / "topics.xml").write_text(topics)
    for name in names:
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("topics", "name", "task"),
    [
        (COMPARED, "passages.jsonl", "comparative"),
        (PLAIN, "args_processed_04_01.csv.gz", "sentence_pairs"),
        (PLAIN, "args_processed_04_01.tar.gz", "sentence_pairs"),
        (COMPARED, "documents.jsonl", "comparative"),
        (PLAIN, "corpus.jsonl", "controversial"),
    ],
)
def test_the_task_is_told_by_the_corpus_and_by_the_topics(
    tmp_path: Path, topics: str, name: str, task: str
) -> None:
    found = detect_input(folder_with(tmp_path, topics, name))
    assert (found.task.name, found.corpus, found.candidates) == (task, tmp_path / name, None)
    assert found.topics == tmp_path / "topics.xml"


@pytest.mark.parametrize(
    ("topics", "others", "task"),
    [
        (PLAIN, [], "controversial"),
        (COMPARED, [], "comparative"),
        (PLAIN, ["passages.jsonl"], "comparative"),
    ],
)
def test_a_rerank_file_is_corpus_and_candidates(
    tmp_path: Path, topics: str, others: list[str], task: str
) -> None:
    found = detect_input(folder_with(tmp_path, topics, *others, "rerank.jsonl.gz"))
    assert found.task.name == task
    assert found.corpus == found.candidates == tmp_path / "rerank.jsonl.gz"


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_folder_without_topics_is_refused(tmp_path: Path, name: str) -> None:
    with raises_at(UsageError, tmp_path / name, "topics.xml, queries.jsonl, queries.xml"):
        detect_input(tmp_path / name)


def test_the_unpacked_corpus_is_preferred(tmp_path: Path) -> None:
    folder_with(tmp_path, PLAIN, "args_processed_04_01.tar.gz", "args_processed_04_01.csv")
    assert detect_input(tmp_path).corpus == tmp_path / "args_processed_04_01.csv"
