"""`--prompts`: a folder of templates, as a user gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from touche_llm.cli.demo import SAMPLES
from touche_llm.tasks import prompts_folder

SAMPLE = SAMPLES / "comparative"
RUN = ["run", "--config", str(SAMPLE / "demo.yaml"), "--out", "o", "--topic", "3"]
RUN += ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
RUN += ["--cache", str(SAMPLE / "cassette.jsonl"), "--cache-mode", "replay"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "comparative" / "judge.jinja"
    path.parent.mkdir(parents=True)
    path.write_text((prompts_folder() / "comparative" / "judge.jinja").read_text() + " ")
    return tmp_path / "mine"


def test_a_folder_takes_the_place_of_the_project_s_templates(touche: Touche, folder: Path) -> None:
    # White space at the end changes the hash, not what is sent: the cassette has all answers.
    assert touche(*RUN, "--prompts", "mine").returncode == 0
    template = folder / "comparative" / "judge.jinja"
    template.write_text(template.read_text().replace("Passage:", "The passage:"))
    done = touche(*RUN, "--prompts", "mine", "--overwrite")
    assert done.returncode == 1 and "comparative/judge" in done.stderr
    done = touche("rank", "--out", "o", "--set", "prompts.folder=mine")
    assert done.returncode == 2 and "a stage before `rank` depends on it" in done.stderr
    done = touche(*RUN, "--prompts", "nowhere")
    assert done.returncode == 2 and "nowhere: contains none of the templates" in done.stderr
