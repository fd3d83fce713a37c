"""`touche-llm tira`, with the answers of the samples' cassettes in place of a model."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import yaml

import touche_llm
from tests.cli.conftest import Done, Touche
from tests.sample_runs import run_lines
from touche_llm.cli.demo import SAMPLE_TASKS, SAMPLES
from touche_llm.config.configuration import Config
from touche_llm.data.files import sha256
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import UsageError
from touche_llm.evaluation.validation import validate_run
from touche_llm.integrations.tira import detect_input
from touche_llm.tasks import get_task

Prepare = Callable[[str], Path]


@pytest.fixture
def prepared(touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Makes an input folder for a task, and a cache that holds the answers for it."""
    for name in (
        "TIRA_INPUT_DATASET",
        "TIRA_OUTPUT_DIR",
        "TOUCHE_LLM_MODEL",
        "TOUCHE_LLM_CONFIG",
        "CHATNOIR_API_KEY",
    ):
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
        assert (
            touche("cache", "import", cassette, "--cache", "cache/answers.sqlite").returncode == 0
        )
        return folder

    return prepare


def tira(touche: Touche, task: str, *arguments: str) -> Done:
    return touche(
        "tira", *arguments, "--cache-mode", "replay", "--config", str(SAMPLES / task / "demo.yaml")
    )


@pytest.mark.parametrize("task", SAMPLE_TASKS)
def test_two_folders_are_enough_and_the_output_passes_the_checkers_of_tira(
    task: str, touche: Touche, prepared: Prepare, tmp_path: Path
) -> None:
    given = prepared(task)
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    done = tira(touche, task, "-i", str(given), "-o", "out/nested")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out" / "nested"
    topics = {topic.id for topic in read_topics(given / "topics.xml")}
    assert validate_run(out / "run.txt", get_task(task), topic_ids=topics) == []
    written = {path for path in tmp_path.rglob("*") if "cache" not in path.parts} - before
    assert all((tmp_path / "out") in (path, *path.parents) for path in written)
    described = yaml.safe_load((out / "ir-metadata.yml").read_text())
    assert described["actor"] == {"team": "demo"}

    checkers = pytest.importorskip("tira.check_format")
    # They expect three topics at least; this sample has two.
    few = {"minimum_queries": 2} if task == "sentence_pairs" else {}
    runs, metadata = checkers.RunFormat(), checkers.RunWithIrMetadata()
    runs.apply_configuration_and_throw_if_invalid(few)
    metadata.apply_configuration_and_throw_if_invalid(None)
    good = checkers.FormatMsgType.OK
    assert runs.check_format(out)[0] is good
    level, message = metadata.check_ir_metadata(out) if few else metadata.check_format(out)
    assert level is good, message
    # The checkers would notice: without its last part, the description is incomplete.
    del described["method"]["description"]
    (out / "ir-metadata.yml").write_text(yaml.safe_dump(described))
    assert metadata.check_ir_metadata(out)[0] is checkers.FormatMsgType.ERROR


