"""One judge request for each field of the answer, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

import touche_llm
from tests.cli.conftest import Touche
from tests.fake_server import FakeServer
from touche_llm.cli.demo import SAMPLES
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment
from touche_llm.integrations.tira import detect_input

SAMPLE = Path(touche_llm.__file__).parent / "samples" / "comparative"
ABOUT = [
    "--topics",
    str(SAMPLE / "topics.xml"),
    "--corpus",
    str(SAMPLE / "passages.jsonl"),
    "--topic",
    "3",
]
RUN = ["run", *ABOUT, "--depth", "3", "--out", "out"]
EACH = ["--judge-per", "field"]


def test_a_run_sends_what_the_dry_run_says_and_its_pages_show_all_answers(
    touche: Touche, tmp_path: Path
) -> None:
    costs = json.loads(touche(*RUN, *EACH, "--dry-run", "--format", "json").stdout)
    assert [(row["prompt"], row["requests"]) for row in costs] == [("comparative/judge", 9)]
    with FakeServer().in_thread() as server:
        done = touche(*RUN, *EACH, "--base-url", server.url)
        assert done.returncode == 0, done.stderr
        other = touche(*RUN, "--base-url", server.url)
    assert other.returncode == 2 and "--overwrite" in other.stderr
    judgments = read_records(tmp_path / "out/judgments.jsonl", Judgment, "judgments")
    assert [len(judgment.answer_keys) for judgment in judgments] == [3, 3, 3]
    metadata = yaml.safe_load((tmp_path / "out/ir-metadata.yml").read_text())["stages"]["judge"]
    assert (metadata["llm"]["counts"]["requests"], metadata["judgments"]) == (9, 3)
    assert touche("show", "out", "--topic", "3").returncode == 0
    assert touche("report", "out").returncode == 0
    page = (tmp_path / "out/report.html").read_text()
    whole, *fields = metadata["llm"]["prompts"]["judge"].split(":")
    assert fields == ["relevance", "quality", "stance"]
    assert f"{whole}:{':'.join(fields)}" in page
    replayed = touche(
        "run", "--config", "out/config.yaml", "--cache-mode", "replay", "--out", "again"
    )
    assert replayed.returncode == 0, replayed.stderr
    assert (tmp_path / "again/run.txt").read_bytes() == (tmp_path / "out/run.txt").read_bytes()


def test_a_prompt_is_tried_and_rendered_as_a_run_sends_it(touche: Touche) -> None:
    tried = [*ABOUT, *EACH, "--doc", "sample-heating-01___3", "--format", "json"]
    with FakeServer().in_thread() as server:
        done = touche("prompts", "try", "judge", *tried, "--base-url", server.url)
        assert (done.returncode, len(server.bodies)) == (0, 3), done.stderr
    assert [row["field"] for row in json.loads(done.stdout)] == ["relevance", "quality", "stance"]
    shown = json.loads(touche("prompts", "render", "judge", *tried).stdout)
    assert sum(row["role"] == "system" and "quality:" in row["text"] for row in shown) == 1


def test_a_task_with_one_field_names_the_option(touche: Touche) -> None:
    corpus = detect_input(SAMPLES / "sentence_pairs").corpus
    given = [
        "run",
        "--task",
        "arguments_2020",
        *ABOUT[:2],
        "--corpus",
        str(corpus),
        "--out",
        "out",
        *EACH,
    ]
    done = touche(*given)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 2)
    assert "--judge-per document" in done.stderr
