"""The command `qrels`: labels of judges as qrels, and systems with unjudged documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import touche_llm as tl
from benchmarks.pool_generator import make_pools
from tests.cli.conftest import Touche
from tests.report.reports import sample_run
from touche_llm.data.runs.reading import read_run

Grades = dict[str, dict[str, int]]
TEAMS = 6
NEW_TEAM = "team0"


def write_qrels(path: str, grades: Grades) -> None:
    lines = [
        f"{topic} 0 {document} {grade}\n"
        for topic, judged in grades.items()
        for document, grade in judged.items()
    ]
    Path(path).write_text("".join(lines))


def write_runs(grades: Grades) -> dict[str, set[tuple[str, str]]]:
    """Write the systems of six teams, and return the first five documents of each team."""
    found: dict[str, set[tuple[str, str]]] = {}
    teams = list(make_pools(np.random.default_rng(1), grades).items())
    for team, systems in teams[:TEAMS]:
        Path(team).mkdir()
        for name, rankings in systems.items():
            lines: list[str] = []
            for topic, documents in rankings.items():
                found.setdefault(team, set()).update((topic, name) for name in documents[:5])
                for rank, document in enumerate(documents[:10], start=1):
                    lines.append(f"{topic} Q0 {document} {rank} {-rank} {name}\n")
            Path(team, f"{name}.txt").write_text("".join(lines))
    return found


def restrict(grades: Grades, documents: set[tuple[str, str]]) -> Grades:
    return {
        topic: {name: grade for name, grade in judged.items() if (topic, name) in documents}
        for topic, judged in grades.items()
    }


@pytest.fixture
def grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grades:
    """Files of people (without what one team alone found) and of a judge; returns all true grades."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    true: Grades = {}
    labels: Grades = {}
    for topic in range(25):
        drawn = random.choice(4, 50, p=[0.45, 0.28, 0.18, 0.09])
        errors = random.choice([-1, 0, 1], 50, p=[0.1, 0.8, 0.1])
        true[f"q{topic}"] = {f"d{number}": int(grade) for number, grade in enumerate(drawn)}
        labels[f"q{topic}"] = {
            f"d{number}": int(label) for number, label in enumerate(np.clip(drawn + errors, 0, 3))
        }
    found = write_runs(true)
    others = set().union(*(found[team] for team in found if team != NEW_TEAM))
    write_qrels("people.txt", restrict(true, others))
    write_qrels("found.txt", restrict(true, set().union(*found.values())))
    write_qrels("judge.txt", labels)
    return true


def list_options(teams: int = TEAMS) -> list[str]:
    options = ["--human", "people.txt"]
    for team in range(teams):
        options += ["--systems", f"team{team}=team{team}"]
    return options


def rows_of(touche: Touche, *arguments: str) -> list[dict[str, Any]]:
    done = touche("qrels", "judge.txt", *arguments, "--fill", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def find_values(rows: Sequence[dict[str, Any]], team: str) -> dict[str, float]:
    return {row["system"]: row["value"] for row in rows if row["team"] == team}


def test_labels_of_people_come_before_those_of_the_judge(touche: Touche, grades: Grades) -> None:
    done = touche("qrels", "judge.txt", "--human", "people.txt", "--out", "qrels.txt")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in Path("qrels.txt").read_text().splitlines()]
    origins = [line.split("\t") for line in Path("qrels.txt.origins.tsv").read_text().splitlines()]
    assert len(lines) == 25 * 50
    assert origins[0] == ["topic", "document", "grade", "origin"]
    assert [row[:3] for row in origins[1:]] == [[line[0], line[2], line[3]] for line in lines]
    for topic, document, grade, origin in origins[1:]:
        if origin == "people":
            assert int(grade) == grades[topic][document]
    assert {row[3] for row in origins[1:]} == {"people", "judge"}


def test_documents_without_a_label_are_listed_as_candidates(touche: Touche, grades: Grades) -> None:
    write_qrels("part.txt", {"q0": grades["q0"]})
    done = touche("qrels", "part.txt", "--systems", "team0", "--pool", "3", "--out", "qrels.txt")
    assert done.returncode == 0, done.stderr
    candidates = read_run(Path("qrels.txt.unlabelled.run.txt")).rankings
    assert candidates.keys() == grades.keys() - {"q0"}
    systems = [read_run(path).rankings for path in sorted(Path("team0").iterdir())]
    expected = {item.document_id for rankings in systems for item in rankings["q1"][:3]}
    assert {item.document_id for item in candidates["q1"]} == expected


def test_values_are_near_those_with_all_documents_judged(touche: Touche, grades: Grades) -> None:
    rows = rows_of(touche, *list_options())
    shutil.copy("found.txt", "people.txt")
    true = find_values(rows_of(touche, *list_options()), NEW_TEAM)
    for row in rows:
        if row["team"] != NEW_TEAM:
            assert row["half_width"] == 0.0
            continue
        error = abs(row["value"] - true[row["system"]])
        assert error < abs(row["lowest"] - true[row["system"]])
        assert error <= row["half_width"]
        assert row["lowest"] < row["value"] < row["highest"]
        assert row["half_width"] < row["half_width_of_topics"]
        assert row["half_width"] < row["half_width_without_labels"]
        assert row["half_width"] < row["half_width_without_judge"]


def test_the_library_returns_the_rows_of_the_command(touche: Touche, grades: Grades) -> None:
    teams = sorted(path.name for path in Path().glob("team*"))
    filled = tl.fill_unjudged(
        "judge.txt",
        tl.read_qrels({"relevance": "people.txt"}, "passages"),
        {team: [team] for team in teams},
    )
    assert filled.to_rows() == rows_of(touche, *list_options())


