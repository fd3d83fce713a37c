"""A task made by `tasks new` and changed by hand, against a real vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.changed_example import FIVE, INPUTS, LABELS, TWO_SCALES, change_example, write_qrels
from tests.vllm.command import touche
from touche_llm.data.io import read_records
from touche_llm.data.records import Failure, Judgment

pytestmark = pytest.mark.vllm


def run(out: str, url: str, *more: str) -> bytes:
    """Make a run; returns its lines."""
    places = ("--index", "index", "--cache", "answers.sqlite", "--out", out)
    touche("run", "--task", "essays", *INPUTS, *places, "--model", "tiny", "--base-url", url, *more)
    return Path(out, "run.txt").read_bytes()


def test_five_labels_and_two_scales_are_run_measured_recorded_and_replayed(
    vllm_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change_example(touche, FIVE, TWO_SCALES)
    first = run("runs/first", vllm_url)
    judgments = read_records(Path("runs/first/judgments.jsonl"), Judgment, "judgments")
    assert read_records(Path("runs/first/failures.jsonl"), Failure, "failures") == []
    assert len(judgments) == len(first.splitlines()) > 5
    assert {judgment.source for judgment in judgments} == {"probabilities"}
    known = {"relevance": {"0", "1", "2"}, "depth": {"0", "1", "2", "3", "4"}, "stance": set(LABELS)}
    for judgment in judgments:
        assert {field: set(reading.shares) for field, reading in judgment.readings.items()} == known
        assert 0 < judgment.grades["relevance"] < 2 and 0 < judgment.grades["depth"] < 4

    qrels = write_qrels()
    assert "warning" not in touche("validate", "runs/first").stdout
    rows = json.loads(touche("evaluate", "runs/first", *qrels, "--format", "json").stdout)
    assert {"depth nDCG@5", "stance macro-F1"} <= {row["measure"] for row in rows if row["value"] is not None}
    touche("report", "runs/first", *qrels)
    touche("regress", "record", "runs/first", "one", *qrels)
    touche("regress", "check")
    # Nothing listens there.
    assert run("runs/replayed", "http://127.0.0.1:1", "--cache-mode", "replay") == first
