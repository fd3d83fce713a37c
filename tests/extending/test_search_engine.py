"""A search engine in a file of its own, which has the documents."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml

from tests.cli.test_thinking import CORPUS, TOPICS
from tests.extending.conftest import Extended
from tests.fake_server import FakeServer

MODULES = ("tests.extending.file_engine",)
INDEX = ["index", "--retriever", "file_engine", "--corpus", str(CORPUS), "--format", "json"]
RUN = [
    *("run", "--retriever", "file_engine", "--topics", str(TOPICS), "--topic", "3"),
    *("--depth", "3", "--out", "out"),
]


@pytest.mark.slow
def test_index_loads_a_corpus_from_which_a_run_and_its_report_are_made(
    extended: Extended, tmp_path: Path
) -> None:
    loaded = extended(*INDEX, modules=MODULES)
    assert loaded.returncode == 0, loaded.stderr
    documents = len(CORPUS.read_text().splitlines())
    (row,) = orjson.loads(loaded.stdout)
    assert row == {"corpus": str(CORPUS), "documents": documents, "file": "engine.jsonl"}

    with FakeServer().in_thread() as server:
        run = extended(*RUN, "--base-url", server.url, modules=MODULES)
    assert run.returncode == 0, run.stderr
    # The paths in a run's folder start there.
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["file_engine"] == {"file": "../engine.jsonl"}
    assert config["corpus"] is None

    report = extended("report", "out", modules=MODULES)
    assert report.returncode == 0, report.stderr
    assert "engine engine.jsonl" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_index_and_run_refuse_what_belongs_to_a_corpus_on_disk(extended: Extended) -> None:
    with_index = extended(*INDEX, "--index", "folder", modules=MODULES)
    assert with_index.returncode == 2 and "--index" in with_index.stderr
    with_corpus = extended(*RUN, "--corpus", str(CORPUS), "--dry-run", modules=MODULES)
    assert with_corpus.returncode == 2 and "index --retriever file_engine" in with_corpus.stderr
    missing = extended(*RUN, "--dry-run", modules=MODULES)
    assert missing.returncode == 1 and "error: engine.jsonl: not found" in missing.stderr
