"""Tasks given as folders, through the command line and the library."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

import touche_llm as tl
from tests.cli.conftest import Touche
from tests.sample_runs import Silent
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.files import load_config
from touche_llm.prompt_lab.holdout import HALVES_FILE
from touche_llm.runs.stages import run_all
from touche_llm.tasks import TASKS, prompts_folder

SAMPLE = SAMPLES / "comparative"
INPUTS = ("--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl"))
RUN = ("run", "--config", "mine.yaml", *INPUTS, "--out", "runs/mine")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of one of the project's own tasks under another name, and a run of it in `runs/mine`."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(prompts_folder() / "comparative", folder / "mine")
    change(folder / "mine", name="mine", title="My task")
    settings = yaml.safe_load((SAMPLE / "demo.yaml").read_text())
    settings |= {"cache": {"file": str(SAMPLE / "cassette.jsonl"), "mode": "replay"}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(settings))
    inputs = {"topics": SAMPLE / "topics.xml", "corpus": SAMPLE / "passages.jsonl", "task": "mine"}
    with chdir(folder):
        config = load_config(Path("mine.yaml"), inputs)
        asyncio.run(run_all(config, Path("runs/mine"), Silent()))
    return folder


@pytest.fixture
def mine(made: Path, touche: Touche, tmp_path: Path) -> Path:
    """A copy of the task, beside one of its run."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "mine"


def change(folder: Path, **values: object) -> None:
    """Change values in the definition of a task; its labels keep their quotation marks."""
    path = folder / "task.yaml"
    text = path.read_text()
    for name, value in values.items():
        lines = [
            f"{name}: {value}" if line.startswith(f"{name}:") else line
            for line in text.splitlines()
        ]
        text = "\n".join(lines) + "\n"
    path.write_text(text)


def write_qrels(run: Path, path: Path) -> Path:
    found = tl.read_run(run / "run.txt")
    path.write_text(
        "".join(f"{topic} 0 {line[0].document_id} 2\n" for topic, line in found.rankings.items())
    )
    return path


def test_a_copied_task_gives_the_run_of_the_original(touche: Touche, mine: Path) -> None:
    done = touche(
        "run", "--config", "mine.yaml", *INPUTS, "--out", "runs/own", "--task", "comparative"
    )
    assert done.returncode == 0, done.stderr
    assert Path("runs/mine/run.txt").read_bytes() == Path("runs/own/run.txt").read_bytes()
    assert Path("runs/mine/results.tsv").read_bytes() == Path("runs/own/results.tsv").read_bytes()
    assert not Path("runs/own/task").exists()
    assert {path.name for path in Path("runs/mine/task").iterdir()} == {
        path.name for path in mine.iterdir() if path.name != HALVES_FILE
    }
    # Runs of two tasks are not measured together.
    qrels = write_qrels(Path("runs/own"), mine.parent / "qrels.txt")
    done = touche("compare", "runs/mine", "runs/own", "--relevance", str(qrels))
    assert done.returncode == 2 and "runs/own: a run of comparative, not of mine" in done.stderr


@pytest.mark.parametrize("how", ["changed", "broken"])
def test_a_run_outlives_its_task(how: str, touche: Touche, mine: Path) -> None:
    qrels = write_qrels(Path("runs/mine"), mine.parent / "qrels.txt")
    before = Path("runs/mine/run.txt").read_bytes()
    commands = [
        ("validate", "runs/mine"),
        ("evaluate", "runs/mine", "--relevance", str(qrels)),
        ("show", "runs/mine"),
        ("report", "runs/mine", "--relevance", str(qrels)),
        ("rank", "--out", "runs/mine"),
        ("regress", "record", "runs/mine", "one"),
        ("regress", "check", "one"),
    ]
    assert touche(*commands[-2]).returncode == 0
    assert "recorded copy" not in touche(*commands[-1]).stderr
    shutil.rmtree("regress")
    match how:
        case "changed":
            change(mine, documents_per_topic="{min: 0, max: 7}")
        case "broken":
            (mine / "task.yaml").write_text("name: [")
    for command in commands:
        done = touche(*command)
        assert done.returncode == 0, (command, done.stderr)
        assert ("used as the task" in done.stderr) is (command[0] == "rank")
    assert Path("runs/mine/run.txt").read_bytes() == before
    assert Path("regress/one/run.txt").read_bytes() == before


