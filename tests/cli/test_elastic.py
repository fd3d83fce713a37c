"""Elasticsearch as first stage, as a user meets it: load, retrieve, judge, rank, and what goes wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.fake_elasticsearch import FakeElasticsearch
from touche_llm.cli.demo import SAMPLES
from touche_llm.llm import retries
from touche_llm.retrieval import elasticsearch as elastic_load

CORPUS = {
    "comparative": SAMPLES / "comparative" / "passages.jsonl",
    "controversial": SAMPLES / "controversial" / "documents.jsonl",
}
PASSWORD = "not to be told"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeElasticsearch]:
    """A server with a password, which the environment has."""
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(elastic_load, "_BATCH", 10)
    monkeypatch.delenv("ELASTICSEARCH_API_KEY", raising=False)
    monkeypatch.setenv("ELASTICSEARCH_USER", "elastic")
    monkeypatch.setenv("ELASTICSEARCH_PASSWORD", PASSWORD)
    with FakeElasticsearch(password=PASSWORD).running() as running:
        yield running


def at(server: FakeElasticsearch, task: str = "comparative") -> list[str]:
    return ["--task", task, "--retriever", "elasticsearch", "--elasticsearch", server.url]


def topics(task: str = "comparative") -> list[str]:
    return ["--topics", str(SAMPLES / task / "topics.xml")]


def replay(task: str = "comparative") -> list[str]:
    return ["--cache", str(SAMPLES / task / "cassette.jsonl"), "--cache-mode", "replay"]


# As deep as the samples have answers.
@pytest.mark.parametrize(("task", "depth"), [("comparative", 9), ("controversial", 4)])
def test_a_run_needs_no_corpus_on_disk_and_is_that_of_the_index_on_disk(
    touche: Touche, tmp_path: Path, server: FakeElasticsearch, task: str, depth: int
) -> None:
    corpus = tmp_path / CORPUS[task].name
    shutil.copy(CORPUS[task], corpus)
    usual = ["--depth", str(depth), "--weight-first-stage", "0"]
    done = touche("run", "--task", task, *topics(task), *replay(task), *usual, "--corpus", str(corpus), "--out", "disk",
                  "--bm25-method", "lucene")  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = touche("index", *at(server, task), "--corpus", str(corpus))
    assert done.returncode == 0, done.stderr
    count = len(corpus.read_text().splitlines())
    assert done.stdout == f"{count} documents of {corpus} are in {server.url}, index touche-llm\n"
    shutil.rmtree(tmp_path / ".touche-llm")
    corpus.unlink()
    done = touche("retrieve", *at(server, task), *topics(task), *usual[:2], "--out", "there")
    assert done.returncode == 0, done.stderr
    assert touche("judge", *replay(task), "--out", "there").returncode == 0
    assert touche("rank", *usual[2:], "--out", "there").returncode == 0
    assert (
        touche(
            "run", *at(server, task), *topics(task), *replay(task), *usual, "--out", "whole"
        ).returncode
        == 0
    )
    for name in ("judgments.jsonl", "run.txt"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "disk" / name).read_bytes()
    assert not list(tmp_path.rglob("documents.sqlite*"))[1:]
    assert not any(
        PASSWORD.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_the_metadata_tells_what_was_searched(
    touche: Touche, tmp_path: Path, server: FakeElasticsearch
) -> None:
    corpus = str(CORPUS["comparative"])
    given = ["--elasticsearch-index", "mine", "--k1", "0.9", "--b", "0.4"]
    touche("index", *at(server), "--corpus", corpus, *given)
    done = touche("retrieve", *at(server), *topics(), *given, "--out", "out")
    assert done.returncode == 0, done.stderr
    facts = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"][
        "retrieve"
    ]["corpus"]
    assert (facts["source"], facts["engine"], facts["index"]) == (
        server.url,
        "Elasticsearch 9.1.0",
        "mine",
    )
    assert facts["loaded_from"] == "passages.jsonl" and len(facts["sha256"]) == 64
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert (
        config["elasticsearch"]["url"] == server.url and config["elasticsearch"]["index"] == "mine"
    )
    retriever = config["retriever"]
    assert [retriever[each] for each in ("name", "method", "k1", "b")] == [
        "elasticsearch",
        "lucene",
        0.9,
        0.4,
    ]


def test_candidates_of_another_tool_are_looked_up_there(
    touche: Touche, tmp_path: Path, server: FakeElasticsearch
) -> None:
    touche("index", *at(server), "--corpus", str(CORPUS["comparative"]))
    known = json.loads(CORPUS["comparative"].read_text().splitlines()[0])["id"]
    (tmp_path / "good.txt").write_text(f"7 Q0 {known} 1 2.0 x\n")
    (tmp_path / "bad.txt").write_text(f"7 Q0 {known} 1 2.0 x\n7 Q0 none 2 1.0 x\n")
    given = [*at(server), *topics(), "--topic", "7"]
    assert touche("retrieve", *given, "--candidates", "good.txt", "--out", "out").returncode == 0
    done = touche("retrieve", *given, "--candidates", "bad.txt", "--out", "bad")
    assert done.returncode == 1
    assert f"1 of its documents are not in the corpus {server.url}: none" in done.stderr


def test_a_server_that_moved_can_be_named_when_judging(
    touche: Touche, tmp_path: Path, server: FakeElasticsearch
) -> None:
    touche("index", *at(server), "--corpus", str(CORPUS["comparative"]))
    touche("retrieve", *at(server), *topics(), "--depth", "9", "--out", "out")
    with FakeElasticsearch(password=PASSWORD, indices=server.indices).running() as other:
        moved = ["--set", f"elasticsearch.url={other.url}"]
        assert touche("judge", *replay(), *moved, "--out", "out").returncode == 0
        assert other.of("mget")
    done = touche("judge", *replay(), "--set", "elasticsearch.index=other", "--out", "out")
    assert done.returncode == 2 and "a stage before `judge` depends on it" in done.stderr


RETRIEVE = ["retrieve", "--retriever", "elasticsearch", "--topics", "t.xml", "--out", "o"]
ON_DISK = ["retrieve", "--corpus", "c.jsonl", "--topics", "t.xml", "--out", "o"]
INDEX = ["index", "--corpus", "c.jsonl"]
THERE = ["--retriever", "elasticsearch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*RETRIEVE, "--corpus", "c.jsonl"],
            "elasticsearch has its own documents; leave out corpus and index (`touche-llm index",
        ),
        (
            [*RETRIEVE, "--bm25-method", "atire"],
            "--bm25-method: elasticsearch scores like lucene; use lucene",
        ),
        (
            [*RETRIEVE, "--task", "sentence_pairs"],
            "sentence_pairs retrieves sentences of args.me; use bm25",
        ),
        (
            [*RETRIEVE, "--elasticsearch", "http://u:secret@h:1"],
            "--elasticsearch: must not hold a password",
        ),
        (
            [*ON_DISK, "--elasticsearch", "http://h:1"],
            "elasticsearch: settings of a retriever that is not the chosen one",
        ),
        ([*INDEX, *THERE, "--bm25-method", "atire"], "scores as --bm25-method lucene"),
        ([*INDEX, *THERE, "--index", "folder"], "--retriever elasticsearch: "),
        (
            [*INDEX, "--elasticsearch", "http://h:1"],
            "--elasticsearch: not used with --retriever bm25",
        ),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(
    touche: Touche, arguments: list[str], message: str
) -> None:
    done = touche(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and "secret" not in done.stderr


@pytest.mark.slow
def test_a_run_can_be_reported_and_kept_also_when_the_server_is_gone(
    touche: Touche, tmp_path: Path, server: FakeElasticsearch
) -> None:
    touche("index", *at(server), "--corpus", str(CORPUS["comparative"]))
    done = touche("run", *at(server), *topics(), *replay(), "--depth", "9", "--out", "out")
    assert done.returncode == 0, done.stderr
    method = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["method"]
    assert method["retrieval"][0]["method"] == "Elasticsearch BM25"
    assert method["retrieval"][0]["params"]["elasticsearch.index"] == "touche-llm"
    assert touche("report", "out", "-o", "there.html").returncode == 0
    assert touche("regress", "record", "out", "kept").returncode == 0
    server.password = "changed"
    assert touche("regress", "check", "kept").returncode == 0
    done = touche("report", "out", "-o", "gone.html")
    assert done.returncode == 0 and f"No document texts: {server.url}: login refused" in done.stderr
    there, gone = ((tmp_path / name).read_text() for name in ("there.html", "gone.html"))
    assert (
        "No document texts" in gone and "No document texts" not in there and len(there) > len(gone)
    )
