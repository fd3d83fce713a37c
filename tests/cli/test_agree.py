"""The command `agree`: judges that are files or folders of runs, beside people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sklearn.metrics

import touche_llm as tl
from tests.cli.conftest import Touche
from tests.evaluation.judges.planted_judges import (
    draw_grades,
    draw_systems,
    make_generous_judge,
    make_noisy_judge,
    make_partial_judge,
)
from tests.report.reports import sample_run

Grades = dict[str, dict[str, int]]
PEOPLE = ("--relevance", "people.txt")


def write_labels(path: Path, grades: Grades) -> None:
    lines = [
        f"{topic} 0 {document} {grade}\n"
        for topic, judged in grades.items()
        for document, grade in judged.items()
    ]
    path.write_text("".join(lines))


@pytest.fixture
def judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grades:
    """Files of people and of three judges, and a folder with six run files; returns people's grades."""
    monkeypatch.chdir(tmp_path)
    grades = draw_grades()
    write_labels(Path("people.txt"), grades)
    for judge in (
        make_noisy_judge(grades),
        make_partial_judge(grades),
        make_generous_judge(grades),
    ):
        write_labels(Path(f"{judge.name}.txt"), judge.labels)
    Path("systems").mkdir()
    for name, run in draw_systems(grades).items():
        lines = [
            f"{topic} Q0 {candidate.document_id} {candidate.rank} {candidate.score} {name}\n"
            for topic, ranking in run.rankings.items()
            for candidate in ranking
        ]
        Path("systems", f"{name}.txt").write_text("".join(lines))
    return grades


def rows_of(touche: Touche, *arguments: str) -> list[dict[str, Any]]:
    done = touche("agree", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def find_value(rows: list[dict[str, Any]], judge: str, measure: str) -> Any:
    (row,) = (
        row
        for row in rows
        if (row["part"], row["judge"], row["measure"]) == ("agreement", judge, measure)
    )
    return row["value"]


def test_json_has_the_kappa_of_scikit_learn_for_each_judge(touche: Touche, judges: Grades) -> None:
    rows = rows_of(touche, "noisy.txt", "generous.txt", *PEOPLE)
    people = [grade for judged in judges.values() for grade in judged.values()]
    for judge in ("noisy", "generous"):
        labels = [int(line.split()[3]) for line in Path(f"{judge}.txt").read_text().splitlines()]
        expected = sklearn.metrics.cohen_kappa_score(people, labels)
        quadratic = sklearn.metrics.cohen_kappa_score(people, labels, weights="quadratic")
        assert find_value(rows, judge, "kappa") == pytest.approx(expected, abs=1e-9)
        assert find_value(rows, judge, "quadratic kappa") == pytest.approx(quadratic, abs=1e-9)
    assert all(row["documents"] > 0 and row["topics"] > 0 for row in rows)


def test_tables_name_what_each_judge_does(touche: Touche, judges: Grades) -> None:
    done = touche(
        "agree", "noisy.txt", "partial.txt", "generous.txt", *PEOPLE, "--systems", "systems"
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "1,500 documents of 25 topics" in done.stdout
    findings = done.stdout.partition("findings")[2]
    assert "partial: favours a1" in findings and "generous: over-rates" in findings
    assert "generous: favours" not in findings and "noisy: favours" not in findings


def test_a_label_outside_the_scale_is_an_error_with_its_line_or_left_out(
    touche: Touche, judges: Grades
) -> None:
    lines = Path("noisy.txt").read_text().splitlines()
    lines[6] = " ".join([*lines[6].split()[:3], "5"])
    Path("odd.txt").write_text("\n".join(lines))
    done = touche("agree", "odd.txt", *PEOPLE)
    assert done.returncode == 1
    assert "odd.txt:7" in done.stderr and "--skip-bad-labels" in done.stderr

    done = touche("agree", "odd.txt", *PEOPLE, "--skip-bad-labels", "--format", "json")
    assert done.returncode == 0
    (row,) = (row for row in json.loads(done.stdout) if row["measure"] == "kappa")
    assert row["documents"] == 1499
    assert "left out: 1" in done.stderr


def test_judges_of_another_scale_have_no_kappa(touche: Touche, judges: Grades) -> None:
    rows = rows_of(touche, "noisy.txt", *PEOPLE, "--scale", "0..4")
    measures = {row["measure"] for row in rows if row["part"] == "agreement"}
    assert measures == {"Spearman", "AUC of 1 or more"}
    assert len([row for row in rows if row["part"] == "table"]) == 4 * 5


def test_eight_topics_have_intervals_that_are_called_too_narrow(
    touche: Touche, judges: Grades
) -> None:
    write_labels(Path("few.txt"), dict(list(judges.items())[:8]))
    done = touche("agree", "noisy.txt", "--relevance", "few.txt")
    assert done.returncode == 0
    assert "8 topics are too narrow" in done.stderr


def test_second_assessors_are_measured_like_a_judge(touche: Touche, judges: Grades) -> None:
    rows = rows_of(touche, "noisy.txt", *PEOPLE, "--second", "relevance=generous.txt")
    generous = rows_of(touche, "generous.txt", *PEOPLE)
    kappa = find_value(generous, "generous", "kappa")
    assert find_value(rows, "second assessors", "kappa") == kappa


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["noisy.txt"], 2, "no qrels given"),
        (["noisy.txt", "noisy.txt", *PEOPLE], 2, "given twice"),
        (["nowhere.txt", *PEOPLE], 1, "nowhere.txt"),
        (["systems", *PEOPLE], 1, "systems"),
        (["systems/a1.txt", *PEOPLE], 1, "looks like a run"),
        (["noisy.txt", *PEOPLE, "--scale", "3"], 2, "--scale"),
        (["noisy.txt", *PEOPLE, "--second", "generous.txt"], 2, "--second"),
        (["noisy.txt", *PEOPLE, "--systems", "systems/a1.txt"], 2, "alone"),
        (["noisy.txt", *PEOPLE, "--systems", "."], 1, "no run file"),
        (
            ["noisy.txt", *PEOPLE, "--quality", "generous.txt", "--task", "comparative_2021"],
            2,
            "one aspect",
        ),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    touche: Touche, judges: Grades, arguments: list[str], code: int, message: str
) -> None:
    done = touche("agree", *arguments)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_a_folder_is_a_judge_in_all_aspects(touche: Touche, tmp_path: Path) -> None:
    run = sample_run("comparative", tmp_path)
    judgments = [json.loads(line) for line in (run / "judgments.jsonl").read_text().splitlines()]
    stances = [
        f"{each['topic_id']} 0 {each['document_id']} {each['stance']}\n" for each in judgments
    ]
    (tmp_path / "stance.txt").write_text("".join(stances))
    relevance = [f"{each['topic_id']} 0 {each['document_id']} 1\n" for each in judgments]
    (tmp_path / "relevance.txt").write_text("".join(relevance))
    rows = rows_of(
        touche,
        str(run),
        "--stance",
        str(tmp_path / "stance.txt"),
        "--relevance",
        str(tmp_path / "relevance.txt"),
    )
    stance = {
        row["measure"]: row
        for row in rows
        if row["aspect"] == "stance" and row["part"] == "agreement"
    }
    # The judge beside itself.
    assert stance["kappa"]["value"] == stance["macro-F1"]["value"] == 1.0
    assert stance["kappa"]["documents"] == len(judgments)
    assert {row["aspect"] for row in rows} == {"relevance", "stance"}


