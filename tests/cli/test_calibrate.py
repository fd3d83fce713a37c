from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.evaluation.test_calibration import READ, gated, judgment, shares, stance_reading
from touche_llm.data.files import write_records

TOPICS = 8
FIT = ("calibrate", "run", "--stance", "qrels.txt")


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A run's folder and qrels for it, in which thresholds part all labels."""
    examples = gated(TOPICS)
    run = tmp_path / "run"
    write_records(
        run / "judgments.jsonl",
        [judgment(topic, name, shares(*said)) for topic, name, _, said in examples],
    )
    (run / "config.yaml").write_text(
        "task: comparative\ntopics: topics.xml\ncorpus: passages.jsonl\n"
    )
    (tmp_path / "qrels.txt").write_text(
        "".join(f"{topic} 0 {name} {stance}\n" for topic, name, stance, _ in examples)
    )
    return tmp_path


def test_thresholds_are_fitted_and_written_with_their_topics(judged: Path, touche: Touche) -> None:
    done = touche(*FIT, "--out", "deep/thresholds.yaml", "--format", "json")
    assert done.returncode == 0, done.stderr
    held_out, most_probable = json.loads(done.stdout)
    assert (
        held_out["topics"],
        held_out["documents"],
        held_out["macro_f1"],
        held_out["accuracy"],
    ) == (8, 128, 1.0, 1.0)
    assert most_probable["labels"] == "most probable" and most_probable["macro_f1"] < 0.9
    written = yaml.safe_load((judged / "deep/thresholds.yaml").read_text())
    assert list(written) == ["stance"] and set(written["stance"]) == {
        "thresholds",
        "calibrated_on",
        "calibrated_for",
    }
    assert list(written["stance"]["thresholds"]) == ["NO", "NEUTRAL"]
    assert written["stance"]["calibrated_on"] == [str(topic) for topic in range(TOPICS)]


def test_what_the_stance_prompt_said_is_used(judged: Path, touche: Touche) -> None:
    assert touche(*FIT, "--out", "before.yaml").returncode == 0
    lines = [line.split() for line in (judged / "qrels.txt").read_text().splitlines()]
    write_records(
        judged / "run/stances.jsonl", [stance_reading(each[0], each[2], READ) for each in lines]
    )
    done = touche(*FIT, "--out", "after.yaml")
    assert done.returncode == 0
    assert (judged / "before.yaml").read_text() != (judged / "after.yaml").read_text()
    assert "the thresholds do not help" in done.stdout


def test_documents_that_are_not_used_are_named(judged: Path, touche: Touche) -> None:
    with (judged / "run/judgments.jsonl").open("a") as stream:
        stream.write(judgment("1", "plain[red]", None).to_json().decode() + "\n")
    with (judged / "qrels.txt").open("a") as stream:
        stream.write("1 0 plain[red] NO\n1 0 gone NO\n")
    done = touche(*FIT, "--out", "t.yaml")
    assert done.returncode == 0
    assert "not used: 2 (topic and document): 1 gone, 1 plain[red]" in done.stderr


def test_a_single_topic_leaves_what_was_written_before(judged: Path, touche: Touche) -> None:
    (judged / "t.yaml").write_text("before")
    lines = (judged / "qrels.txt").read_text().splitlines(keepends=True)
    (judged / "qrels.txt").write_text("".join(line for line in lines if line.startswith("0 ")))
    done = touche(*FIT, "--out", "t.yaml", "--overwrite")
    assert done.returncode == 1 and "topic 0 alone" in done.stderr
    assert (judged / "t.yaml").read_text() == "before"


def test_a_folder_without_a_run_and_a_task_without_such_labels_are_told(
    judged: Path, touche: Touche
) -> None:
    done = touche("calibrate", "nowhere", "--stance", "qrels.txt", "--out", "t.yaml")
    assert (
        done.returncode == 1
        and "config.yaml: no such file; give the folder of a run" in done.stderr
    )
    (judged / "run/config.yaml").write_text(
        "task: sentence_pairs\ntopics: t.xml\ncorpus: args.csv\n"
    )
    done = touche(*FIT, "--out", "t.yaml")
    assert done.returncode == 2 and "sentence_pairs: all its stances take a side" in done.stderr
