"""`touche-llm tira` with a real vLLM that it starts and stops, as TIRA calls it."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.sample_runs import run_lines
from tests.vllm.processes import left_in_folder
from tests.vllm.server import CONTEXT, OPTIONS, ROOT, vllm_environment
from touche_llm.cli.demo import SAMPLES
from touche_llm.data.topics.reading import read_topics
from touche_llm.evaluation.validation import validate_run
from touche_llm.integrations.tira import detect_input
from touche_llm.tasks import get_task

pytestmark = pytest.mark.vllm


def prepared(task: str, folder: Path) -> Path:
    """The sample of a task as TIRA would lay it out."""
    given = detect_input(SAMPLES / task)
    assert given.corpus is not None
    place = folder / f"input-{task}"
    place.mkdir()
    shutil.copy(given.topics, place / "topics.xml")
    with gzip.open(place / f"{given.corpus.name}.gz", "wb") as stream:
        stream.write(given.corpus.read_bytes())
    return place


def tira(folder: Path, model: Path, *arguments: object, **variables: str) -> None:
    """Call the wrapper that TIRA calls, in an empty folder and with an empty home; it leaves a record."""
    for name in ("home", "work"):
        (folder / name).mkdir(exist_ok=True)
    with vllm_environment():
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("XDG_")
        }
    # What a CPU without a compiler needs; on a GPU there is nothing to say.
    config = folder / "engine.yaml"
    config.write_text(yaml.safe_dump({"engine": {"options": OPTIONS, "context": CONTEXT}}))
    environment |= {
        "TOUCHE_LLM_CONFIG": str(config),
        # Before vLLM's own programs, so that vLLM is found on the path, as in an image.
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "HOME": str(folder / "home"),
        "TOUCHE_LLM_MODEL": str(model),
        "TOUCHE_LLM_CACHE": str(folder / "cache"),
        **variables,
    }
    shutil.copy(ROOT / "my-software.sh", folder / "my-software.sh")
    command = ["sh", str(folder / "my-software.sh"), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, cwd=folder / "work", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert left_in_folder(folder / "work") == []
    left = [path for name in ("home", "work") for path in (folder / name).rglob("*")]
    # The record of the configuration, by which the run counts as the user's own.
    records = folder / "home" / ".local" / "state" / "touche-llm"
    assert [path for path in left if path.is_file() and records not in path.parents] == []


def check(out: Path, task: str, topics: Path) -> None:
    ids = {topic.id for topic in read_topics(topics)}
    assert validate_run(out / "run.txt", get_task(task), topic_ids=ids) == []
    assert {line.topic_id for line in run_lines(out / "run.txt")} == ids
    metadata = yaml.safe_load((out / "ir-metadata.yml").read_text())
    assert {"actor", "platform", "implementation", "method", "data"} <= set(metadata)


@pytest.mark.parametrize(
    "task",
    [
        "comparative",
        pytest.param("controversial", marks=pytest.mark.nightly),
        pytest.param("sentence_pairs", marks=pytest.mark.nightly),
    ],
)
def test_nothing_but_two_folders_and_a_model_gives_a_valid_run(
    task: str, tiny_model: Path, tmp_path: Path
) -> None:
    given = prepared(task, tmp_path)
    before = {path.name for path in given.iterdir()}
    tira(tmp_path, tiny_model, "-i", given, "-o", tmp_path / "out")
    check(tmp_path / "out", task, given / "topics.xml")
    assert {path.name for path in given.iterdir()} == before
    assert "vLLM" in (tmp_path / "cache" / "vllm.log").read_text()

    # The cache serves a second run, which starts no server: the log is as it was.
    log = (tmp_path / "cache" / "vllm.log").read_bytes()
    tira(tmp_path, tiny_model, "-i", given, "-o", tmp_path / "again", "--cache-mode", "replay")
    assert (tmp_path / "again" / "run.txt").read_bytes() == (
        tmp_path / "out" / "run.txt"
    ).read_bytes()
    assert (tmp_path / "cache" / "vllm.log").read_bytes() == log
