from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Touche
from tests.evaluation.test_calibration import READ, gated, judgment, stance_reading
from touche_llm.data.io import write_records

TOPICS = 8
FIT = ("calibrate", "run", "--stance", "qrels.txt")


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A run's folder and qrels for it, in which thresholds part all labels."""
    examples = gated(TOPICS)
    run = tmp_path / "run"
    write_records(
        run / "judgments.jsonl", [judgment(e.topic_id, e.document_id, dict(e.probabilities)) for e in examples]
    )
    (run / "config.yaml").write_text("task: comparative\ntopics: topics.xml\ncorpus: passages.jsonl\n")
    (tmp_path / "qrels.txt").write_text("".join(f"{e.topic_id} 0 {e.document_id} {e.stance}\n" for e in examples))
    return tmp_path


def only(*topics: int) -> tuple[str, ...]:
    return tuple(part for topic in topics for part in ("--topic", str(topic)))


def test_thresholds_are_fitted_and_written_with_their_topics(judged: Path, touche: Touche) -> None:
    done = touche(*FIT, "--folds", "2", "--out", "deep/thresholds.yaml", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["held_out"] for row in rows] == ["fold 1", "fold 2", "all folds"]
    topics = [row["topic_ids"].split() for row in rows]
    assert [row["topics"] for row in rows] == [len(named) for named in topics]
    assert sorted(topics[0] + topics[1]) == sorted(topics[2]) == sorted(map(str, range(TOPICS)))
    written = yaml.safe_load((judged / "deep/thresholds.yaml").read_text())
    assert list(written) == ["stance"] and set(written["stance"]) == {"thresholds", "calibrated_on", "calibrated_for"}
    assert list(written["stance"]["thresholds"]) == ["NO", "NEUTRAL"]
    assert written["stance"]["calibrated_on"] == [str(topic) for topic in range(TOPICS)]


def test_thresholds_are_measured_on_topics_that_they_do_not_know(judged: Path, touche: Touche) -> None:
    assert touche(*FIT, "--folds", "2", "--out", "t.yaml", *only(0, 1, 2, 3)).returncode == 0
    assert yaml.safe_load((judged / "t.yaml").read_text())["stance"]["calibrated_on"] == ["0", "1", "2", "3"]
    done = touche(*FIT, "--evaluate", "t.yaml", *only(4, 5, 6, 7))
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line for line in done.stdout.splitlines() if "1.000" in line]
    assert len(rows) == 1 and "64" in rows[0]
    assert "most probable" in done.stdout


def test_thresholds_are_not_measured_on_topics_they_were_fitted_on(judged: Path, touche: Touche) -> None:
    assert touche(*FIT, "--folds", "2", "--out", "t.yaml", *only(0, 1, 2)).returncode == 0
    for chosen in ((), only(2, 1, 7)):
        done = touche(*FIT, "--evaluate", "t.yaml", *chosen)
        assert done.returncode == 2 and done.stdout == ""
        assert "t.yaml: its thresholds were fitted on" in done.stderr
        assert ("0, 1, 2; measure" if not chosen else "1, 2; measure") in done.stderr


def test_what_the_stance_prompt_said_is_used(judged: Path, touche: Touche) -> None:
    assert touche(*FIT, "--out", "before.yaml").returncode == 0
    lines = [line.split() for line in (judged / "qrels.txt").read_text().splitlines()]
    write_records(judged / "run/stances.jsonl", [stance_reading(each[0], each[2], READ) for each in lines])
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
    assert "without probabilities in the run, not used: 1 (topic and document): 1 plain[red]" in done.stderr
    assert "not in the run, not used: 1" in done.stderr


def test_too_few_topics_leave_what_was_written_before(judged: Path, touche: Touche) -> None:
    (judged / "t.yaml").write_text("before")
    done = touche(*FIT, "--out", "t.yaml", "--overwrite", "--folds", str(TOPICS + 1))
    assert done.returncode == 1
    assert f"{TOPICS} judged topics are too few for {TOPICS + 1} folds" in done.stderr
    assert (judged / "t.yaml").read_text() == "before"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give either --out FILE"),
        (("--evaluate", "b", "--seed", "1"), "only for fitting"),
        (("--out", "a", "--folds", "1"), "--folds"),
        (("--evaluate", "none.yaml"), "none.yaml: cannot read the file"),
        (("--evaluate", "other.yaml"), "'NEU': no threshold in comparative"),
        (("--out", "a", "--topic", "99"), "topic 99: no judged document"),
    ],
)
def test_wrong_usage_ends_with_code_two(judged: Path, touche: Touche, arguments: tuple[str, ...], problem: str) -> None:
    (judged / "other.yaml").write_text("stance: {thresholds: {NEU: 0.5}}\n")
    done = touche(*FIT, *arguments)
    assert done.returncode == 2 and problem in done.stderr
    assert not (judged / "a").exists()


def test_a_folder_without_a_run_and_a_task_without_such_labels_are_told(judged: Path, touche: Touche) -> None:
    done = touche("calibrate", "nowhere", "--stance", "qrels.txt", "--out", "t.yaml")
    assert done.returncode == 1 and "config.yaml: no such file; give the folder of a run" in done.stderr
    (judged / "run/config.yaml").write_text("task: sentence_pairs\ntopics: t.xml\ncorpus: args.csv\n")
    done = touche(*FIT, "--out", "t.yaml")
    assert done.returncode == 2 and "sentence_pairs: all its stances take a side" in done.stderr