def test_variables_of_tira_stand_in_for_the_folders_and_a_run_is_replaced_only_if_that_is_requested(
    touche: Touche, prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIRA_INPUT_DATASET", str(prepared("comparative")))
    monkeypatch.setenv("TIRA_OUTPUT_DIR", "there")
    assert tira(touche, "comparative").returncode == 0
    before = Path("there/run.txt").read_bytes()
    actor = "actor: {team: Group, name: A. Person, repository: https://example.org/code}\n"
    Path("config.yaml").write_text(f"rank: judge\n{actor}")
    other = ("tira", "--cache-mode", "replay", "--config", "config.yaml")
    assert (touche(*other).returncode, Path("there/run.txt").read_bytes()) == (2, before)
    # Arguments go before variables.
    assert touche(*other, "-o", "here").returncode == 0
    assert touche(*other, "--overwrite").returncode == 0
    assert before != Path("there/run.txt").read_bytes() == Path("here/run.txt").read_bytes()
    metadata = yaml.safe_load(Path("here/ir-metadata.yml").read_text())
    assert metadata["actor"] == {"team": "Group", "name": "A. Person"}
    assert metadata["implementation"]["source"]["repository"] == "https://example.org/code"
    assert metadata["method"]["name"] == "bm25 > judge"


def test_the_formats_of_tira_are_read(touche: Touche, prepared: Prepare, tmp_path: Path) -> None:
    given = prepared("controversial")
    topics = read_topics(given / "topics.xml")
    for path in given.iterdir():
        path.unlink()
    lines = (SAMPLES / "controversial" / "documents.jsonl").read_text().splitlines()
    texts = {each["docno"]: each["text"] for each in map(json.loads, lines)}
    # The judgments that there are, one document after the other, so that some documents occur for
    # several topics.
    cassette = (SAMPLES / "controversial" / "cassette.jsonl").read_text().splitlines()
    answered = [
        (each["topic"], each["document"])
        for each in map(json.loads, cassette)
        if each.get("prompt") == "controversial/judge"
    ]
    queries = []
    for topic in topics:
        fields = {
            "title": topic.title,
            "description": topic.description,
            "narrative": topic.narrative,
        }
        queries.append(
            {
                "qid": topic.id,
                "query": topic.title,
                "original_query": fields | {"query_id": topic.id},
            }
        )
    (given / "queries.jsonl").write_text("".join(json.dumps(each) + "\n" for each in queries))
    with gzip.open(given / "rerank.jsonl.gz", "wt") as stream:
        for rank, (topic_id, name) in enumerate(answered, start=1):
            line = {
                "qid": topic_id,
                "docno": name,
                "text": texts[name],
                "rank": rank,
                "score": -float(rank),
            }
            stream.write(json.dumps(line) + "\n")
    # In another order of the candidates, others would be compared than the cassette has answers
    # for.
    (tmp_path / "config.yaml").write_text(
        "rank: judge\nstance: {depth: 100}\nengine: {name: server}\n"
    )
    flags = ("--cache-mode", "replay", "--config", "config.yaml")
    done = touche("tira", "-i", str(given), "-o", "out", *flags)
    assert done.returncode == 0, done.stderr
    assert validate_run(tmp_path / "out" / "run.txt", get_task("controversial")) == []
    assert (
        yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["engine"]["name"]
        == "managed"
    )
    assert len(set(answered)) == len(run_lines(tmp_path / "out" / "run.txt")) > len(texts)


def test_wrong_usage_is_told(touche: Touche, prepared: Prepare) -> None:
    given = str(prepared("controversial"))
    for arguments, code, fragments in (
        ([], 2, ["-i INPUT -o OUTPUT"]),
        (["-i", "nowhere", "-o", "out"], 2, ["nowhere: no such folder"]),
        (["-i", given, "-o", "out"], 2, ["--model"]),
    ):
        done = touche("tira", *arguments)
        assert done.returncode == code and all(text in done.stderr for text in fragments), (
            done.stderr
        )
    Path(given, "documents.jsonl.gz").unlink()
    done = touche("tira", "-i", given, "-o", "out")
    assert done.returncode == 2 and "no corpus" in done.stderr and "CHATNOIR_API_KEY" in done.stderr


def test_an_error_about_a_value_names_the_variable_or_the_option(
    touche: Touche, prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = ("-i", str(prepared("comparative")), "-o", "out")
    monkeypatch.setenv("TOUCHE_LLM_MODEL", "nowhere")
    done = touche("tira", *folders)
    assert done.stderr.startswith("error: TOUCHE_LLM_MODEL: engine.model: nowhere: ")
    done = touche("tira", *folders, "--model", "elsewhere")
    assert done.stderr.startswith("error: --model: elsewhere: ")
    done = touche("tira", *folders, "--cache-mode", "wrong")
    assert done.stderr.startswith("error: --cache-mode: ")


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configuration of each call, which ends before it sends requests."""
    found: list[Config] = []

    def end(config: Config, work: Coroutine[Any, Any, Any]) -> None:
        work.close()
        found.append(config)
        raise UsageError("ended")

    monkeypatch.setattr("touche_llm.cli.stages.run_requests", end)
    return found


def test_with_a_key_topics_alone_are_searched_in_chatnoir_and_its_answers_cached(
    touche: Touche,
    prepared: Prepare,
    tmp_path: Path,
    configured: list[Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = prepared("controversial")
    (given / "documents.jsonl.gz").unlink()
    monkeypatch.setenv("CHATNOIR_API_KEY", "key")
    touche("tira", "-i", str(given), "-o", "out")
    (config,) = configured
    assert config.chatnoir is not None and config.retriever.name == "chatnoir"
    assert config.chatnoir.cache == tmp_path / "cache" / "chatnoir.sqlite"


def test_libraries_write_to_the_cache_folder_unless_they_have_one(
    touche: Touche,
    prepared: Prepare,
    tmp_path: Path,
    configured: list[Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = prepared("comparative")
    names = ("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", "mine")
    touche("tira", "-i", str(given), "-o", "out")
    assert len(configured) == 1 and os.environ["HF_HOME"] == "mine"
    assert {Path(os.environ[name]).parent for name in names} == {tmp_path / "cache"}


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


# In namespaces of its own: no network, the input and the cache mounted for reading alone.
ISOLATED = """
set -e
for place in "$TIRA_INPUT_DATASET" "$TOUCHE_LLM_CACHE"; do
    mount --bind "$place" "$place"
    mount -o remount,bind,ro "$place"
    if touch "$place/written" 2> /dev/null; then exit 99; fi
done
exec "$@"
"""


def can_isolate() -> bool:
    """Whether this machine lets a user make namespaces."""
    command = ["unshare", "--map-root-user", "--mount", "--net", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not can_isolate(), reason="needs `unshare` with user namespaces")
def test_a_submission_with_its_cache_is_executed_again_without_a_model(
    touche: Touche, prepared: Prepare, tmp_path: Path
) -> None:
    task = "comparative"
    given = prepared(task)
    shutil.copy(SAMPLES / task / "demo.yaml", tmp_path / "demo.yaml")
    assert tira(touche, task, "-i", str(given), "-o", "first").returncode == 0
    before = hash_files(tmp_path / "cache") | hash_files(given)
    variables = {
        "TIRA_INPUT_DATASET": str(given),
        "TIRA_OUTPUT_DIR": str(tmp_path / "second"),
        "TOUCHE_LLM_CACHE": str(tmp_path / "cache"),
        "TOUCHE_LLM_CONFIG": str(tmp_path / "demo.yaml"),
        "PYTHONPATH": str(Path(touche_llm.__file__).parents[1]),
        "PATH": os.environ["PATH"],
    }
    program = (sys.executable, "-m", "touche_llm", "tira", "--cache-mode", "replay")
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "--net", "sh", "-c", ISOLATED, "sh", *program],
        env=variables,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "second/run.txt").read_bytes() == (tmp_path / "first/run.txt").read_bytes()
    assert hash_files(tmp_path / "cache") | hash_files(given) == before


def hash_files(folder: Path) -> dict[Path, str]:
    return {path: sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}
