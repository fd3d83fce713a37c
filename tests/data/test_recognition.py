"""Files are recognised by their first record, and a file of another kind than expected is one clear error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from touche_llm.corpus.args_me import read_arguments, read_whole_arguments
from touche_llm.corpus.json_lines import DocumentKeys, read_passages
from touche_llm.data.recognize import Kind, recognize
from touche_llm.data.runs.reading import read_run
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import BadLine, DataError
from touche_llm.evaluation.qrels import read_qrels

FILES: dict[Kind, str] = {
    "topics": "<topics>\n<topic><number>1</number><title>Is tea hot?</title></topic>\n</topics>\n",
    "documents": '{"id": "d", "contents": "Tea is hot."}\n',
    "arguments": '{"arguments": [{"id": "S1-A1", "conclusion": "c", "premises": []}]}',
    "argument table": "id,conclusion,premises,context,sentences\n",
    "rerank": '{"qid": "1", "query": "q", "docno": "d", "text": "t"}\n',
    "qrels": "1 0 d 2\n",
    "run": "1 Q0 d 1 2.5 tag\n",
    "archive": "PK\x03\x04",
    "page": "<!DOCTYPE html>\n<html><body>Not found</body></html>",
}
READERS: dict[Kind, Callable[[Path], object]] = {
    "topics": read_topics,
    "documents": lambda path: list(read_passages(path, lambda bad: None)),
    "arguments": lambda path: list(read_whole_arguments(path, lambda bad: None)),
    "argument table": lambda path: list(read_arguments(path, lambda bad: None)),
    "qrels": lambda path: read_qrels({"relevance": path}, "comparative"),
    "run": read_run,
}
# Kinds that a reader takes besides its own.
ALSO: dict[Kind, tuple[Kind, ...]] = {
    "documents": ("rerank",),
    "arguments": ("argument table",),
    "run": ("rerank",),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        *((content, kind) for kind, content in FILES.items()),
        ('\ufeff<?xml version="1.0"?>\n<!-- all of 2022 -->\n<topics><topic number="2">', "topics"),
        ('{"qid": "1", "query": "q"}\n', "topics"),
        ('{"_id": "d", "title": "", "text": "t", "metadata": {"stance": "PRO"}}\n', "arguments"),
        ('{"id": "d", "contents": "it said \\"qid\\": 3', "documents"),
        ("query-id\tcorpus-id\tscore\n1\td\t2\n", "qrels"),
        ("1\tQ0\td\t1\t-2e-05\ta tag of words\n", "run"),
        ("a line with only text, as people write it\n", None),
        ("", None),
    ],
)
def test_the_first_record_says_what_a_file_holds(
    content: str, kind: Kind | None, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(pack(content.encode()))
    assert recognize(tmp_path / "file").kind == kind


@pytest.mark.parametrize("expected", READERS)
def test_a_file_of_another_kind_is_one_error_whether_bad_lines_are_skipped_or_not(
    expected: Kind, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    for kind, content in FILES.items():
        if kind in (expected, *ALSO.get(expected, ())):
            continue
        path.write_text(content)
        with pytest.raises(DataError, match="looks like") as caught:
            READERS[expected](path)
        assert not isinstance(caught.value, BadLine)
        assert caught.value.location == str(path) and "\n" not in str(caught.value)


def test_documents_with_the_keys_of_their_task_are_documents_whatever_they_look_like(
    tmp_path: Path,
) -> None:
    record = {"qid": "1", "query": "q", "_id": "d", "text": "t"}
    (tmp_path / "own.jsonl").write_text(json.dumps(record) + "\n")
    for keys in (DocumentKeys(("qid",), (("query",),)), DocumentKeys(("_id",), (("text",),))):
        assert len(list(read_passages(tmp_path / "own.jsonl", keys=keys))) == 1
    with pytest.raises(DataError, match="looks like"):
        list(read_passages(tmp_path / "own.jsonl"))
