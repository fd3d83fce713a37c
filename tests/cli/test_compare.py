"""`touche-llm compare` as a user meets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.sample_runs import choose_topics

TOPICS = 6
QRELS = ("--task", "comparative", "--relevance", "relevance")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs `best`, `mixed` and `base`: best wins each topic, mixed wins as many as it loses, and two are equal."""
    orders = {"good": ("a", "b"), "middle": ("x", "a", "b"), "bad": ("x", "y", "a")}
    chosen = {
        "best": ["good"] * TOPICS,
        "base": ["middle"] * TOPICS,
        "mixed": ["good"] * 2 + ["middle"] * 2 + ["bad"] * 2,
    }
    for run, kinds in chosen.items():
        (tmp_path / run).mkdir()
        (tmp_path / run / "run.txt").write_text(
            "".join(
                f"{topic} NO {document} {rank} {-rank} {run}\n"
                for topic, kind in enumerate(kinds)
                for rank, document in enumerate(orders[kind], start=1)
            )
        )
    (tmp_path / "relevance").write_text(
        "".join(f"{topic} 0 a 2\n{topic} 0 b 1\n" for topic in range(TOPICS))
    )
    (tmp_path / "stance").write_text("".join(f"{topic} 0 a NO\n" for topic in range(TOPICS)))
    return tmp_path


def rows_of(output: str) -> dict[tuple[str, str], dict[str, float]]:
    return {(row["run"], row["measure"]): row for row in json.loads(output)}


@pytest.mark.slow
def test_each_run_is_held_against_the_baseline(touche: Touche, runs: Path) -> None:
    arguments = ("base/run.txt", "best", "mixed", *QRELS)
    done = touche("compare", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = rows_of(done.stdout)
    assert {run for run, _ in found} == {"best", "mixed"}
    assert {row["baseline"] for row in json.loads(done.stdout)} == {"base/run.txt"}
    best, mixed = (found[run, "relevance nDCG@5"] for run in ("best", "mixed"))
    values = {
        row["run"]: row["value"]
        for row in json.loads(touche("evaluate", *arguments[:3], *QRELS, "--format", "json").stdout)
        if row["measure"] == "relevance nDCG@5"
    }
    assert best["difference"] == pytest.approx(values["best"] - values["base/run.txt"])
    assert mixed["difference"] == pytest.approx(values["mixed"] - values["base/run.txt"])
    assert [best[key] for key in ("wins", "ties", "losses", "n")] == [TOPICS, 0, 0, TOPICS]
    assert [mixed[key] for key in ("wins", "ties", "losses", "n")] == [2, 2, 2, TOPICS]
    # All 2^6 ways to change places: only none and all have as large a difference.
    assert best["p"] == pytest.approx(2 / 2**TOPICS)
    # Holm: the smaller of two is doubled.
    assert best["p_holm"] == pytest.approx(2 * best["p"])
    assert mixed["low"] <= mixed["difference"] <= mixed["high"]


def test_two_topics_have_a_p_value_without_an_interval_and_judged_documents_have_neither(
    touche: Touche, runs: Path
) -> None:
    (runs / "few").write_text("0 0 a 2\n0 0 b 1\n1 0 a 2\n")
    few = ("--task", "comparative", "--relevance", "few")
    for qrels, topics in ((QRELS, TOPICS), (few, 2)):
        done = touche("compare", "base", "best", *qrels, "--stance", "stance", "--format", "json")
        found = {measure: row for (_, measure), row in rows_of(done.stdout).items()}
        assert "relevance judged@5" not in found and found["relevance nDCG@5"]["judged"] is not None
        for measure in ("relevance nDCG@5", "relevance P@5"):
            row = found[measure]
            assert (row["n"], row["low"] is None, row["high"] is None) == (
                topics,
                topics == 2,
                topics == 2,
            )
        assert found["relevance nDCG@5"]["p"] == pytest.approx(2 / 2**topics)
        assert found["stance accuracy"]["p"] is not None
        assert done.stderr.count("no 95 % interval") == (topics == 2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["best", *QRELS], 2, "best alone cannot be compared"),
        (["best", "best/", *QRELS], 2, "given twice"),
        (["best", "mixed", "--task", "comparative"], 2, "no qrels given"),
        (["best", "nowhere", *QRELS], 1, "nowhere: cannot read the file"),
        (["best", "broken", *QRELS], 1, "broken:1: 2 columns"),
    ],
)
def test_what_cannot_be_compared_is_told(
    touche: Touche, runs: Path, arguments: list[str], code: int, message: str
) -> None:
    (runs / "broken").write_text("1 Q0\n")
    done = touche("compare", *arguments)
    assert (done.returncode, message in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert done.stdout == ""


def limit(run: Path, topics: str) -> None:
    """Leave the lines of some topics in a run, and the files that say so beside it."""
    lines = (run / "run.txt").read_text().splitlines(keepends=True)
    (run / "run.txt").write_text("".join(line for line in lines if line[0] in topics))
    settings = f"task: comparative\ntopics: t.xml\ncorpus: c.jsonl\nlimit_topics: {len(topics)}\n"
    (run / "config.yaml").write_text(settings)
    choose_topics(run, topics)


def test_a_run_that_its_configuration_limits_is_compared_over_the_topics_that_all_runs_have(
    touche: Touche, runs: Path
) -> None:
    limit(runs / "base", "0123")
    arguments = ("compare", "base", "best", "mixed", *QRELS)
    done = touche(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    row = rows_of(done.stdout)["mixed", "relevance nDCG@5"]
    # Without the limit the two last topics, which the baseline lacks, would be won.
    assert [row[key] for key in ("wins", "ties", "losses", "n")] == [2, 2, 0, 4]
    assert f"4 of {TOPICS} judged topics\n" in touche(*arguments).stdout
    # The topics that were left out are judged.
    assert "but not judged" not in done.stderr


def test_a_chosen_topic_that_a_run_lost_counts_0_in_a_comparison(
    touche: Touche, runs: Path
) -> None:
    shutil.copytree(runs / "best", runs / "lossy")
    limit(runs / "best", "01")
    limit(runs / "lossy", "0")
    choose_topics(runs / "lossy", "01")
    limit(runs / "base", "45")
    done = touche("compare", "base", "lossy", *QRELS)
    assert (done.returncode, done.stdout) == (
        1,
        "",
    ) and "is in the relevance qrels" in done.stderr
    done = touche("compare", "best", "lossy", *QRELS, "--format", "json")
    row = rows_of(done.stdout)["lossy", "relevance nDCG@5"]
    assert [row[key] for key in ("value", "baseline_value", "difference", "n")] == [
        0.5,
        1.0,
        -0.5,
        2,
    ]
    assert "lossy: relevance: topics judged, but not in the run, so they count 0: 1" in done.stderr


def test_a_topic_that_a_run_lacks_for_another_reason_counts_0_and_the_table_says_so(
    touche: Touche, runs: Path
) -> None:
    lines = (runs / "best" / "run.txt").read_text().splitlines(keepends=True)
    (runs / "best" / "run.txt").write_text("".join(line for line in lines if line[0] in "01"))
    arguments = ("compare", "base", "best", *QRELS)
    row = rows_of(touche(*arguments, "--format", "json").stdout)["best", "relevance nDCG@5"]
    assert (row["n"], row["losses"]) == (TOPICS, TOPICS - 2)
    shown = touche(*arguments).stdout
    assert f"best: {TOPICS} of {TOPICS} judged topics; not in the run: 2, 3, 4, 5" in shown
    assert f"base: {TOPICS} of {TOPICS} judged topics\n" in shown
