"""`touche-llm evaluate` as a user meets it."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import touche_llm
from tests.cli.conftest import Touche
from tests.sample_runs import choose_topics
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.tasks import get_task
from touche_llm.tasks.published import read_tables

TASK = ("--task", "comparative")
GRADED = (*TASK, "--relevance", "relevance", "--quality", "quality")
ALL = (*GRADED, "--stance", "stance")

# a is best and c worst. Topic 2 has an unjudged document first, topic 4 is judged and in no run.
RELEVANCE = "1 0 a 2\n1 0 b 1\n1 0 c 0\n2 0 a 1\n2 0 b 0\n4 0 a 1\n"
QUALITY = "1 0 a 0\n1 0 b 2\n1 0 c 1\n2 0 a 2\n4 0 a 1\n"
STANCES = "1 0 a FIRST\n1 0 b SECOND\n1 0 c NO\n2 0 a FIRST\n2 0 b NO\n4 0 a NO\n"
GOOD = "1 FIRST a 1 3 t\n1 SECOND b 2 2 t\n1 NO c 3 1 t\n2 NO x 1 2 t\n2 SECOND a 2 1 t\n3 NO a 1 1 t\n"
POOR = "1 Q0 c 1 3 t\n1 Q0 b 2 2 t\n1 Q0 a 3 1 t\n2 Q0 x 1 3 t\n2 Q0 y 2 2 t\n2 Q0 a 3 1 t\n3 Q0 a 1 1 t\n"


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A folder with qrels, and in it the run folder `mine` and the run file `other`."""
    (tmp_path / "mine").mkdir()
    files = {"relevance": RELEVANCE, "quality": QUALITY, "stance": STANCES, "other": POOR}
    for name, text in (files | {"mine/run.txt": GOOD, "mine/candidates.run.txt": POOR}).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def rows_of(output: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["run"], row["measure"]): row for row in json.loads(output)}


