"""Reasoning on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

import touche_llm
from tests.cli.conftest import Touche
from tests.fake_server import FakeServer, good, reply, says
from tests.llm.engines.test_thinking_check import PROBE, after_a_thought
from touche_llm.config.files import load_config
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Judgment
from touche_llm.llm.answer import Answer
from touche_llm.llm.cache import Cache

SAMPLE = Path(touche_llm.__file__).parent / "samples" / "comparative"
CORPUS, TOPICS = SAMPLE / "passages.jsonl", SAMPLE / "topics.xml"
RUN = [
    "run",
    "--topics",
    str(TOPICS),
    "--corpus",
    str(CORPUS),
    "--topic",
    "3",
    "--depth",
    "3",
    "--out",
    "out",
]


def test_budgets_of_the_command_line_are_settings_and_reach_the_server(
    touche: Touche, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("sampling: {thinking: {judge: 8, compare: 9}}\n")
    with FakeServer().in_thread() as server:
        flags = ["--thinking", "judge=512,stance=0", "--base-url", server.url]
        done = touche(*RUN, "--config", "config.yaml", *flags)
        assert done.returncode == 0, done.stderr
        sent = [body for body in server.bodies if "stop" in body]
    thinking = load_config(tmp_path / "out" / "config.yaml", {}).sampling.thinking
    assert (thinking.judge, thinking.stance, thinking.compare) == (512, 0, 9)
    # One thought for each of three documents; there is nothing to compare.
    assert [body["max_tokens"] for body in sent] == [512] * 3
    counts = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]["judge"][
        "llm"
    ]["counts"]
    assert (counts["requests"], counts["thoughts"]) == (6, 3)
    assert 0 < counts["thought_tokens"] < counts["completion_tokens"]


@pytest.mark.parametrize("value", ["512", "judge=x", "judge=-1", "order=5", "judge=99999"])
def test_a_wrong_budget_is_one_line(touche: Touche, value: str) -> None:
    done = touche(*RUN, "--thinking", value)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "thinking" in done.stderr


def test_thoughts_are_shown_when_a_prompt_is_tried(touche: Touche) -> None:
    about = [
        "--topics",
        str(TOPICS),
        "--corpus",
        str(CORPUS),
        "--topic",
        "3",
        "--doc",
        "sample-heating-01___3",
    ]
    tried = ["prompts", "try", "judge", *about, "--thinking", "judge=64"]
    thought = says("<think>Boilers.", finish_reason="length")

    async def think(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (thought(request, body) if "stop" in body else good(request, body))

    with FakeServer(rest=think).in_thread() as server:
        shown = touche(*tried, "--base-url", server.url)
        rows = touche(*tried, "--base-url", server.url, "--format", "json")
    assert (shown.returncode, rows.returncode) == (0, 0), shown.stderr
    assert "thought: Boilers." in [line.strip() for line in shown.stdout.splitlines()]
    assert {row["thought"] for row in json.loads(rows.stdout)} == {"Boilers."}


@pytest.fixture
def reasoned(touche: Touche) -> Path:
    """A run whose thoughts a terminal should not get as they are, and one without any beside it."""
    hostile = "\x1b[31m\u202e[bold]Boilers[/bold] <i> " + 70 * "長い考え" + " " + 3000 * "x"

    async def think(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (says(hostile)(request, body) if "stop" in body else good(request, body))

    with FakeServer(rest=think).in_thread() as server:
        flags = [
            "--thinking",
            "judge=2048,stance=64",
            "--stance-prompt",
            "own",
            "--base-url",
            server.url,
        ]
        flags += ["--stance-depth", "20"]
        for arguments in ([*RUN, *flags], [*RUN[:-1], "plain", "--base-url", server.url]):
            assert touche(*arguments).returncode == 0
    return Path("out")


@pytest.mark.usefixtures("reasoned")
def test_thoughts_are_shown_in_a_report(touche: Touche) -> None:
    # It has the beginning of each; a run without thoughts stores none.
    assert touche("report", "out").returncode == 0
    page = Path("out/report.html").read_text()
    assert page.count("[bold]Boilers[/bold]") == 6 and "<i>" not in page and "x" * 2001 not in page
    assert "&lt;i&gt;" in page and "thoughts" not in Path("plain/judgments.jsonl").read_text()


def stored_answers() -> list[Answer]:
    file = Path(".touche-llm/answers.sqlite")
    if not file.exists():
        return []
    with Cache(file) as cache:
        return [cache.read(entry, Answer) for entry in cache.find("answer")]


def test_a_server_that_loses_the_answer_is_one_line(touche: Touche) -> None:
    flags = ["--thinking", "judge=64"]
    with FakeServer(probe=after_a_thought("", reasoning=PROBE)).in_thread() as server:
        done = touche(*RUN, *flags, "--base-url", server.url)
        card = touche("doctor", server.url, *flags, "--format", "json")
    task, error = done.stderr.splitlines()
    assert done.returncode == 1 and task.startswith("task: ") and "--reasoning-parser" in error
    # No answer was taken from free text or from the reasoning, not even to be stored.
    assert not Path("out/judgments.jsonl").exists() and stored_answers() == []
    assert "--reasoning-parser" in str(
        [row["remedy"] for row in json.loads(card.stdout) if row["is_ok"] is False]
    )


def test_an_answer_in_the_reasoning_later_on_is_a_failure(touche: Touche) -> None:
    async def lose(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return reply("Hm.") if "stop" in body else reply(None, reasoning="[3,3]")

    with FakeServer(rest=lose).in_thread() as server:
        touche(*RUN, "--thinking", "judge=64", "--base-url", server.url)
    failures = read_records(Path("out/failures.jsonl"), Failure, "failures")
    assert [failure.kind for failure in failures] == ["not_json"] * 3
    assert read_records(Path("out/judgments.jsonl"), Judgment, "judgments") == []
    assert [answer.text for answer in stored_answers()] == ["Hm."] * 3