def test_the_library_has_the_rows_of_the_command(touche: Touche, judges: Grades) -> None:
    qrels = tl.read_qrels({"relevance": "people.txt"}, "passages")
    study = tl.agree(["noisy.txt", "partial.txt"], qrels, systems=["systems"])
    expected = rows_of(touche, "noisy.txt", "partial.txt", *PEOPLE, "--systems", "systems")
    rows = study.to_rows()
    assert [row["value"] for row in rows] == pytest.approx([row["value"] for row in expected])


def test_probabilities_have_a_brier_score_and_a_reliability_table(
    touche: Touche, tmp_path: Path
) -> None:
    run = sample_run("controversial", tmp_path)
    judgments = [json.loads(line) for line in (run / "judgments.jsonl").read_text().splitlines()]
    lines = [f"{each['topic_id']} 0 {each['document_id']} 2\n" for each in judgments]
    (tmp_path / "relevance.txt").write_text("".join(lines))
    arguments = (str(run), "--relevance", str(tmp_path / "relevance.txt"))
    rows = rows_of(touche, *arguments)
    parts = {row["measure"]: row["value"] for row in rows if row["part"] == "probabilities"}
    squares = [
        sum(
            (share - (grade == "2")) ** 2
            for grade, share in each["readings"]["relevance"]["probabilities"].items()
        )
        for each in judgments
    ]
    assert parts["Brier score"] == pytest.approx(sum(squares) / len(squares))
    # All true labels are the same.
    assert parts["uncertainty"] == parts["resolution"] == 0.0
    counts = [
        row["documents"]
        for row in rows
        if (row["part"], row["measure"]) == ("reliability", "probability")
    ]
    assert sum(counts) == 4 * len(judgments)
    assert "Brier score" in touche("agree", *arguments).stdout
