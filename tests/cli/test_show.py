"""`show` and `runs`, the summary at the end of a run, and qrels that are known from an earlier evaluation."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from tests.cli.conftest import Touche
from tests.report.reports import sample_run
from tests.sample_runs import run_lines
from touche_llm.cli.demo import SAMPLES
from touche_llm.data.files import read_records, write_records
from touche_llm.data.records import Cut, Judgment
from touche_llm.llm.label_statistics import get_most_probable
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import find_runs

SAMPLE = SAMPLES / "comparative"
REPLAY = [
    "--config",
    str(SAMPLE / "demo.yaml"),
    "--cache",
    str(SAMPLE / "cassette.jsonl"),
    "--cache-mode",
    "replay",
]
DATA = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
GRADED = ("--relevance", "relevance", "--quality", "quality")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    sample_run("comparative", folder).rename(folder / "first")
    config = yaml.safe_load((folder / "first" / "config.yaml").read_text())
    (folder / "first" / "config.yaml").write_text(
        yaml.safe_dump(config | {"index": str(folder / "first" / "index")})
    )
    return folder / "first"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A run of the sample in `first`, and qrels for it."""
    shutil.copytree(made, tmp_path / "first")
    for aspect in ("relevance", "quality"):
        lines = (
            f"{line.topic_id} 0 {line.document_id} {line.rank % 3}\n"
            for line in run_lines(made / "run.txt")
        )
        (tmp_path / aspect).write_text("".join(lines))
    return tmp_path / "first"


