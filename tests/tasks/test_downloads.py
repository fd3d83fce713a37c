"""Downloaded files are compared with the published ones by size and checksum."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from touche_llm.tasks import TASKS, published
from touche_llm.tasks.published import PublishedFile, check_file, read_published


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
    ("content", "kind"),
    [
        (
            "<topics><topic><number>2</number>"
            "<title>Which is better, a laptop or a desktop?</title></topic></topics>",
            "topics",
        ),
        ('{"_id": "1", "text": "Should teachers get tenure?", "metadata": {}}\n', "topics"),
        ('{"_id": "c67482ba", "title": "Tea", "text": "Hot.", "metadata": {}}\n', "arguments"),
        ('{"id": "clueweb12-0000tw-00-00000___1", "contents": "text"}\n', "documents"),
        ("query-id\tcorpus-id\tscore\n1\tc67482ba\t2\n", "qrels"),
        ("2 Q0 clueweb12-0000tw-00-00000___1 1 2.0 t\n", "run"),
    ],
)
def test_another_file_than_the_published_ones_has_a_kind_and_no_task(
    content: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "topics.xml").write_text(content)
    found = check_file(tmp_path / "topics.xml")
    assert (found.kind, found.tasks, found.roles) == (kind, None, None)
    assert not found.published
    # The published file of this name is another one, which matters unless these are topics too.
    assert (found.problem is None) is (kind == "topics")


def test_a_file_with_the_published_checksum_is_published(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    lines = b'{"id": "clueweb12-0000tw-00-00000___1", "contents": "text"}\nnot JSON\n'
    publish(published_file("passages.jsonl", lines, records=868_655))
    (tmp_path / "renamed").write_bytes(lines)
    found = check_file(tmp_path / "renamed")
    assert (found.published, found.problem, found.roles) == (True, None, "corpus")
    assert (found.kind, found.tasks) == ("documents", "comparative")
    assert found.first.startswith('{"id": "clueweb12-0000tw-00-00000___1"')


def test_a_file_of_the_published_name_and_size_with_another_checksum_is_damaged(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    lines = b'{"id": "a", "contents": "text"}\n'
    publish(published_file("passages.jsonl", lines))
    for name in ("passages.jsonl", "renamed"):
        (tmp_path / name).write_bytes(lines.replace(b"text", b"test"))
    assert not check_file(tmp_path / "renamed").published
    assert check_file(tmp_path / "renamed").problem is None
    found = check_file(tmp_path / "passages.jsonl")
    assert not found.published
    assert found.problem is not None and "https://example.org/passages.jsonl" in found.problem


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
        assert check_file(tmp_path / name).problem is None
        (tmp_path / name).write_bytes(content[:-50])
        problem = check_file(tmp_path / name).problem
        assert problem is not None
        assert f"https://example.org/{name}" in problem and f"{len(content):,}" in problem


@pytest.mark.parametrize("content", [b"", b"some text\n", b"PK\x03\x04other", b"<html></html>"])
def test_a_file_of_another_kind_is_a_problem(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    found = check_file(tmp_path / "file")
    assert found.problem and not found.tasks


def test_what_is_published_names_tasks_and_identifies_their_topics() -> None:
    # Passages are of any collection.
    tasks = TASKS.keys() - {"passages"}
    assert {task for file in read_published() for task in file.tasks} == tasks
    for task in tasks:
        (topics,) = (
            file for file in read_published() if task in file.tasks and file.role == "topics"
        )
        assert topics.first is not None
