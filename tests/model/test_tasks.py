"""All three tasks with a small real model on real servers.

A weak judge, so nothing is asserted of its labels.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.model.servers import MODEL
from tests.sample_runs import run_lines
from tests.vllm.command import touche
from tests.vllm.conftest import Tell
from tests.vllm.real_data import TaskInput
from tests.vllm.server import ROOT
from touche_llm.cli.demo import SAMPLES
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Judgment

pytestmark = pytest.mark.model
NOTHING = "http://127.0.0.1:1"  # nothing listens there
MAX_RECORDED = 40
SMALL = {
    "comparative": ["--limit-topics", 2, "--depth", 5, "--rank", "judge", "--rank", "pairwise:2"],
    "controversial": [
        "--limit-topics",
        1,
        "--depth",
        2,
        "--context",
        3000,
        "--judge-per",
        "field",
        "--stance-prompt",
        "own",
        "--stance-depth",
        1,
    ],
    "sentence_pairs": ["--limit-topics", 1, "--depth", 15, "--judge-pairs", 3, "--both-orders", 1],
}


@pytest.mark.parametrize("task", SMALL)
def test_topics_get_a_valid_run_that_replays_to_the_byte(
    task: str,
    inputs: Callable[[str], TaskInput],
    url: str,
    needed: list[object],
    tmp_path: Path,
    tell: Tell,
) -> None:
    given = inputs(task)

    def run(name: str, base_url: str, *more: object) -> Path:
        engine = [
            "--base-url",
            base_url,
            "--model",
            MODEL.name,
            "--cache",
            tmp_path / "answers.sqlite",
        ]
        touche(
            "run", *given.options, *engine, *needed, *SMALL[task], "--out", tmp_path / name, *more
        )
        return tmp_path / name

    sent = run("sent", url)
    judge = yaml.safe_load((sent / "ir-metadata.yml").read_text())["stages"]["judge"]
    judgments = read_records(sent / "judgments.jsonl", Judgment, "judgments")
    tell(f"{task}: {judge['llm']['counts']['requests']} requests in {judge['seconds']} s")
    assert read_records(sent / "failures.jsonl", Failure, "failures") == []
    # A pair of sentences that was not judged as a pair inherits the grades of its sentences.
    assert {judgment.source for judgment in judgments} - {"inherited"} == {"probabilities"}
    touche("validate", sent / "run.txt", *given.options)
    sizes = Counter(line.topic_id for line in run_lines(sent / "run.txt"))
    assert min(sizes.values()) >= max(given.task.documents_per_topic.min, 1)

    replayed = run("replayed", NOTHING, "--cache-mode", "replay")
    for name in ("run.txt", "judgments.jsonl", "candidates.run.txt"):
        assert (replayed / name).read_bytes() == (sent / name).read_bytes()


def test_doctor_finds_nothing_that_blocks_where_a_run_works(
    url: str, needed: list[object], tell: Tell
) -> None:
    card = touche("doctor", url, "--model", MODEL.name, *needed).stdout
    tell(card)
    assert card


def test_a_run_of_the_sample_is_recorded(
    url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Records it in `tests/regress_model` if TOUCHE_LLM_RECORD is set, where `make check` replays it."""
    if "vllm" not in request.node.name:
        pytest.skip("one server is enough")
    sample, run = SAMPLES / "comparative", tmp_path / "run"
    files = [
        "--topics",
        sample / "topics.xml",
        "--corpus",
        sample / "passages.jsonl",
        "--index",
        tmp_path / "index",
    ]
    engine = ["--base-url", url, "--model", MODEL.name, "--cache", tmp_path / "answers.sqlite"]
    touche("run", *files, *engine, *SMALL["comparative"], "--depth", 12, "--out", run)
    target = (
        ROOT / "tests" / "regress_model"
        if "TOUCHE_LLM_RECORD" in os.environ
        else tmp_path / "recorded"
    )
    shutil.rmtree(target, ignore_errors=True)
    touche("regress", "record", run, "comparative", "--dir", target)
    cassette = (target / "comparative" / "cassette.jsonl").read_text().splitlines()
    assert 0 < sum(json.loads(line)["kind"] == "answer" for line in cassette) <= MAX_RECORDED
    touche("regress", "check", "--dir", target)
