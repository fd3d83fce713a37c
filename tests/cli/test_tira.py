"""`touche-llm tira`, with the answers of the samples' cassettes in place of a model."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Done, Touche
from tests.sample_runs import run_lines
from touche_llm.cli.demo import SAMPLE_TASKS, SAMPLES
from touche_llm.data.topics import read_topics
from touche_llm.evaluation.run_validation import validate_run
from touche_llm.integrations.tira import detect_input
from touche_llm.tasks import get_task

Prepare = Callable[[str], Path]


@pytest.fixture
def prepared(touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Makes an input folder for a task, and a cache that holds the answers for it."""
    for name in ("TIRA_INPUT_DATASET", "TIRA_OUTPUT_DIR", "TOUCHE_LLM_MODEL", "TOUCHE_LLM_CONFIG", "CHATNOIR_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOUCHE_LLM_CACHE", str(tmp_path / "cache"))

    def prepare(task: str) -> Path:
        sample = detect_input(SAMPLES / task)
        assert sample.corpus is not None
        folder = tmp_path / "input"
        folder.mkdir()
        shutil.copy(sample.topics, folder)
        with gzip.open(folder / f"{sample.corpus.name}.gz", "wb") as stream:
            stream.write(sample.corpus.read_bytes())
        cassette = str(SAMPLES / task / "cassette.jsonl")
        assert touche("cache", "import", cassette, "--cache", "cache/answers.sqlite").returncode == 0
        return folder

    return prepare


def tira(touche: Touche, task: str, *arguments: str) -> Done:
    return touche("tira", *arguments, "--cache-mode", "replay", "--config", str(SAMPLES / task / "demo.yaml"))


@pytest.mark.parametrize("task", SAMPLE_TASKS)
def test_two_folders_are_enough(task: str, touche: Touche, prepared: Prepare, tmp_path: Path) -> None:
    given = prepared(task)
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    done = tira(touche, task, "-i", str(given), "-o", "out/nested")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "out" / "nested" / "run.txt"
    assert validate_run(run, get_task(task), topic_ids={each.id for each in read_topics(given / "topics.xml")}) == []
    written = {path for path in tmp_path.rglob("*") if "cache" not in path.parts} - before
    assert run in written and all((tmp_path / "out") in (path, *path.parents) for path in written)
    metadata = yaml.safe_load((run.parent / "ir-metadata.yml").read_text())
    for part in ("actor", "platform", "implementation", "method", "data", "research goal"):
        assert metadata[part], part
    assert metadata["actor"] == {"team": "demo"}


def test_the_variables_of_tira_stand_in_for_the_folders(
    touche: Touche, prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIRA_INPUT_DATASET", str(prepared("comparative")))
    monkeypatch.setenv("TIRA_OUTPUT_DIR", str(tmp_path / "there"))
    assert tira(touche, "comparative").returncode == 0
    assert (tmp_path / "there" / "run.txt").exists()
    # Arguments go before them.
    assert tira(touche, "comparative", "-o", "here").returncode == 0
    assert (tmp_path / "here" / "run.txt").exists()


def test_the_formats_of_tira_are_read(touche: Touche, prepared: Prepare, tmp_path: Path) -> None:
    given = prepared("controversial")
    topics = read_topics(given / "topics.xml")
    for path in given.iterdir():
        path.unlink()
    lines = (SAMPLES / "controversial" / "documents.jsonl").read_text().splitlines()
    texts = {each["docno"]: each["text"] for each in map(json.loads, lines)}
    # The judgments that there are, one document after the other, so that some documents occur for several topics.
    cassette = (SAMPLES / "controversial" / "cassette.jsonl").read_text().splitlines()
    answered = [
        (each["topic"], each["document"])
        for each in map(json.loads, cassette)
        if each.get("prompt") == "controversial/judge"
    ]
    queries = []
    for topic in topics:
        fields = {"title": topic.title, "description": topic.description, "narrative": topic.narrative}
        queries.append({"qid": topic.id, "query": topic.title, "original_query": fields | {"query_id": topic.id}})
    (given / "queries.jsonl").write_text("".join(json.dumps(each) + "\n" for each in queries))
    with gzip.open(given / "rerank.jsonl.gz", "wt") as stream:
        for rank, (topic_id, name) in enumerate(answered, start=1):
            line = {"qid": topic_id, "docno": name, "text": texts[name], "rank": rank, "score": -float(rank)}
            stream.write(json.dumps(line) + "\n")
    # In another order of the candidates, others would be compared than the cassette has answers for.
    (tmp_path / "config.yaml").write_text("rank: judge\nstance: {depth: 100}\nengine: {name: server}\n")
    flags = ("--cache-mode", "replay", "--config", "config.yaml")
    done = touche("tira", "-i", str(given), "-o", "out", *flags)
    assert done.returncode == 0, done.stderr
    assert validate_run(tmp_path / "out" / "run.txt", get_task("controversial")) == []
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["engine"]["name"] == "managed"
    assert len(set(answered)) == len(run_lines(tmp_path / "out" / "run.txt")) > len(texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tira: missing folders; give -i INPUT -o OUTPUT"),
        (["-i", "nowhere", "-o", "out"], "nowhere: no such folder"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], message: str, touche: Touche, prepared: Prepare) -> None:
    prepared("comparative")
    done = touche("tira", *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_topics_alone_need_a_key_for_the_search_engine(touche: Touche, prepared: Prepare) -> None:
    given = prepared("controversial")
    (given / "documents.jsonl.gz").unlink()
    done = touche("tira", "-i", str(given), "-o", "out")
    assert done.returncode == 2
    assert (
        "no corpus" in done.stderr and "args_processed_04_01.csv" in done.stderr and "CHATNOIR_API_KEY" in done.stderr
    )


def test_without_a_model_the_message_says_how_to_name_one(touche: Touche, prepared: Prepare) -> None:
    done = touche("tira", "-i", str(prepared("comparative")), "-o", "out")
    assert done.returncode in (1, 2)
    assert "--model" in done.stderr and len(done.stderr.splitlines()) <= 3


def test_without_a_home_the_message_asks_for_a_cache_folder(
    touche: Touche, prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prepared("comparative")
    for name in ("TOUCHE_LLM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    done = touche("tira", "-i", str(given), "-o", "out")
    assert (done.returncode, "--cache-folder: " in done.stderr) == (2, True)