def test_json_has_one_object_for_each_run_and_measure(touche: Touche, judged: Path) -> None:
    done = touche("evaluate", "mine", "other", *ALL, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = rows_of(done.stdout)
    assert len(found) == len(json.loads(done.stdout))
    columns = [
        "run",
        "measure",
        "value",
        "low",
        "high",
        "n",
        "topics",
        "missing",
        "judged_topics",
        "judged",
    ]
    assert {tuple(row) for row in json.loads(done.stdout)} == {tuple(columns)}
    # Their order is that of a run without a first stage.
    alone = json.loads(touche("evaluate", "other", *ALL, "--format", "json").stdout)
    assert list(dict.fromkeys(measure for _, measure in found)) == [row["measure"] for row in alone]
    # A first stage labels nothing.
    assert {run for run, measure in found if measure == "stance accuracy"} == {"mine", "other"}
    assert {run for run, measure in found if measure == "quality P@5"} == {
        "mine (first stage)",
        "mine",
        "other",
    }
    # a and b in topic 1, a in topic 2, nothing in topic 4.
    assert found["mine", "relevance P@5"]["value"] == pytest.approx((2 + 1 + 0) / 5 / 3)
    assert found["mine", "stance accuracy"] == found["mine", "stance accuracy"] | {
        "value": 0.75,
        "n": 4,
    }
    assert found["other", "stance accuracy"] == found["other", "stance accuracy"] | {
        "value": None,
        "low": None,
        "n": 0,
    }


def test_the_first_stage_stands_before_the_run_of_its_folder(touche: Touche, judged: Path) -> None:
    found = rows_of(touche("evaluate", "mine", "other", *GRADED, "--format", "json").stdout)
    first, mine, other = (
        found[run, "relevance nDCG@5"] for run in ("mine (first stage)", "mine", "other")
    )
    assert {**first, "run": ""} == {**other, "run": ""}
    assert first["value"] < mine["value"]
    runs = list(dict.fromkeys(run for run, _ in found))
    assert runs == ["mine (first stage)", "mine", "other"]
    # The recall of all runs is at one depth, the longest.
    assert {measure for _, measure in found if "R@" in measure} == {"relevance R@3", "quality R@3"}
    (judged / "mine" / "candidates.run.txt").unlink()
    done = touche("evaluate", "mine", *GRADED, "--format", "json")
    assert {run for run, _ in rows_of(done.stdout)} == {"mine"}


def test_a_file_named_after_another_aspect_is_refused_and_nothing_is_recorded(
    touche: Touche, judged: Path
) -> None:
    (judged / "qrels-quality.txt").write_text(QUALITY)
    done = touche("evaluate", "mine", *TASK, "--relevance", "qrels-quality.txt")
    assert (done.returncode, (judged / "mine" / "evaluation.yaml").exists()) == (2, False)
    assert "qrels-quality.txt" in done.stderr


def test_the_run_file_of_a_folder_has_its_first_stage_too(touche: Touche, judged: Path) -> None:
    (judged / "mine" / "config.yaml").write_text(
        "task: comparative\ntopics: t.xml\ncorpus: c.jsonl\n"
    )
    by_folder, by_file = (
        touche("evaluate", name, *GRADED, "--leaderboard", "--format", "json")
        for name in ("mine", "mine/run.txt")
    )
    values = [
        [(row["measure"], row["value"]) for row in json.loads(done.stdout)]
        for done in (by_folder, by_file)
    ]
    assert values[0] == values[1]
    assert {row["run"] for row in json.loads(by_file.stdout)} == {
        "mine/run.txt (first stage)",
        "mine/run.txt",
    }


@pytest.mark.parametrize(("run", "aspect"), [("mine", "relevance"), ("other", "stance")])
def test_qrels_of_another_corpus_are_refused_and_nothing_is_recorded(
    touche: Touche, judged: Path, run: str, aspect: str
) -> None:
    (judged / "foreign").write_text(
        "1 0 z1 {0}\n2 0 z2 {0}\n".format("2" if aspect == "relevance" else "NO")
    )
    assert touche("evaluate", "mine", *ALL).returncode == 0
    before = (judged / "mine/evaluation.yaml").read_bytes()
    log = {path: path.read_bytes() for path in judged.rglob("*.jsonl")}
    foreign = (*TASK, f"--{aspect}", "foreign")
    for command in (("evaluate", run), ("compare", run, "other" if run == "mine" else "mine")):
        done = touche(*command, *foreign)
        assert (done.returncode, done.stdout) == (
            1,
            "",
        ) and f"no document of the run is in the {aspect}" in done.stderr
    with pytest.raises(touche_llm.DataError):
        touche_llm.evaluate(
            touche_llm.read_run(judged / run),
            read_qrels({aspect: judged / "foreign"}, "comparative"),
        )
    assert (judged / "mine/evaluation.yaml").read_bytes() == before
    assert {path: path.read_bytes() for path in judged.rglob("*.jsonl")} == log


@pytest.fixture
def limited(judged: Path) -> Path:
    """The run folder `few`, which has of `mine` topic 1, to which its configuration limits it."""
    (judged / "few").mkdir()
    for name, text in {"run.txt": GOOD, "candidates.run.txt": POOR}.items():
        lines = text.splitlines(keepends=True)
        (judged / "few" / name).write_text("".join(line for line in lines if line.startswith("1 ")))
    (judged / "few" / "config.yaml").write_text(
        "task: comparative\ntopics: t.xml\ncorpus: c.jsonl\ntopic: ['1']\n"
    )
    choose_topics(judged / "few", ["1"])
    return judged


def test_a_chosen_topic_that_a_run_lost_counts_0_and_is_named(
    touche: Touche, limited: Path
) -> None:
    whole = rows_of(touche("evaluate", "few", *ALL, "--format", "json").stdout)
    choose_topics(limited / "few", ["1", "2"])
    done = touche("evaluate", "few", *ALL, "--format", "json")
    found = rows_of(done.stdout)
    assert "topics judged, but not in the run, so they count 0: 2" in done.stderr
    assert (
        "stance: topics judged, but not in the run, so their documents do not count: 2"
        in done.stderr
    )
    for run in ("few", "few (first stage)"):
        for measure in (
            "relevance nDCG@5",
            "quality nDCG@5",
            "relevance P@5",
            "relevance judged@5",
        ):
            row, before = found[run, measure], whole[run, measure]
            assert row["value"] == pytest.approx(before["value"] / 2) and before["value"] > 0.0
            assert [row[key] for key in ("n", "topics", "missing", "judged_topics")] == [2, 2, 1, 3]
    stance = found["few", "stance macro-F1"]
    assert stance["value"] == whole["few", "stance macro-F1"]["value"]
    assert [stance[key] for key in ("n", "topics", "missing", "judged_topics")] == [3, 2, 1, 3]
    # An aspect whose judged topics are all lost is 0.
    (limited / "quality").write_text("2 0 a 2\n4 0 a 1\n")
    row = rows_of(touche("evaluate", "few", *GRADED, "--format", "json").stdout)[
        "few", "quality nDCG@5"
    ]
    assert [row[key] for key in ("value", "n", "missing", "judged_topics")] == [0.0, 1, 1, 2]


def test_a_run_of_some_topics_gets_no_place_on_a_leaderboard(touche: Touche, limited: Path) -> None:
    arguments = (*GRADED, "--leaderboard", "--format", "json")
    alone, both = (
        touche("evaluate", "few", *arguments),
        touche("evaluate", "few", "mine", *arguments),
    )
    assert (alone.returncode, alone.stdout) == (2, "")
    assert both.returncode == 0
    assert {run for run, _ in rows_of(both.stdout)} == {"mine", "mine (first stage)"}
    # What was chosen has to be recorded.
    metadata = (limited / "few" / "ir-metadata.yml").rename(limited / "metadata")
    refused = touche("evaluate", "few", *GRADED)
    assert (refused.returncode, refused.stdout) == (
        1,
        "",
    ) and "few/ir-metadata.yml: " in refused.stderr
    metadata.rename(limited / "few" / "ir-metadata.yml")
    # A limit that leaves all judged topics is none.
    (limited / "few" / "run.txt").write_text(GOOD + "4 NO a 1 1 t\n")
    (limited / "few" / "candidates.run.txt").unlink()
    choose_topics(limited / "few", ["1", "2", "3", "4"])
    done = touche("evaluate", "few", *arguments)
    assert done.returncode == 0 and {row["topics"] for row in json.loads(done.stdout)} == {3}


def test_per_topic_values_have_the_mean_that_the_run_has(touche: Touche, judged: Path) -> None:
    output = touche("evaluate", "mine", *ALL, "--format", "tsv", "--per-topic").stdout
    table = pd.read_csv(io.StringIO(output), sep="\t", dtype={"topic": str}).set_index(
        ["run", "topic"]
    )
    found = rows_of(touche("evaluate", "mine", *ALL, "--format", "json").stdout)
    assert list(table.loc["mine"].index) == ["1", "2", "4"]
    for (run, measure), row in found.items():
        if not measure.startswith("stance"):
            assert table.loc[run][measure].mean() == pytest.approx(row["value"])
            assert table.loc[run][measure].count() == row["n"]
    assert table.loc["mine"]["stance accuracy"].dropna().to_dict() == {"1": 1.0, "2": 0.0}


def test_five_topics_have_an_interval_and_one_note_says_what_it_is_worth(
    touche: Touche, judged: Path
) -> None:
    for topics in (4, 5):
        (judged / "some").write_text(
            "".join(f"{topic} NO a 1 2 t\n{topic} NO b 2 1 t\n" for topic in range(topics))
        )
        (judged / "grades").write_text(
            "".join(f"{topic} 0 a {topic % 3}\n{topic} 0 b 1\n" for topic in range(topics))
        )
        (judged / "sides").write_text("".join(f"{topic} 0 a NO\n" for topic in range(topics)))
        arguments = ("evaluate", "some", *TASK, "--relevance", "grades", "--stance", "sides")
        done = touche(*arguments, "--format", "json")
        assert done.stderr.count("no 95 % interval") == (topics < 5)
        assert done.stderr.count("too narrow") == (topics == 5)
        for (_, measure), row in rows_of(done.stdout).items():
            has_interval = topics == 5 and row["value"] is not None
            assert (row["low"] is not None, row["high"] is not None) == (
                has_interval,
                has_interval,
            ), measure
        row = rows_of(done.stdout)["some", "relevance nDCG@5"]
        interval = f"{row['low']:.4f} to {row['high']:.4f}" if topics == 5 else "–"
        shown = " ".join(touche(*arguments).stdout.split())
        assert f"nDCG@5 some {row['value']:.4f} {interval} {topics} " in shown


FITTED = (
    "task: comparative\ntopics: t.xml\ncorpus: c.jsonl\n"
    "stance: {thresholds: {'NO': 0.5}, calibrated_on: ['2', '3', '7'], calibrated_for: x}\n"
)


def test_thresholds_fitted_on_topics_that_a_run_is_measured_by_are_noted(
    touche: Touche, judged: Path
) -> None:
    (judged / "mine" / "config.yaml").write_text(FITTED)
    notes = [
        line
        for line in touche("compare", "other", "mine", *ALL).stderr.splitlines()
        if "fitted" in line
    ]
    # Nobody judged topic 3, and the run lacks topic 7.
    assert (
        len(notes) == 1 and notes[0].startswith("note: mine: stance: ") and notes[0].endswith(": 2")
    )
    assert "fitted" not in touche("compare", "other", "mine", *GRADED).stderr
    (judged / "mine" / "config.yaml").write_text(FITTED.replace("['2', '3', '7']", "['7']"))
    assert "fitted" not in touche("compare", "other", "mine", *ALL).stderr


def test_a_run_stands_between_its_neighbours_of_the_published_table(
    touche: Touche, judged: Path
) -> None:
    done = touche("evaluate", "mine", *ALL, "--leaderboard", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert {measure for _, measure in rows} == {
        "relevance nDCG@5",
        "quality nDCG@5",
        "stance macro-F1",
    }
    for (_, measure), row in rows.items():
        tables = read_tables(get_task("comparative"))
        published = next(table for table in tables if table.measure == measure.split()[0])
        assert row["source"] == published.url and row["published"] == len(published.runs)
        better = [run for run in published.runs if run.value > round(row["value"], 3)]
        assert row["place"] == len(better) + 1
        assert row["ahead_value"] == (better[-1].value if better else None)
        assert (row["behind_value"] is None) == (len(better) == len(published.runs))
    shown = touche("evaluate", "mine", *ALL, "--leaderboard").stdout
    assert all(row["source"] in shown for row in rows.values())


def test_a_task_without_a_table_of_the_measure_is_told(touche: Touche, judged: Path) -> None:
    (judged / "pairs").write_text("1 PRO a,b 1 1 t\n")
    (judged / "sides").write_text("1 0 a,b PRO\n")
    done = touche(
        "evaluate", "pairs", "--task", "sentence_pairs", "--stance", "sides", "--leaderboard"
    )
    assert done.returncode == 2
    assert touche("tasks", "new", "essays").returncode == 0
    done = touche("evaluate", "pairs", "--task", "essays", "--stance", "sides", "--leaderboard")
    assert done.returncode == 2 and "essays/leaderboard.yaml" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["mine", *TASK], 2, "no qrels given"),
        (
            ["mine", *TASK, "--qrels", "coherence=quality"],
            2,
            "qrels of coherence: comparative has no such aspect",
        ),
        (["mine", "./mine", *GRADED], 2, "mine: is given twice"),
        (["mine", *GRADED, "--per-topic", "--leaderboard"], 2, "give one of them"),
        (["empty", *GRADED], 1, "empty: no run.txt"),
        (["mine", "--relevance", "relevance"], 1, "mine/config.yaml: no such file"),
        (["mine", "broken", *GRADED], 1, "broken:2: 3 columns"),
        (
            ["mine", *TASK, "--relevance", "stance"],
            1,
            "stance:1: topic 1, document a: 'FIRST' is no grade",
        ),
        (
            ["mine", "foreign", *GRADED],
            1,
            "foreign: no document of the run is in the relevance qrels (the run's first: topic 9, document a",
        ),
        (["sides", *ALL], 1, "sides:1: topic 1, document a: stance 'PRO'"),
    ],
)
def test_what_cannot_be_evaluated_is_told(
    touche: Touche, judged: Path, arguments: list[str], code: int, message: str
) -> None:
    (judged / "empty").mkdir()
    (judged / "broken").write_text("1 Q0 a 1 2 t\n1 Q0 b\n")
    (judged / "foreign").write_text("9 Q0 a 1 2 t\n")
    (judged / "sides").write_text("1 PRO a 1 2 t\n")
    done = touche("evaluate", *arguments)
    assert (done.returncode, message in " ".join(done.stderr.split())) == (code, True), done.stderr
    # Where stances are not measured, the column may hold what it likes.
    assert touche("evaluate", "sides", *GRADED).returncode == 0


