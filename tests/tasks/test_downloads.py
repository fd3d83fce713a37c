"""Downloaded files are recognised by their checksum or their first topic, and what is wrong with them is found."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from touche_llm.tasks import TASKS, published
from touche_llm.tasks.published import PublishedFile, check_file, read_published

BEIR = "webis_touche2020_v2 webis_touche2020_v3"


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Publish files of other names, sizes and counts."""

    def replace(*files: PublishedFile) -> None:
        monkeypatch.setattr(published, "read_published", lambda: list(files))

    return replace


def published_file(name: str, content: bytes, **given: Any) -> PublishedFile:
    facts: dict[str, Any] = {"tasks": ["comparative"], "role": "corpus", "records": 9} | given
    md5 = hashlib.md5(content).hexdigest()
    return PublishedFile(
        name=name, url=f"https://example.org/{name}", bytes=len(content), md5=md5, **facts
    )


@pytest.mark.parametrize(
    ("first", "tasks"),
    [
        ("2 Which is better, a laptop or a desktop?", "comparative"),
        ("1 Should Teachers Get Tenure?", f"sentence_pairs controversial arguments_2020 {BEIR}"),
        ("51 Do we need sex education in schools?", "arguments_2021"),
    ],
)
def test_topics_are_those_of_the_tasks_with_this_first_topic(
    first: str, tasks: str, tmp_path: Path
) -> None:
    number, title = first.split(" ", 1)
    topic = f"<topic><number>{number}</number><title>{title}</title></topic>"
    (tmp_path / "renamed.xml").write_text(
        f"<topics>{topic}<topic><number>99</number><title>?</title></topic></topics>"
    )
    found = check_file(tmp_path / "renamed.xml")
    assert (found["kind"], found["tasks"], found["problem"], found["first"]) == (
        "topics",
        tasks,
        None,
        first,
    )


def test_files_of_beir_are_a_corpus_topics_and_judgments(tmp_path: Path) -> None:
    argument = {
        "_id": "c67482ba-2019-04-18T13:32:05Z-00000-000",
        "title": "Tea",
        "text": "Hot.",
        "metadata": {},
    }
    (tmp_path / "corpus.jsonl").write_text(json.dumps(argument))
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "1", "text": "Should teachers get tenure?", "metadata": {}}\n'
    )
    (tmp_path / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n1\t{argument['_id']}\t2\n")
    found = [check_file(tmp_path / name) for name in ("corpus.jsonl", "queries.jsonl", "test.tsv")]
    assert [row["kind"] for row in found] == ["corpus", "topics", "qrels"]
    assert BEIR in found[1]["tasks"]


def test_a_file_with_the_published_checksum_is_published(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    lines = b'{"id": "clueweb12-0000tw-00-00000___1", "contents": "text"}\nnot JSON\n'
    publish(published_file("passages.jsonl", lines, records=868_655))
    (tmp_path / "renamed").write_bytes(lines)
    found = check_file(tmp_path / "renamed")
    assert (found["published"], found["problem"], found["roles"]) == (True, None, "corpus")
    assert found["first"] == "clueweb12-0000tw-00-00000___1 text"
    (tmp_path / "renamed").write_bytes(lines.replace(b"text", b"test"))
    assert not check_file(tmp_path / "renamed")["published"]


def test_a_download_that_was_cut_off_is_compared_with_the_published_size(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    packed = gzip.compress(b'{"id": "clueweb12-0000tw-00-00000___1", "contents": "text"}\n' * 99)
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("topics.xml", "<topics/>")
    zipped = (tmp_path / "whole.zip").read_bytes()
    publish(
        published_file("passages.jsonl.gz", packed),
        published_file("topics.zip", zipped, role="topics"),
    )
    for name, content in (("passages.jsonl.gz", packed), ("topics.zip", zipped)):
        (tmp_path / name).write_bytes(content)
        assert check_file(tmp_path / name)["problem"] is None
        (tmp_path / name).write_bytes(content[:-50])
        problem = check_file(tmp_path / name)["problem"]
        assert f"https://example.org/{name}" in problem and f"{len(content):,}" in problem


@pytest.mark.parametrize("content", [b"", b"some text\n", b"PK\x03\x04other", b"<topics></topics>"])
def test_a_file_of_another_kind_is_a_problem(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    found = check_file(tmp_path / "file")
    assert found["problem"] and not found["tasks"]


def test_what_is_published_names_tasks_and_identifies_their_topics() -> None:
    assert {task for file in read_published() for task in file.tasks} == TASKS.keys()
    for task in TASKS:
        (topics,) = (
            file for file in read_published() if task in file.tasks and file.role == "topics"
        )
        assert topics.first is not None
