"""The folder of a run that somebody else wrote: its settings start, send and read nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.report.reports import sample_run
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.configuration import list_trust_declarations
from touche_llm.settings.section import Trust

SAMPLE = SAMPLES / "comparative"
QRELS = str(SAMPLE / "qrels-relevance.txt")
# Nothing listens there; a connection would be recorded all the same.
SINK = "http://127.0.0.1:9"
# A value for each setting that acts; BAIT stands for a folder outside of the run.
HOSTILE: dict[str, Any] = {
    "task": "BAIT/task",
    "dataset": "argsme/2020-04-01/touche-2020-task-1",
    "topics": "BAIT/topics.xml",
    "corpus": "BAIT/passages.jsonl",
    "index": "BAIT/index",
    "candidates": "BAIT/candidates.txt",
    "retriever.name": "chatnoir",
    "engine.name": "managed",
    "engine.base_url": SINK,
    "engine.model": "BAIT/model",
    "engine.options": {"trust_remote_code": True},
    "engine.revision": "theirs",
    "engine.context": 4096,
    "engine.tokenizer": "BAIT/tokenizer",
    "engine.concurrency": 1,
    "engine.request_timeout": 1.0,
    "engine.retry_for": 1.0,
    "prompts.folder": "BAIT/prompts",
    "prompts.judge": "BAIT/judge.jinja",
    "prompts.objects": "BAIT/objects.jinja",
    "prompts.sentence": "BAIT/sentence.jinja",
    "prompts.stance": "BAIT/stance.jinja",
    "prompts.best": "BAIT/best.jinja",
    "prompts.order": "BAIT/order.jinja",
    "prompts.queries": "BAIT/queries.jinja",
    "ranking.cross_encoder.url": SINK,
    "ranking.cross_encoder.model": "theirs",
    "ranking.cross_encoder.revision": "theirs",
    "ranking.cross_encoder.context": 512,
    "ranking.cross_encoder.batch": 1,
    "ranking.cross_encoder.concurrency": 1,
    "ranking.cross_encoder.request_timeout": 1.0,
    "ranking.cross_encoder.retry_for": 1.0,
    "ranking.cross_encoder.preset": "plain",
    "ranking.cross_encoder.instruction": "theirs",
    "ranking.cross_encoder.query_template": "{query}",
    "ranking.cross_encoder.document_template": "{document}",
    "ranking.cross_encoder.query": ["title"],
    "chatnoir.base_url": SINK,
    "chatnoir.index": "theirs",
    "chatnoir.cache": "BAIT/chatnoir.sqlite",
    "chatnoir.requests_per_second": 1.0,
    "chatnoir.request_timeout": 1.0,
    "chatnoir.retry_for": 1.0,
    "chatnoir.leave_out": "BAIT/leave_out.txt",
    "elasticsearch.url": SINK,
    "elasticsearch.index": "theirs",
    "elasticsearch.request_timeout": 1.0,
    "elasticsearch.retry_for": 1.0,
    "dense.url": SINK,
    "dense.model": "theirs",
    "dense.revision": "theirs",
    "dense.context": 512,
    "dense.batch": 1,
    "dense.concurrency": 1,
    "dense.request_timeout": 1.0,
    "dense.retry_for": 1.0,
    "dense.preset": "plain",
    "dense.instruction": "theirs",
    "dense.query_template": "{query}",
    "dense.document_template": "{document}",
    "dense.dimensions": 8,
    "dense.pool": 10,
    "dense.weight": 1.0,
    "dense.k": 1.0,
    "cache.file": "BAIT/answers.sqlite",
    "cache.mode": "reuse",
    "cache.retry_failures": True,
}
COMMANDS = (
    ["show", "theirs"],
    ["show", "theirs", "--topic", "3"],
    ["runs", "."],
    ["report", "theirs", "--out", "theirs.html"],
    ["report", "theirs", "--relevance", QRELS, "--out", "measured.html"],
    ["evaluate", "theirs", "--relevance", QRELS],
    ["evaluate", "theirs"],
    ["compare", "theirs", "own", "--relevance", QRELS],
    ["validate", "theirs"],
    ["judge", "--out", "theirs"],
    ["rank", "--out", "theirs"],
    ["batch", "export", "judge", "--out", "theirs"],
    ["regress", "record", "theirs", "--dir", "regress"],
    ["data", "theirs/config.yaml"],
)
EVENTS = ("open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.posix_spawn")
_watched: list[tuple[str, str]] | None = None


def _record_event(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in EVENTS:
        _watched.append((event, str(arguments[:2])))


# A hook stays until the process ends.
sys.addaudithook(_record_event)


@contextmanager
def watch() -> Iterator[list[tuple[str, str]]]:
    """Record files that are opened, connections, and programs that are started."""
    global _watched
    events: list[tuple[str, str]] = []
    _watched = events
    try:
        yield events
    finally:
        _watched = None


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of dotted names by section."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".")
        target = nested
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    return nested


def merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict) and name != "options":
            merge(into[name], value)
        else:
            into[name] = value


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return sample_run("comparative", folder).rename(folder / "run")


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    """A folder with all files that the hostile settings name."""
    folder = tmp_path / "bait"
    for name in ("index", "model", "tokenizer", "prompts/comparative", "task"):
        (folder / name).mkdir(parents=True)
    for name in ("topics.xml", "passages.jsonl"):
        shutil.copy(SAMPLE / name, folder / name)
    shutil.copy(SAMPLES / "example" / "task.yaml", folder / "task" / "task.yaml")
    for value in HOSTILE.values():
        if isinstance(value, str) and value.endswith((".jinja", ".txt", ".sqlite")):
            (folder / value.removeprefix("BAIT/")).write_text("bait")
    return folder


@pytest.fixture
def theirs(made: Path, bait: Path, tmp_path: Path) -> Path:
    """A finished run in which every setting that acts has a hostile value; own is one's own."""
    shutil.copytree(made, tmp_path / "own")
    folder = shutil.copytree(made, tmp_path / "theirs")
    file = folder / "config.yaml"
    config = yaml.safe_load(file.read_text())
    merge(config, nest(HOSTILE))
    # The definition of the run's task stays readable.
    config["task"] = "comparative"
    file.write_text(yaml.safe_dump(config).replace("BAIT", str(bait)))
    return folder


