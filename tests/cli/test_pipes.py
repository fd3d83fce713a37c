"""Pipes and devices in place of files: each command refuses them, and does not wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
TOPICS = ("--topics", str(SAMPLE / "topics.xml"))
CORPUS = ("--corpus", str(SAMPLE / "passages.jsonl"))
REPLAY = ("--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay", "--out", "out")
TASK = ("--task", "comparative")
COMMANDS = [
    ("run", *TASK, "--topics", "PIPE", *CORPUS, *REPLAY),
    ("run", *TASK, *TOPICS, "--corpus", "PIPE", *REPLAY),
    ("run", *TASK, *TOPICS, *CORPUS, "--candidates", "PIPE", *REPLAY),
    ("run", "--config", "PIPE", *TOPICS, *CORPUS, *REPLAY),
    ("run", *TASK, *TOPICS, *CORPUS, "--cache", "PIPE", "--out", "out"),
    ("run", *TASK, *TOPICS, *CORPUS, "--cache", "PIPE", "--cache-mode", "replay", "--out", "out"),
    (
        "run",
        *TASK,
        *TOPICS,
        *CORPUS,
        "--cache",
        "PIPE.jsonl",
        "--cache-mode",
        "replay",
        "--out",
        "out",
    ),
    ("run", *TASK, *TOPICS, *CORPUS, *REPLAY, "--prompt", "PIPE.jinja"),
    ("retrieve", *TASK, "--topics", "PIPE", *CORPUS, "--out", "out"),
    ("index", *TASK, "--corpus", "PIPE", "--index", "index"),
    ("evaluate", "PIPE", *TASK, "--relevance", "qrels.txt"),
    ("evaluate", "run.txt", *TASK, "--relevance", "PIPE"),
    ("compare", "run.txt", "PIPE", *TASK, "--relevance", "qrels.txt"),
    ("validate", "PIPE", *TASK),
    ("validate", "run.txt", *TASK, "--topics", "PIPE"),
    ("fuse", "PIPE", "PIPE", *TASK, "--out", "fused.txt"),
    ("data", "PIPE"),
    ("cache", "export", "out.jsonl", "--cache", "PIPE"),
    ("cache", "import", "PIPE", "--cache", "c.sqlite"),
    ("cache", "import", str(SAMPLE / "cassette.jsonl"), "--cache", "PIPE"),
    ("cache", "forget", "a" * 64, "--cache", "PIPE"),
    ("prompts", "check", *TASK, "PIPE.jinja"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_pipe_is_not_a_regular_file(
    touche: Touche, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    for name in ("PIPE", "PIPE.jsonl", "PIPE.jinja"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "run.txt").write_text("1 Q0 d 1 2.0 tag\n")
    (tmp_path / "qrels.txt").write_text("1 0 d 1\n")
    done = touche(*arguments)
    assert done.returncode in (1, 2), done
    said = done.stdout + done.stderr
    assert "PIPE" in said and "not a regular file" in said, said
