"""Pipes and devices in place of the files that the program reads: a reader that opens one waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from touche_llm.batch.responses import read_replies
from touche_llm.data.io import open_regular, read_file_state, read_records, sha256
from touche_llm.data.records import Judgment
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import ToucheError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.evaluation.run_validation import validate_run
from touche_llm.judging.labels import read_settings
from touche_llm.pipeline.config_file import load_config
from touche_llm.pipeline.recorded_evaluation import read_evaluation
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.tasks import get_task
from touche_llm.tasks.leaderboard import LEADERBOARD_FILE, read_board

COMPARATIVE = get_task("comparative")
READERS: dict[str, Callable[[Path], object]] = {
    "task.yaml": lambda path: get_task(str(path.parent)),
    LEADERBOARD_FILE: read_board,
    "run.yaml": lambda path: load_config(path, {}),
    "thresholds.yaml": read_settings,
    "config.yaml": lambda path: RunDirectory(path.parent).read_task(),
    "ir-metadata.yml": lambda path: RunDirectory(path.parent).read_metadata(),
    "evaluation.yaml": lambda path: read_evaluation(RunDirectory(path.parent)),
    "topics.xml": read_topics,
    "qrels.txt": lambda path: read_qrels({"relevance": path}, COMPARATIVE),
    "run.txt": read_run,
    "validated.txt": lambda path: validate_run(path, COMPARATIVE),
    "documents.jsonl": lambda path: list(COMPARATIVE.read_corpus(path)),
    "judgments.jsonl": lambda path: read_records(path, Judgment, "judgments"),
    "replies.jsonl": lambda path: read_replies([path], "tiny"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_in_one_line_instead_of_waiting_for_a_writer(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ToucheError, match="not a regular file") as caught:
        READERS[name](tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [sha256, read_file_state])
def test_a_pipe_has_no_fingerprint(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read(tmp_path / "pipe")


def test_devices_are_refused_and_folders_and_links_are_as_everywhere(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"text"