def test_values_are_refused_with_few_teams(touche: Touche, grades: Grades) -> None:
    rows = rows_of(touche, *list_options(teams=4))
    for row in rows:
        if row["unjudged"] > 0.0:
            assert row["refusal"] == "fewer than five teams"
            assert row["value"] is None
            assert row["lowest"] <= row["highest"]


def test_values_are_refused_with_few_topics(touche: Touche, grades: Grades) -> None:
    lines = Path("people.txt").read_text().splitlines(keepends=True)
    kept = {f"q{topic}" for topic in range(19)}
    Path("people.txt").write_text("".join(line for line in lines if line.split()[0] in kept))
    rows = rows_of(touche, *list_options())
    assert {row["refusal"] for row in rows if row["unjudged"] > 0.0} == {"fewer than 20 topics"}


def test_values_are_refused_with_too_wide_an_interval(touche: Touche, grades: Grades) -> None:
    rows = rows_of(touche, *list_options(), "--max-half-width", "0.0001")
    assert {row["refusal"] for row in rows if row["unjudged"] > 0.0} == {"too wide an interval"}


def test_drawn_documents_come_back_with_the_grades_of_people(
    touche: Touche, grades: Grades
) -> None:
    done = touche("qrels", "judge.txt", *list_options(), "--draw", "20", "--out", "drawn.tsv")
    assert done.returncode == 0, done.stderr
    drawn = [line.split("\t") for line in Path("drawn.tsv").read_text().splitlines()[1:]]
    assert len(drawn) == 20
    assert {row[0] for row in drawn} == {NEW_TEAM}
    listed = read_run(Path("drawn.tsv.run.txt")).rankings
    in_run = {(topic, item.document_id) for topic, ranking in listed.items() for item in ranking}
    assert in_run == {(row[1], row[2]) for row in drawn}

    ungraded = touche("qrels", "judge.txt", *list_options(), "--fill", "--drawn", "drawn.tsv")
    assert ungraded.returncode != 0
    assert drawn[0][2] in ungraded.stderr

    with Path("people.txt").open("a") as stream:
        for _, topic, document, _ in drawn:
            stream.write(f"{topic} 0 {document} {grades[topic][document]}\n")
    rows = rows_of(touche, *list_options(), "--drawn", "drawn.tsv")
    assert {row["drawn"] for row in rows if row["team"] == NEW_TEAM} == {20}
    assert all(0.0 < row["half_width"] < 0.1 for row in rows if row["team"] == NEW_TEAM)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--fill",),
        ("--fill", "--human", "people.txt"),
        ("--fill", "--systems", "a=team0"),
        ("--pool", "5", "--out", "x.txt"),
        ("--draw", "20", "--fill", "--human", "people.txt", "--systems", "a=team0"),
        ("--fill", "--human", "people.txt", "--systems", "=team0"),
        ("--out", "x.txt", "--aspect", "stance"),
        ("--out", "people.txt"),
    ],
)
def test_wrong_usage_is_refused_and_writes_nothing(
    touche: Touche, grades: Grades, arguments: tuple[str, ...]
) -> None:
    done = touche("qrels", "judge.txt", *arguments)
    assert done.returncode == 2
    assert not Path("x.txt").exists()


def test_bad_input_names_the_place(touche: Touche, grades: Grades) -> None:
    Path("bad.txt").write_text("q0 0 d0 9\n")
    outside = touche("qrels", "bad.txt", "--out", "x.txt")
    assert outside.returncode == 1
    assert "bad.txt:1" in outside.stderr

    Path("other.txt").write_text("q0 0 unknown 1\n")
    unrelated = touche("qrels", "other.txt", *list_options(), "--fill")
    assert unrelated.returncode == 1

    Path("run.txt").write_text("other Q0 d0 1 1 x\n")
    options = (*list_options(), "--systems", "x=run.txt")
    without_topic = touche("qrels", "judge.txt", *options, "--fill")
    assert without_topic.returncode == 1
    assert "run" in without_topic.stderr


def test_a_missing_topic_of_a_run_is_named(touche: Touche, grades: Grades) -> None:
    run = sorted(Path("team1").iterdir())[0]
    lines = run.read_text().splitlines(keepends=True)
    run.write_text("".join(line for line in lines if not line.startswith("q3 ")))
    done = touche("qrels", "judge.txt", *list_options(), "--fill")
    assert done.returncode == 0, done.stderr
    assert f"{run.stem}: 1 of 25 judged topics" in done.stderr


def test_grades_of_two_scales_are_not_written_to_one_file(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sample_run("comparative", tmp_path)
    monkeypatch.chdir(tmp_path)
    topic, ranking = next(iter(read_run(folder / "run.txt").rankings.items()))
    Path("people.txt").write_text(f"{topic} 0 {ranking[0].document_id} 2\n")
    both = touche("qrels", str(folder), "--human", "people.txt", "--out", "x.txt")
    assert both.returncode == 2
    assert not Path("x.txt").exists()
    assert touche("qrels", str(folder), "--out", "x.txt").returncode == 0


def test_a_judge_that_made_a_run_is_refused_unless_allowed(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sample_run("comparative", tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = (
        "qrels",
        str(folder),
        "--systems",
        f"ours={folder}",
        "--pool",
        "3",
        "--out",
        "x.txt",
    )
    assert touche(*arguments).returncode == 2
    assert not Path("x.txt").exists()
    assert touche(*arguments, "--allow-own-judge").returncode == 0
    assert Path("x.txt").exists()
