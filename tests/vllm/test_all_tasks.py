"""The tasks on controversial questions against a real vLLM, on the real topics if available."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.sample_runs import run_lines
from tests.vllm.command import touche
from tests.vllm.conftest import Tell
from tests.vllm.real_data import TaskInput
from touche_llm.data.io import read_records
from touche_llm.data.records import Judgment
from touche_llm.data.topics import read_topics

pytestmark = pytest.mark.vllm
# All topics of the one task, and some of the same topics in the others.
TOPICS = {"controversial": 50, "sentence_pairs": 20, "arguments_2020": 10}
SMALL = {
    "controversial": ["--depth", 2, "--stance-depth", 1],
    "arguments_2020": ["--depth", 3, "--rank", "judge", "--rank", "setwise:2"],
    # Fifteen sentences make more pairs than the organisers want.
    "sentence_pairs": ["--depth", 15, "--judge-pairs", 3, "--both-orders", 1],
}


def run(given: TaskInput, url: str, folder: Path, name: str, *more: object) -> Path:
    """Make a run; returns its folder."""
    out, task = folder / name, given.task.name
    engine = ["--model", "tiny", "--base-url", url, "--cache", folder / "answers.sqlite"]
    touche("run", *given.options, *engine, "--out", out, "--limit-topics", TOPICS[task], *SMALL[task], *more)
    return out


@pytest.mark.parametrize("task", sorted(SMALL))
def test_topics_get_a_valid_run_that_can_be_replayed(
    task: str, inputs: Callable[[str], TaskInput], vllm_url: str, tmp_path: Path, tell: Tell
) -> None:
    given = inputs(task)
    out = run(given, vllm_url, tmp_path, "asked")
    stages = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]
    requests, judge = stages["judge"]["requests"], stages["judge"]
    tell(
        f"{task}: {requests['requests']} requests in {judge['seconds']} s, {judge['requests per topic']} for each topic"
    )
    assert "warning" not in touche("validate", out / "run.txt", *given.options).stdout
    sizes = Counter(line.topic_id for line in run_lines(out / "run.txt"))
    assert set(sizes) == {topic.id for topic in read_topics(given.topics)[: TOPICS[task]]}
    assert min(sizes.values()) >= max(given.task.documents_per_topic.min, 1)

    # Long web pages are excerpts, and their judgments say which; long arguments lack their end.
    cut = [each.cut for each in read_records(out / "judgments.jsonl", Judgment, "judgments") if each.cut]
    assert all(each.kept_chars <= each.of_chars for each in cut)
    assert all(bool(each.parts) is ("excerpts" in given.task.features) for each in cut)
    if given.is_real and task == "controversial":
        assert any(each.prompt_tokens for each in cut)

    # Nothing listens there.
    replayed = run(given, "http://127.0.0.1:1", tmp_path, "replayed", "--cache-mode", "replay")
    stances = () if given.task.stance_question is None else ("stances.jsonl",)
    for name in ("run.txt", "judgments.jsonl", "candidates.run.txt", *stances):
        assert (replayed / name).read_bytes() == (out / name).read_bytes()