def test_the_copy_keeps_the_templates_that_a_run_was_made_with(touche: Touche, mine: Path) -> None:
    names = ("judge.jinja", "best.jinja", "order.jinja")
    before = {name: (mine / name).read_text() for name in names}
    for name, text in before.items():
        (mine / name).write_text(text.replace("version: ", "version: 1"))
    (mine / "order.jinja").unlink()
    (mine / "judge.examples.yaml").write_text("[]")
    assert touche("rank", "--out", "runs/mine").returncode == 0
    copy = Path("runs/mine/task")
    assert (copy / "judge.jinja").read_text() == before["judge.jinja"]
    assert (copy / "best.jinja").read_text() != before["best.jinja"], "the ranking may use it"
    assert not (copy / "order.jinja").exists() and not (copy / "judge.examples.yaml").exists()
    mine.rename(mine.parent / "elsewhere")
    done = touche("judge", "--out", "runs/mine")
    assert done.returncode == 0, done.stderr


def test_a_recorded_run_is_checked_with_the_templates_of_its_task_unless_this_changed(
    touche: Touche, mine: Path
) -> None:
    assert touche("regress", "record", "runs/mine", "one").returncode == 0
    judge = mine / "judge.jinja"
    text = judge.read_text()
    judge.write_text(text.replace("version: 4", "version: 5").replace("passage", "text"))
    done = touche("regress", "check")
    assert done.returncode == 1 and "prompt judge, template changed" in done.stdout
    judge.write_text(text)
    assert touche("regress", "check").returncode == 0
    change(mine, documents_per_topic="{min: 0, max: 7}")
    assert touche("regress", "check").returncode == 0


def test_a_changed_definition_is_a_changed_setting(touche: Touche, mine: Path) -> None:
    assert touche(*RUN, "--task", "mine").returncode == 0
    path = mine / "task.yaml"
    path.write_text(f"# A comment.\n{path.read_text()}")
    mine.rename(mine.parent / "moved")
    assert touche(*RUN, "--task", "moved").returncode == 0, (
        "neither place nor comments change a run"
    )
    change(mine.parent / "moved", documents_per_topic="{min: 0, max: 700}")
    done = touche(*RUN, "--task", "moved")
    assert done.returncode == 2
    assert [line.strip() for line in done.stderr.splitlines() if "→" in line] == [
        "task: runs/mine/task → moved"
    ]


def test_every_command_with_a_task_names_file_and_key_of_a_mistake(
    touche: Touche, mine: Path
) -> None:
    change(mine, titel="x", title="")
    run = "runs/mine/run.txt"
    for command in (
        [*RUN],
        ["index", "--corpus", str(SAMPLE / "passages.jsonl")],
        ["validate", run],
        ["evaluate", run, "--relevance", "none"],
        ["fuse", run, run, "--out", "fused.txt"],
        ["prompts", "list"],
        ["prompts", "check"],
        ["prompts", "show", "judge"],
    ):
        done = touche(*command, "--task", "mine")
        assert done.returncode in (1, 2) and "mine/task.yaml: title: " in done.stderr, command
        assert len(done.stderr.splitlines()) == 1


def test_the_library_takes_a_folder(mine: Path) -> None:
    with tl.open_corpus(
        SAMPLE / "passages.jsonl", task=str(mine), index=mine.parent / "index"
    ) as corpus:
        topics = tl.read_topics(SAMPLE / "topics.xml")
        candidates = tl.retrieve(topics, corpus, depth=5)
        assert candidates.task.name == "mine" and candidates.task is not TASKS["comparative"]
    qrels = tl.read_qrels(
        {"relevance": write_qrels(Path("runs/mine"), mine.parent / "qrels.txt")}, str(mine)
    )
    assert list(qrels.grades) == ["relevance"] and qrels.labels == (
        "FIRST",
        "SECOND",
        "NEUTRAL",
        "NO",
    )
