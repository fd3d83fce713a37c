"""A task without stances: its run has `Q0` in the second column, and no command expects or shows a stance."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Touche
from tests.sample_runs import run_directly, run_lines
from tests.scripted_engine import ScriptedEngine
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.files import load_config
from touche_llm.llm.request import Request

SAMPLE = SAMPLES / "controversial"
TASK = """\
name: pages
title: Plain pages
corpus: {reader: json_lines}
aspects: {relevance: 0..2}
weights: {both: {relevance: 1.0, first_stage: 0.05}}
measures: {relevance: nDCG@5}
"""
TEMPLATE = """\
---
version: 1
purpose: Grades a page.
answer: judge
---
{% block system %}Grade the page: {"relevance": 0 to 2}{% endblock %}
{% block user %}{{ topic.title }}
{{ document }}{% endblock %}
"""
SHARES = {0: 0.2, 1: 0.5, 2: 0.3}


def script(request: Request) -> dict[str, dict[int | str, float]]:
    """The answers, different for different documents."""
    number = sum(map(ord, str(request.origin.document_id))) % 3
    return {"relevance": {(grade + number) % 3: share for grade, share in SHARES.items()}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, in a folder with its qrels."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "task.yaml").write_text(TASK)
    (folder / "judge.jinja").write_text(TEMPLATE)
    given = {"task": "pages", "topics": SAMPLE / "topics.xml", "corpus": SAMPLE / "documents.jsonl"}
    given |= {"index": tmp_path / "index", "cache.file": tmp_path / "answers.sqlite"}
    asyncio.run(run_directly(load_config(None, given), tmp_path / "out", ScriptedEngine(script)))
    lines = run_lines(tmp_path / "out" / "run.txt")
    qrels = (f"{line.topic_id} 0 {line.document_id} {line.rank % 4 - 1}\n" for line in lines)
    (tmp_path / "qrels.txt").write_text("".join(qrels))
    return tmp_path / "out"


def test_the_run_has_q0_and_the_results_have_no_stance(run: Path) -> None:
    lines = run_lines(run / "run.txt")
    assert lines and {line.stance for line in lines} == {"Q0"}
    with (run / "results.tsv").open() as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    assert list(rows[0]) == ["topic", "document", "rank", "score", "relevance"] and len(
        rows
    ) == len(lines)
    judgments = [json.loads(line) for line in (run / "judgments.jsonl").read_text().splitlines()]
    assert {judgment["stance"] for judgment in judgments} == {"Q0"}
    assert all(list(judgment["readings"]) == ["relevance"] for judgment in judgments)


def test_neither_tables_nor_pages_show_stances(touche: Touche, run: Path) -> None:
    (run.parent / "other.txt").write_text(
        "".join(
            f"{line.topic_id} Q0 {line.document_id} {line.rank} {-line.rank} other\n"
            for line in run_lines(run / "candidates.run.txt")
        )
    )
    measured = ("--relevance", "qrels.txt", "--task", "pages")
    for command in (
        ["rank", "--out", "out"],
        ["show", "out"],
        ["show", "out", "--topic", "2"],
        ["report", "out", "--relevance", "qrels.txt", "-o", "report.html"],
        ["compare", "other.txt", "out", *measured, "--html", "compare.html"],
        ["validate", "out"],
        ["evaluate", "out", "--relevance", "qrels.txt"],
        ["fuse", "out", "other.txt", "--task", "pages", "--out", "fused.txt"],
        ["regress", "record", "out", "one"],
        ["regress", "check"],
    ):
        done = touche(*command)
        assert done.returncode == 0, (command, done.stderr)
        # The legend of a comparison names stances.
        assert command[0] == "compare" or "stance" not in (done.stdout + done.stderr).lower(), (
            command
        )
    for page in (run.parent / "report.html", run.parent / "compare.html"):
        body = page.read_text().partition("<body")[2].partition("<script")[0]
        assert not any(
            part in body for part in ("#stances", 'id="stance"', "data-stance", "no stance")
        ), page


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["calibrate", "out", "--stance", "qrels.txt", "--out", "t.yaml"], "no stances"),
        (
            ["rank", "--out", "out", "--rank", "judge", "--rank", "balance:5"],
            "--rank: the task has no stances",
        ),
        (
            [
                "run",
                "--set",
                "stance.depth=5",
                "--task",
                "pages",
                "--topics",
                "t",
                "--corpus",
                "c",
                "--out",
                "new",
            ],
            "stance: pages has no stances",
        ),
        (["evaluate", "out", "--stance", "qrels.txt"], "has no such aspect"),
        (["validate", "labelled.txt", "--task", "pages"], "'PRO' is none of Q0"),
        (["evaluate", "labelled.txt", "--relevance", "qrels.txt", "--task", "pages"], ""),
    ],
)
def test_a_stance_is_refused(touche: Touche, run: Path, command: list[str], problem: str) -> None:
    text = (run / "run.txt").read_text()
    (run.parent / "labelled.txt").write_text(text.replace(" Q0 ", " PRO ", 1))
    done = touche(*command)
    assert (done.returncode != 0) is bool(problem) and problem in done.stdout + done.stderr
