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
EXAMPLE = """
- topic: {id: "3", title: TITLE}
  document: Tea has less of it.
  first: tea
  second: coffee
  answer: {relevance: 3, quality: 1, position: YES, stance: FIRST}
"""


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
    assert done.returncode == 2 and "nowhere: no such folder of templates" in done.stderr


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_an_example_of_a_topic_that_is_evaluated_ends_the_run(touche: Touche, folder: Path, more: list[str]) -> None:
    examples = folder / "comparative" / "judge.examples.yaml"
    title = "'which is BETTER for heating an old house: a heat pump, or a gas boiler'"
    examples.write_text(EXAMPLE.replace("TITLE", title))
    done = touche(*RUN, "--prompts", "mine", *more)
    assert done.returncode == 2
    assert "judge.examples.yaml: example 1 of the template mine/comparative/judge.jinja: its topic 3" in done.stderr
    assert not Path("o/run.txt").exists()