def test_every_setting_declares_whether_it_acts() -> None:
    declarations = list_trust_declarations()
    assert [name for name, declared in declarations.items() if declared is None] == []
    acting = {name for name, declared in declarations.items() if declared is Trust.ACTS}
    assert acting == HOSTILE.keys()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_strangers_settings_start_send_and_read_nothing(
    touche: Touche,
    theirs: Path,
    bait: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("VLLM_API_KEY", "CHATNOIR_API_KEY", "ELASTICSEARCH_API_KEY"):
        monkeypatch.setenv(name, "secret")
    with watch() as events:
        done = touche(*arguments)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr
    acted = [(event, what) for event, what in events if event != "open" or os.fspath(bait) in what]
    assert acted == []


def test_a_task_outside_of_a_strangers_folder_is_not_read(
    touche: Touche, theirs: Path, bait: Path
) -> None:
    file = theirs / "config.yaml"
    file.write_text(file.read_text().replace("task: comparative", f"task: {bait}/task"))
    with watch() as events:
        touche("show", "theirs")
        touche("rank", "--out", "theirs")
    assert [what for _, what in events if os.fspath(bait) in what] == []


@pytest.mark.parametrize("name", ["run.txt", "judgments.jsonl", "config.yaml", "ir-metadata.yml"])
def test_a_link_that_leads_out_of_a_strangers_folder_is_refused(
    touche: Touche, theirs: Path, tmp_path: Path, name: str
) -> None:
    (theirs / name).rename(tmp_path / "secret")
    (theirs / name).symlink_to(tmp_path / "secret")
    done = touche("report", "theirs", "--out", "theirs.html")
    assert done.returncode == 1
    assert f"theirs/{name}" in done.stderr
    assert not (tmp_path / "theirs.html").exists()


def test_the_settings_are_used_if_the_command_line_names_them(
    touche: Touche, made: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(made, tmp_path / "theirs")
    file = folder / "config.yaml"
    file.write_text(file.read_text() + "# Written elsewhere.\n")
    title = "heat pump"

    shown = touche("show", "theirs", "--topic", "3")
    assert shown.returncode == 0
    assert title not in shown.stdout
    for options in (
        ["--config", str(file)],
        ["--topics", str(SAMPLE / "topics.xml")],
    ):
        shown = touche("show", "theirs", "--topic", "3", *options)
        assert title in shown.stdout, shown.stderr

    assert touche("rank", "--out", "theirs").returncode == 2
    assert touche("rank", "--out", "theirs", "--config", str(file)).returncode == 0
    # From now on the folder was written here.
    assert touche("rank", "--out", "theirs").returncode == 0


def test_a_recorded_run_of_a_stranger_reads_no_template_elsewhere(
    touche: Touche, made: Path, bait: Path, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    own = shutil.copytree(made, tmp_path / "own")
    recorded = tmp_path / "project" / "regress"
    assert touche("regress", "record", str(own), "first", "--dir", str(recorded)).returncode == 0
    assert touche("regress", "check", "--dir", str(recorded)).returncode == 0

    file = recorded / "first" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    hostile = {name: value for name, value in HOSTILE.items() if not name.startswith("prompts.")}
    merge(
        config, nest(hostile | {"task": "comparative", "engine.model": config["engine"]["model"]})
    )
    file.write_text(yaml.safe_dump(config).replace("BAIT", str(bait)))
    with watch() as events:
        touche("regress", "check", "--dir", str(recorded))
    assert [what for event, what in events if event != "open" or str(bait) in what] == []

    config["prompts"] = {"judge": f"{bait}/judge.jinja"}
    file.write_text(yaml.safe_dump(config).replace("BAIT", str(bait)))
    with watch() as events, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "project")
        done = touche("regress", "check", "--dir", "regress")
    assert done.returncode == 1
    assert [what for event, what in events if event != "open" or str(bait) in what] == []


def test_a_link_that_leads_out_of_a_task_is_not_copied_into_a_run(
    touche: Touche, tmp_path: Path
) -> None:
    assert touche("tasks", "new", "mine").returncode == 0
    (tmp_path / "secret").write_text("private")
    (tmp_path / "mine" / "leaderboard.yaml").symlink_to(tmp_path / "secret")
    files = {name: str(tmp_path / "mine" / name) for name in ("topics.xml", "opinions.jsonl")}
    done = touche(
        *("retrieve", "--task", "./mine", "--out", "run"),
        *("--topics", files["topics.xml"], "--corpus", files["opinions.jsonl"]),
    )
    assert done.returncode == 1, done
    assert "leaderboard.yaml" in done.stderr
    assert not (tmp_path / "run" / "task" / "leaderboard.yaml").exists()


def test_the_configuration_of_another_run_does_not_speak_for_a_folder(
    touche: Touche, theirs: Path
) -> None:
    done = touche("show", "theirs", "--config", "own/config.yaml")
    assert done.returncode == 1
    assert "own/config.yaml" in done.stderr


def test_a_run_of_ones_own_may_be_moved(touche: Touche, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "own")
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / "own", tmp_path / "elsewhere" / "run")
    done = touche("rank", "--out", "elsewhere/run")
    assert done.returncode == 0, done.stderr
    assert "not used" not in done.stderr


def test_a_record_that_cannot_be_written_ends_no_run(
    touche: Touche, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "own")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    done = touche("rank", "--out", "own", "--config", "own/config.yaml")
    assert done.returncode == 0, done.stderr
