"""The two tasks on controversial questions against a real vLLM, on all 50 real topics where they are at hand."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.sample_runs import run_lines
from tests.vllm.conftest import Tell
from tests.vllm.real_data import input_of
from touche_llm.files import read_records
from touche_llm.records import Judgment
from touche_llm.tira import Input
from touche_llm.topics import read_topics

pytestmark = pytest.mark.vllm
SMALL = {
    "sentence_pairs": ["--depth", "30", "--judge-pairs", "6", "--both-orders", "2"],
    "controversial": ["--depth", "4"],
}


def touche(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "touche_llm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def run(given: Input, url: str, folder: Path, name: str, *more: object) -> Path:
    out = folder / name
    arguments = ["--task", given.task.name, "--topics", given.topics, "--corpus", given.corpus, "--model", "tiny"]
    arguments += ["--index", folder / "index", "--cache", folder / "answers.sqlite", "--base-url", url, "--out", out]
    done = touche("run", *arguments, *SMALL[given.task.name], *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def checked(given: Input, folder: Path, out: Path) -> str:
    """What `validate` prints of a valid run."""
    places = ["--topics", given.topics, "--corpus", given.corpus, "--index", folder / "index"]
    done = touche("validate", out / "run.txt", "--task", given.task.name, *places)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("task", sorted(SMALL))
def test_all_topics_get_a_valid_run_that_can_be_replayed(task: str, vllm_url: str, tmp_path: Path, tell: Tell) -> None:
    given, real = input_of(task, tmp_path)
    out = run(given, vllm_url, tmp_path, "asked")
    stages = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]
    requests, judge = stages["judge"]["requests"], stages["judge"]
    tell(
        f"{task}: {'the real topics' if real else 'the sample'}, {requests['asked']} requests in {judge['seconds']} s, "
        f"{judge['requests per topic']} for each topic, {stages['rank']['peak memory MiB']} MiB"
    )
    assert "warning" not in checked(given, tmp_path, out)
    sizes = Counter(line.topic_id for line in run_lines(out / "run.txt"))
    assert set(sizes) == {topic.id for topic in read_topics(given.topics)}
    assert min(sizes.values()) >= max(given.task.least_per_topic, 1)

    # Nothing listens there.
    replayed = run(given, "http://127.0.0.1:1", tmp_path, "replayed", "--cache-mode", "replay")
    stances = () if given.task.stance_question is None else ("stances.jsonl",)
    for name in ("run.txt", "judgments.jsonl", "candidates.run.txt", *stances):
        assert (replayed / name).read_bytes() == (out / name).read_bytes()


def test_long_documents_are_shown_in_excerpts_that_the_judgment_names(vllm_url: str, tmp_path: Path) -> None:
    given, real = input_of("controversial", tmp_path)
    out = run(given, vllm_url, tmp_path, "asked", "--limit-topics", "3")
    cut = [each.cut for each in read_records(out / "judgments.jsonl", Judgment, "judgments") if each.cut]
    assert all(each.parts and each.kept_chars <= each.of_chars for each in cut)
    if real:
        assert any(each.prompt_tokens for each in cut)
