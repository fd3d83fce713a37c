"""The folder of a run that somebody else wrote: its settings start, send and read nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.report.reports import sample_run
from tests.strangers import HOSTILE, SAMPLE, make_bait, make_hostile, merge, nest, watch
from touche_llm.config.configuration import list_trust_declarations
from touche_llm.settings.section import Trust

QRELS = str(SAMPLE / "qrels-relevance.txt")
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
    ["agree", "theirs", "--relevance", QRELS],
    ["qrels", "theirs", "--aspect", "relevance", "--human", QRELS, "--out", "labels.txt"],
    ["prompts", "list", "--task", "comparative"],
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return sample_run("comparative", folder).rename(folder / "run")


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    """A folder with all files that the hostile settings name."""
    return make_bait(tmp_path / "bait")


@pytest.fixture
def theirs(made: Path, bait: Path, tmp_path: Path) -> Path:
    """A finished run in which every setting that acts has a hostile value; own is one's own."""
    shutil.copytree(made, tmp_path / "own")
    folder = shutil.copytree(made, tmp_path / "theirs")
    make_hostile(folder, bait)
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