@pytest.mark.parametrize("what", ["", "--per-topic", "--leaderboard"])
def test_every_table_names_the_qrels_and_their_hashes(
    touche: Touche, judged: Path, what: str
) -> None:
    # The leaderboard is over all judged topics.
    (judged / "mine/run.txt").write_text(GOOD + "4 NO a 1 1 t\n")
    command = ("evaluate", "mine", *ALL, *([what] if what else []))
    hashes = {
        name: hashlib.sha256((judged / name).read_bytes()).hexdigest()
        for name in ("relevance", "stance")
    }
    table = touche(*command)
    for name, digest in hashes.items():
        assert f"qrels: {name} {name} sha256 {digest[:12]}\n" in table.stdout


def test_the_task_is_that_of_the_runs_folder_unless_it_is_given(
    touche: Touche, tmp_path: Path
) -> None:
    folder, config = tmp_path / "run", tmp_path / "run" / "config.yaml"
    folder.mkdir()
    (folder / "run.txt").write_text("1 PRO d1 1 2.0 x\n1 CON d2 2 1.0 x\n")
    config.write_text("task: controversial\ntopics: topics.xml\ncorpus: corpus.jsonl\n")
    (tmp_path / "other.txt").write_text("1 PRO d2 1 2.0 y\n1 CON d1 2 1.0 y\n")
    (tmp_path / "qrels.txt").write_text("1 0 d1 2\n1 0 d2 0\n")
    measured = touche(
        "evaluate", "run", "other.txt", "--relevance", "qrels.txt", "--format", "json"
    )
    (value,) = (
        row["value"]
        for row in json.loads(measured.stdout)
        if (row["run"], row["measure"]) == ("run", "relevance nDCG@5")
    )
    assert value == 1.0
    assert touche("validate", "run").stdout.endswith("run.txt: a valid controversial run\n")
    assert touche("validate", "run", "--task", "comparative").returncode == 1
    without = touche("evaluate", "other.txt", "--relevance", "qrels.txt")
    assert (without.returncode, "(--task NAME; " in without.stderr) == (2, True)
    config.write_text("topics: topics.xml\n")
    assert str(Path("run/config.yaml")) in touche("validate", "run").stderr
