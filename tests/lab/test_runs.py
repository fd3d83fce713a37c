from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import orjson
import pytest

from tests.lab.labs import LabClient, open_lab
from touche_llm.data.measure import Measure
from touche_llm.data.runs.reading import read_run
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.lab.security import TOKEN_HEADER
from touche_llm.prompt_lab.holdout import access_log, read_accesses
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.overview import record_evaluation
from touche_llm.tasks import get_task


async def next_rows(lab: LabClient, number: int) -> list[dict[str, Any]]:
    """The next rows that the lab sends by itself."""
    rows: list[dict[str, Any]] = []
    url = f"http://127.0.0.1:{lab.address.port}/api/events"
    async with asyncio.timeout(20), lab.session.get(url, headers=lab.headers) as response:
        async for line in response.content:
            # The first line only says that the page is connected.
            if run := orjson.loads(line):
                rows.append(await lab.post("/api/run", run=run))
                if len(rows) == number:
                    break
    return rows


async def test_runs_are_measured_over_the_topics_to_choose_on(
    folder: Path, qrels: dict[str, Path]
) -> None:
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        (row,) = (await lab.get("/api/runs"))["rows"]
        assert (row["run"], row["state"], row["model"], row["requests"]) == (
            "first",
            "complete",
            "fake",
            96,
        )
        assert row["pending"] and row["measures"] == {}
        row = await lab.post("/api/run", run="first")
        chosen = read_qrels(qrels, "comparative").restrict_to(
            {str(topic) for topic in range(1, 17, 2)}
        )
        measured = evaluate_run(
            "run", read_run(folder / "runs" / "first" / "run.txt"), chosen
        ).estimates
        assert set(row["measures"]) == {"relevance nDCG@5", "quality nDCG@5", "stance macro-F1"}
        assert row["measures"]["relevance nDCG@5"]["n"] == 8
        assert all(
            row["measures"][name]["value"] == measured[Measure.parse(name)].value
            for name in row["measures"]
        )
    assert read_accesses(access_log(folder / "answers.sqlite")) == []


async def test_measures_over_all_topics_are_by_the_qrels_of_the_evaluation_and_logged(
    folder: Path, qrels: dict[str, Path]
) -> None:
    directory, task = RunDirectory(folder / "runs" / "first"), get_task("comparative")
    evaluation = evaluate_run("run", directory.read_run(task.stances), read_qrels(qrels, task))
    record_evaluation(directory, task, qrels, evaluation)
    async with open_lab(folder / "runs") as lab:
        assert (await lab.get("/api/runs", all=1))["rows"][0]["measures"] == {}
        assert (await lab.post("/api/run", run="first", all=True))["measures"]["relevance nDCG@5"][
            "n"
        ] == 16
        (access,) = read_accesses(access_log(folder / "answers.sqlite"))
        assert access.kind == "evaluation" and len(access.topics) == 16


async def test_a_run_that_changes_or_comes_is_sent(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        waiting = asyncio.create_task(next_rows(lab, 1))
        await asyncio.sleep(0.5)
        shutil.copytree(folder / "runs" / "first", folder / "other")
        (folder / "other" / "config.yaml").unlink()
        (folder / "other").rename(folder / "runs" / "second")
        rows = {(row["run"], row["state"]) for row in await waiting}
        assert rows == {("second", "broken")}


async def test_a_run_itself_is_a_root_and_a_broken_run_is_a_row_and_an_error_elsewhere(
    folder: Path,
) -> None:
    async with open_lab(folder / "runs" / "first") as lab:
        assert (await lab.get("/api/state"))["default_run"] == "."
        assert len((await lab.get("/api/topics", run="."))["topics"]) == 16
    (folder / "runs" / "first" / "config.yaml").write_text("task: [")
    async with open_lab(folder / "runs") as lab:
        (row,) = (await lab.get("/api/runs"))["rows"]
        assert row["state"] == "broken" and "config.yaml" in row["problem"]
        assert (await lab.get("/api/state"))["default_run"] is None
        assert (await lab.send("GET", "/api/topics", run="first"))[0] == 400


async def test_deeply_nested_metadata_of_a_run_do_not_end_the_lab(folder: Path) -> None:
    (folder / "runs" / "first" / "ir-metadata.yml").write_text("[" * 30_000)
    async with open_lab(folder / "runs") as lab:
        (row,) = (await lab.get("/api/runs"))["rows"]
        assert row["state"] == "broken" and "ir-metadata.yml" in row["problem"]


async def test_the_comparison_of_runs_has_no_judgments_of_held_out_topics(
    folder: Path, qrels: dict[str, Path]
) -> None:
    shutil.copytree(folder / "runs" / "first", folder / "runs" / "second")
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        page = await lab.post("/api/compare", run=["first", "second"])
        assert "8 of 16 judged topics" in page and "16 of 16" not in page
        for access in read_accesses(access_log(folder / "answers.sqlite")):
            assert len(access.topics) == 8


async def test_a_comparison_of_too_few_or_unreadable_runs_names_the_cause(
    folder: Path, qrels: dict[str, Path]
) -> None:
    shutil.copytree(folder / "runs" / "first", folder / "runs" / "broken")
    (folder / "runs" / "broken" / "config.yaml").write_text("task: [")
    async with open_lab(folder / "runs", qrels=qrels) as lab:
        for runs in ([], ["first"], ["first", "first"]):
            status, answer = await lab.send("POST", "/api/compare", {"run": runs})
            assert (
                status == 400 and "2 or more" in answer["error"] and "config" not in answer["error"]
            )
        status, answer = await lab.send("POST", "/api/compare", {"run": ["broken", "first"]})
        assert status == 400 and "config.yaml" in answer["error"] and "2 or" not in answer["error"]


# Computes for hours within the limits of the sandbox.
_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.slow
def test_two_ctrl_c_end_the_lab_while_a_template_loops(folder: Path) -> None:
    command = [sys.executable, "-m", "touche_llm", "lab", "runs"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        address, _, token = url.partition("/#token=")
        headers = {"Origin": address, TOKEN_HEADER: token}
        query = urlencode({"run": "first", "name": "judge"})
        with urlopen(Request(f"{address}/api/template?{query}", headers=headers)) as response:
            template = orjson.loads(response.read())["text"]
        draft = template.replace("{% block system %}", "{% block system %}" + _LOOP)
        body = {"run": "first", "name": "judge", "text": draft, "topic": "1", "document": "1-0"}
        rendering = Request(f"{address}/api/render", orjson.dumps(body), headers, method="POST")
        with pytest.raises(TimeoutError):
            urlopen(rendering, timeout=1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) in (130, -signal.SIGINT)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_the_command_prints_the_address_and_what_it_reads_and_writes(folder: Path) -> None:
    command = [sys.executable, "-m", "touche_llm", "lab", "runs"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(6)]
        url = lines[0]
        assert url.startswith("http://127.0.0.1:") and "/#token=" in url
        paths = "\n".join(lines[1:])
        assert all(
            name in paths
            for name in (
                "runs",
                "answers.sqlite",
                "hold_out_accesses.jsonl",
                "lab-prompts",
                "drafts",
            )
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url) as response:
            assert response.status == 200 and b"touche-llm lab" in response.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        assert process.stderr.read().endswith("Ctrl-C ends it\ninterrupted\n")