def rows_of(touche: Touche, *arguments: str) -> list[dict[str, Any]]:
    done = touche(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_a_run_is_shown_with_the_first_documents_of_each_topic(touche: Touche, run: Path) -> None:
    rows = rows_of(touche, "show", "first")
    expected = [
        (line.topic_id, line.rank, line.document_id, line.stance)
        for line in run_lines(run / "run.txt")
        if line.rank <= 3
    ]
    assert [(row["topic"], row["rank"], row["document"], row["stance"]) for row in rows] == expected
    assert all(0 <= row["relevance"] <= 3 and row["text"] and 0 <= row["p_NO"] <= 1 for row in rows)
    assert len(rows_of(touche, "show", "first", "--top", "1")) == 4
    shown = touche("show", "first").stdout
    lines = shown.splitlines()
    for row in rows:
        (line,) = (line for line in lines if f"  {row['document']}  " in line)
        head = next(
            each for each in reversed(lines[: lines.index(line)]) if each.startswith("rank")
        )
        assert (
            line[head.index("stance") :].startswith(f"{row['stance']} ") and row["text"][:9] in line
        )
    assert all(
        word in shown
        for word in ("complete", "written-for-the-demo", "pairwise:5", "116 judgments")
    )


def facts_of(touche: Touche, name: str) -> dict[str, str]:
    """The settings in the head of a run, by name."""
    head = touche("show", name).stdout.split("\n\n")[0].splitlines()[1:]
    return dict(re.split(r"  +", line, maxsplit=1) for line in head)


def test_a_run_that_was_only_retrieved_has_no_model_yet(touche: Touche) -> None:
    chosen = ["--topic", "3", "--limit-topics", "2", "--depth", "5"]
    assert touche("retrieve", *DATA, *chosen, "--out", "begun").returncode == 0
    facts = facts_of(touche, "begun")
    assert (facts["model"], facts["first stage"]) == ("not known yet", "bm25, depth 5")
    assert facts["topics"].startswith("1 of ") and facts["topics"].endswith(
        "topics.xml, the first 2, only 3"
    )
    assert "prompts" not in facts
    done = touche("evaluate", "begun", "--relevance", str(SAMPLE / "qrels-relevance.txt"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert (
        done.stderr.startswith("error: begun: ")
        and "retrieve" in done.stderr
        and "rank`" not in done.stderr
    )


def test_settings_that_are_not_the_default_are_shown_with_their_origin(
    touche: Touche, run: Path
) -> None:
    shown = touche("show", "first").stdout
    (block,) = (part for part in shown.split("\n\n") if "first/config.yaml" in part)
    table = [re.split(r"  +", line.strip()) for line in block.splitlines()]
    assert table[1] == ["setting", "value", "from"]
    rows = {name: (value, origin) for name, value, origin in table[3:]}
    assert rows["rank"] == ("judge,pairwise:5", "run's folder")
    assert rows["cache.mode"] == ("replay", "run's folder")
    assert rows["engine.model"] == ("written-for-the-demo", "run's folder")
    assert rows.keys().isdisjoint(("depth", "task", "retriever.k1", "weights.relevance"))
    assert {origin for _, origin in rows.values()} == {"run's folder"}


def test_a_topic_is_shown_with_its_whole_ranking(touche: Touche, run: Path) -> None:
    expected = [line.document_id for line in run_lines(run / "run.txt") if line.topic_id == "3"]
    judgments = read_records(run / "judgments.jsonl", Judgment, "judgments")
    cut = Cut(kept_chars=1, of_chars=3, prompt_tokens=9)
    judgments = [
        replace(each, cut=cut) if each.document_id == expected[0] else each for each in judgments
    ]
    write_records(run / "judgments.jsonl", judgments)
    rows = rows_of(touche, "show", "first", "--topic", "3")
    assert [row["document"] for row in rows] == expected
    assert sorted(row["first_stage_rank"] for row in rows) == list(range(1, len(rows) + 1))
    assert {row["document"]: row["seen"] for row in rows} == dict.fromkeys(expected, 1.0) | {
        expected[0]: 0.3333
    }
    shown = touche("show", "first", "--topic", "3").stdout
    assert "objects: heat pump and gas boiler" in shown and expected[-1] in shown


def test_texts_and_topics_are_left_out_where_they_are_missing(touche: Touche, run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(
        yaml.safe_dump(config | {"index": "nowhere", "topics": "nowhere.xml"})
    )
    rows = rows_of(touche, "show", "first")
    assert {(row["title"], row["text"]) for row in rows} == {(None, None)}
    assert touche("show", "first", "--topic", "3").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["nowhere"], 1), (["first", "--topic", "99"], 2), (["half", "--topic", "3"], 1)],
)
def test_what_cannot_be_shown_is_one_line(
    touche: Touche, run: Path, arguments: list[str], code: int
) -> None:
    interrupt(run, "half")
    done = touche("show", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr


def interrupt(run: Path, name: str) -> None:
    """Copy a run whose last stage did not finish."""
    shutil.copytree(run, run.parent / name)
    (run.parent / name / "run.txt").unlink()
    (run.parent / name / "results.tsv").unlink()
    with (run.parent / name / "ir-metadata.yml").open("a") as stream:
        stream.write("unfinished: rank\n")


def test_all_runs_are_listed_also_unfinished_and_damaged_ones(touche: Touche, run: Path) -> None:
    interrupt(run, "half")
    (run.parent / "deep" / "er").mkdir(parents=True)
    for name in ("deep/er/damaged", "empty"):
        shutil.copytree(run, run.parent / name)
    (run.parent / "deep/er/damaged/evaluation.yaml").write_text("task: [")
    for name in ("ir-metadata.yml", "run.txt", "judgments.jsonl"):
        (run.parent / "empty" / name).unlink()
    assert touche("evaluate", "first", *GRADED).returncode == 0
    rows = {row["run"]: row for row in rows_of(touche, "runs")}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        "first": "complete",
        "half": "unfinished",
        "deep/er/damaged": "broken",
        "empty": "empty",
    }
    first = rows["first"]
    assert (first["model"], first["topics"], first["steps"]) == (
        "written-for-the-demo",
        4,
        "judge,pairwise:5",
    )
    assert (
        first["cached"] == 429
        and first["relevance nDCG@5"] is not None
        and rows["half"]["stance macro-F1"] is None
    )
    assert [row["run"] for row in rows_of(touche, "runs", "deep")] == ["er/damaged"]
    shown = touche("runs").stdout
    assert "damaged" in shown and "unfinished" in shown
    assert rows_of(touche, "show", "half") == [] and "unfinished" in touche("show", "half").stdout
    assert rows_of(touche, "runs", "first/index") == []
    assert touche("runs", "nowhere").returncode == 1


def test_deeply_nested_metadata_are_a_damaged_run(touche: Touche, run: Path) -> None:
    (run / "ir-metadata.yml").write_text(f"stages: {'[' * 30_000}")
    (row,) = rows_of(touche, "runs")
    assert row["state"] == "broken" and "ir-metadata.yml" in row["problem"]
    done = touche("show", "first")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "ir-metadata.yml" in done.stderr


def test_runs_have_the_measures_of_their_last_evaluation(touche: Touche, run: Path) -> None:
    # A head, a line and the run; nothing explains measures.
    assert len(touche("runs").stdout.splitlines()) == 3
    # One of three documents is unjudged.
    lines = (run.parent / "quality").read_text().splitlines(keepends=True)
    (run.parent / "quality").write_text("".join(lines[::2]))
    found = {
        row["measure"]: row
        for row in rows_of(touche, "evaluate", "first", *GRADED)
        if row["run"] == "first"
    }
    (row,) = rows_of(touche, "runs")
    for name in ("relevance nDCG@5", "quality nDCG@5"):
        assert [row[name], row[f"{name} judged"]] == pytest.approx(
            [found[name]["value"], found[name]["judged"]], abs=1e-6
        )
        assert row[name] != row[f"{name} judged"]


def test_a_run_and_a_trial_name_stances_unlike_the_answers_as_written(
    touche: Touche, run: Path
) -> None:
    made = touche("run", *REPLAY, *DATA, "--out", "again")
    (line,) = (line for line in made.stdout.splitlines() if "answers as written" in line)
    judgments = read_records(run / "judgments.jsonl", Judgment, "judgments")
    readings = {(each.topic_id, each.document_id): each.readings["stance"] for each in judgments}
    unlike = [name for name, each in readings.items() if get_most_probable(each) != each.answered]
    assert unlike and "written: 3, " in line
    for (topic, document), stands in (
        (unlike[0], True),
        (next(iter(readings.keys() - set(unlike))), False),
    ):
        tried = touche(
            "prompts", "try", "judge", *REPLAY, *DATA, "--topic", topic, "--doc", document
        )
        assert (tried.returncode, "not" in tried.stdout and "as written" in tried.stdout) == (
            0,
            stands,
        ), tried.stderr


def test_the_search_for_runs_is_bounded(run: Path) -> None:
    for name in ("a/one", ".hidden/two", "b/c/d/e/f/g/h/deep"):
        (run.parent / name).mkdir(parents=True)
        (run.parent / name / "run.txt").touch()
    (run.parent / "recorded").mkdir()
    for name in ("recorded.json", "run.txt"):
        (run.parent / "recorded" / name).touch()
    assert find_runs(run.parent) == [run.parent / "a" / "one", run]


def test_qrels_that_were_given_once_are_used_again(touche: Touche, run: Path) -> None:
    shutil.copytree(run, run.parent / "second")
    given = rows_of(touche, "evaluate", "first", *GRADED)
    again = touche("evaluate", "first", "--format", "json")
    assert json.loads(again.stdout) == given
    assert [
        line
        for line in again.stderr.splitlines()
        if "--relevance relevance --quality quality" in line
    ]
    assert rows_of(touche, "compare", "first", "second")
    assert touche("report", "first").returncode == 0
    page = (run / "report.html").read_text()
    assert "nDCG@5" in page
    # Qrels that are given replace them.
    assert rows_of(touche, "evaluate", "first", "--quality", "quality") != given
    assert {row["measure"].split()[0] for row in rows_of(touche, "evaluate", "first")} == {
        "quality"
    }


def test_an_evaluation_while_a_command_writes_there_is_printed_and_not_kept(
    touche: Touche, run: Path
) -> None:
    assert touche("evaluate", "first", "--relevance", "relevance").returncode == 0
    before = (run / "evaluation.yaml").read_bytes()
    with RunDirectory(run).lock("judge", print):
        done = touche("evaluate", "first", *GRADED, "--format", "json")
    assert done.returncode == 0 and len(json.loads(done.stdout)) > 0
    assert [line for line in done.stderr.splitlines() if f"judge, process {os.getpid()} " in line]
    assert (run / "evaluation.yaml").read_bytes() == before
    assert touche("evaluate", "first", *GRADED).returncode == 0
    assert (run / "evaluation.yaml").read_bytes() != before


@pytest.mark.parametrize("change", ["3 0 x 1\n", None])
def test_qrels_that_changed_or_are_gone_are_named(
    touche: Touche, run: Path, change: str | None
) -> None:
    assert touche("evaluate", "first", *GRADED).returncode == 0
    (run.parent / "quality").unlink()
    if change is not None:
        (run.parent / "quality").write_text(change)
    for command in ("evaluate", "report"):
        done = touche(command, "first")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "--quality" in done.stderr


def test_measures_of_an_earlier_run_file_are_outdated_but_its_qrels_are_kept(
    touche: Touche, run: Path
) -> None:
    assert touche("evaluate", "first", *GRADED).returncode == 0
    assert touche("rank", "--out", "first", "--rank", "judge").returncode == 0
    (row,) = rows_of(touche, "runs", "first")
    assert (row["state"], row["relevance nDCG@5"]) == ("complete", None)
    assert rows_of(touche, "evaluate", "first")
    (row,) = rows_of(touche, "runs", "first")
    assert row["relevance nDCG@5"] is not None


def test_a_run_is_found_with_its_answers_from_any_folder_and_after_a_move_of_its_tree(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(SAMPLE, project / "data")
    monkeypatch.chdir(project)
    inputs = (
        "--topics",
        "data/topics.xml",
        "--corpus",
        "data/passages.jsonl",
        "--cache",
        "data/cassette.jsonl",
    )
    made = touche("run", *REPLAY[:2], *inputs, "--cache-mode", "replay", "--out", "runs/first")
    assert made.returncode == 0, made.stderr
    written = yaml.safe_load((project / "runs/first/config.yaml").read_text())
    assert (written["cache"]["file"], written["topics"]) == (
        "../../data/cassette.jsonl",
        "../../data/topics.xml",
    )
    assert str(RunDirectory(Path("runs/first")).read_config().cache.file) == "data/cassette.jsonl"
    monkeypatch.chdir(elsewhere)
    for place in (project, tmp_path / "moved"):
        if place != project:
            project.rename(place)
        found = RunDirectory(place / "runs/first").read_config()
        assert found.cache.file == place / "data/cassette.jsonl"
        reported = touche("report", str(place / "runs/first"))
        assert reported.returncode == 0 and "note: No qrels" in reported.stderr
        assert (
            "No completions" not in reported.stderr and "No document texts" not in reported.stderr
        )
        assert all(row["text"] for row in rows_of(touche, "show", str(place / "runs/first")))
    recorded = touche("regress", "record", str(tmp_path / "moved/runs/first"))
    assert recorded.returncode == 0, recorded.stderr
    assert not (elsewhere / ".touche-llm").exists()
    ranked = touche("rank", "--out", str(tmp_path / "moved/runs/first"))
    assert ranked.returncode == 0, ranked.stderr
    written = yaml.safe_load((tmp_path / "moved/runs/first/config.yaml").read_text())
    assert written["cache"]["file"] == str(tmp_path / "moved/data/cassette.jsonl")
    outside = RunDirectory(tmp_path / "moved/runs/first").read_config()
    assert outside.cache.file == tmp_path / "moved/data/cassette.jsonl"


def test_a_run_beside_files_of_no_run_says_so_once(touche: Touche, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("kept")
    notes = [
        touche("run", *REPLAY, *DATA, "--out", "notes").stderr.count("files of no run")
        for _ in range(2)
    ]
    assert notes == [1, 0] and (tmp_path / "notes" / "mine.txt").read_text() == "kept"


def test_runs_that_were_evaluated_with_different_qrels_need_them_named(
    touche: Touche, run: Path
) -> None:
    shutil.copytree(run, run.parent / "second")
    assert touche("evaluate", "first", "--relevance", "relevance").returncode == 0
    (run.parent / "relevance").write_text(
        (run.parent / "relevance").read_text().replace(" 2\n", " 1\n")
    )
    assert touche("evaluate", "second", "--relevance", "relevance").returncode == 0
    done = touche("compare", "first", "second")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
