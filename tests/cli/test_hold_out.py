"""Accesses to held-out topics by commands and the lab, and the confirmation that counts them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.expect import raises_at
from tests.own_runs import rewrite
from tests.prompt_variants import collection, config_of, opening, reader, title_of, wording
from tests.sample_runs import run_directly
from tests.scripted_engine import ScriptedEngine
from touche_llm.cli import prompts_trial
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.lab.runs_of_lab import LabInputs, Workplace
from touche_llm.prompt_lab.holdout import Access, read_accesses

LOG = Path("hold_out_accesses.jsonl")
DATA = (
    "--topics",
    "topics.xml",
    "--corpus",
    "passages.jsonl",
    "--index",
    "index",
    "--cache",
    "answers.sqlite",
)
RELEVANCE = ("--relevance", "relevance")
WORDINGS = ("mine/blunt.jinja", "mine/sharp.jinja")


def make_engine() -> ScriptedEngine:
    return reader({"BLUNT": lambda topic, number: number < 4})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged collection, and runs `blunt` and `sharp` by the wordings of these names."""
    folder = tmp_path_factory.mktemp("made")
    files = collection(folder, topics=4)
    lines = (
        f"{topic} Q0 {topic}-{rank} {rank} {9 - rank} first\n"
        for topic in range(1, 5)
        for rank in range(1, 6)
    )
    (folder / "candidates").write_text("".join(lines))
    for name in ("blunt", "sharp"):
        prompt = wording(folder / "mine" / f"{name}.jinja", name.upper())
        given = {
            "candidates": folder / "candidates",
            "prompts__judge": str(prompt),
            "stance__depth": 0,
        }
        config = config_of(folder, files, **given)
        asyncio.run(run_directly(config, folder / name, make_engine()))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a copy of the runs, with an engine for `prompts`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for config in tmp_path.glob("*/config.yaml"):
        rewrite(config, config.read_text().replace(str(made), str(tmp_path)))
    monkeypatch.setattr("touche_llm.prompt_lab.comparison.open_client", opening(make_engine()))
    monkeypatch.setattr(prompts_trial, "open_client", opening(make_engine()))
    return tmp_path


def count_earlier(touche: Touche) -> int:
    """Confirm the sharp wording; return the number of earlier accesses that count."""
    done = touche(
        "prompts", "compare", *WORDINGS, *DATA, *RELEVANCE, "--confirm", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    (count,) = {row["earlier_accesses"] for row in json.loads(done.stdout)}
    assert isinstance(count, int)
    return count


def logged() -> list[Access]:
    return read_accesses(LOG)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "sharp/run.txt", *RELEVANCE, "--per-topic"),
        ("report", "sharp", *RELEVANCE),
        ("compare", "blunt", "sharp", *RELEVANCE),
        ("show", "sharp"),
    ],
)
def test_a_command_that_measures_or_shows_neither_writes_nor_reads_the_log(
    touche: Touche, folder: Path, command: tuple[str, ...], damaged: bool
) -> None:
    if damaged:
        LOG.write_text("{}\n")
    done = touche(*command)
    assert done.returncode == 0 and LOG.name not in done.stderr
    assert LOG.exists() is damaged
    if damaged:
        assert LOG.read_text() == "{}\n"


def look_in_lab(*runs: str, qrels: str = "relevance") -> None:
    """Show the judgments of runs in the lab, over all topics."""
    lab = Workplace(LabInputs(Path()), warn=pytest.fail)
    for run in runs:
        lab.log_evaluation(run, read_qrels({"relevance": Path(qrels)}, "comparative"))
    lab.close()


def test_a_look_of_the_lab_at_a_run_with_the_prompt_is_an_access(
    touche: Touche, folder: Path
) -> None:
    look_in_lab("sharp", "sharp")
    (access,) = logged()
    assert access.kind == "evaluation" and len(access.prompts) == 1
    assert access.run is not None and access.run.startswith("sharp@")
    assert access.topics == [title_of(str(number)).strip() for number in range(1, 5)]
    assert count_earlier(touche) == 1


def test_only_topics_with_judgments_are_accessed(touche: Touche, folder: Path) -> None:
    lines = Path("relevance").read_text().splitlines(keepends=True)
    Path("some").write_text("".join(line for line in lines if int(line.split()[0]) % 2))
    look_in_lab("sharp", qrels="some")
    (access,) = logged()
    assert access.topics == [title_of(topic).strip() for topic in ("1", "3")]
    # A look at a run with other prompts is logged, and does not count.
    look_in_lab("blunt")
    assert count_earlier(touche) == 0


def test_a_run_without_prompts_is_no_access(folder: Path) -> None:
    path = Path("sharp/ir-metadata.yml")
    metadata = yaml.safe_load(path.read_text())
    del metadata["stages"]["judge"]
    path.write_text(yaml.safe_dump(metadata))
    look_in_lab("sharp")
    assert not LOG.exists()


@pytest.mark.parametrize(
    ("topic", "given", "earlier"),
    [
        ("2", RELEVANCE, 1),
        ("2", (), 0),
        ("1", RELEVANCE, 0),
    ],
)
def test_a_trial_beside_judgments_of_a_held_out_topic_is_an_access(
    touche: Touche, folder: Path, topic: str, given: tuple[str, ...], earlier: int
) -> None:
    about = ("--topic", topic, "--doc", f"{topic}-1")
    for output in ("table", "json"):
        done = touche("prompts", "try", WORDINGS[1], *about, *DATA, *given, "--format", output)
        assert done.returncode == 0, done.stderr
        assert ("held out" in done.stderr) is (topic == "2" and bool(given))
    assert [each.kind for each in logged()] == (["trial"] if given else [])
    assert count_earlier(touche) == earlier


def test_a_trial_on_an_unjudged_document_is_no_access(touche: Touche, folder: Path) -> None:
    Path("relevance").write_text(Path("relevance").read_text().replace("2 0 2-1 1\n", ""))
    done = touche("prompts", "try", WORDINGS[1], "--topic", "2", "--doc", "2-1", *DATA, *RELEVANCE)
    assert done.returncode == 0 and not LOG.exists()


def test_an_access_of_a_trial_that_cannot_be_logged_is_a_warning(
    touche: Touche, folder: Path
) -> None:
    LOG.write_text("{}\n")
    about = ("--topic", "2", "--doc", "2-1")
    tried = touche("prompts", "try", WORDINGS[1], *about, *DATA, *RELEVANCE)
    assert tried.returncode == 0 and str(LOG) in tried.stderr
    confirmed = touche("prompts", "compare", *WORDINGS, *DATA, *RELEVANCE, "--confirm")
    assert confirmed.returncode != 0 and str(LOG) in confirmed.stderr
    assert "Traceback" not in confirmed.stderr


def test_the_lab_shows_nothing_that_it_cannot_log(folder: Path) -> None:
    Path("topics.xml").unlink()
    with raises_at(DataError, "sharp"):
        look_in_lab("sharp")
    assert not LOG.exists()
