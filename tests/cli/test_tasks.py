"""Commands about tasks, and a task that was changed by hand, from its first run to its replay."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import touche_llm as tl
from tests.changed_example import FIVE, INPUTS, LABELS, TWO_SCALES, change_example, write_qrels
from tests.cli.conftest import Touche
from tests.expect import raises_at
from tests.sample_runs import judge_stage, rank_stage, retrieve_stage
from tests.scripted_engine import Label, ScriptedEngine
from tests.write_demo_cassette import FACTS
from touche_llm.api.progress import SilentProgress
from touche_llm.cli.tasks import EXAMPLE_FILES
from touche_llm.config.files import load_config
from touche_llm.data.files import read_records, write_records
from touche_llm.data.records import Judgment, Reading
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request
from touche_llm.llm.settings import SamplingConfig
from touche_llm.tasks import TASKS, get_task


def test_the_commands_that_a_new_task_prints_run_at_once(touche: Touche) -> None:
    done = touche("tasks", "new", "school essays/Über 2")
    assert done.returncode == 0, done.stderr
    folder = Path("school essays/Über 2")
    assert {path.name for path in folder.iterdir()} == set(EXAMPLE_FILES)
    assert get_task(str(folder)).name == "ber_2"
    printed = done.stdout.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line)[1:] for line in printed if line.startswith("    ")]
    assert [command[0] for command in commands] == ["run", "evaluate", "tasks", "prompts"]
    rows = json.loads(touche("tasks", "new", "essays", "--format", "json").stdout)
    assert rows == [{"task": "essays", "file": f"essays/{file}"} for file in EXAMPLE_FILES]
    for command in commands:
        done = touche(*command)
        assert done.returncode == 0, (command, done.stderr)
    assert len(Path("runs/ber_2/run.txt").read_text().splitlines()) == 6


def test_a_new_task_replaces_nothing(touche: Touche) -> None:
    Path("empty").mkdir()
    assert touche("tasks", "new", "empty").returncode == 0
    Path("file").write_text("mine")
    for place in ("empty", "file"):
        before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
        done = touche("tasks", "new", place)
        assert done.returncode == 2 and done.stderr.startswith(f"error: {place}: ")
        assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_new_task_that_was_not_completed_leaves_no_folder(
    touche: Touche, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def fill_disk(path: Path, content: bytes) -> int:
        if path.name == EXAMPLE_FILES[-2]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill_disk)
        done = touche("tasks", "new", "essays")
    assert done.returncode == 1 and done.stderr.startswith("error: essays: ")
    assert list(Path().iterdir()) == []
    assert touche("tasks", "new", "essays").returncode == 0
    assert {path.name for path in Path("essays").iterdir()} == set(EXAMPLE_FILES)


def test_the_current_folder_is_not_replaced_by_a_new_task(touche: Touche) -> None:
    done = touche("tasks", "new", ".")
    assert done.returncode == 2 and list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "name"), [("comparative", "my_comparative"), ("2026", "task_2026")]
)
def test_a_new_task_has_a_name_of_its_own(folder: str, name: str, touche: Touche) -> None:
    done = touche("tasks", "new", folder)
    assert done.returncode == 0
    (reference,) = re.findall(r"tasks show (\S+)", done.stdout)
    assert get_task(shlex.split(reference)[0]).name == name


def test_tasks_are_listed_and_shown(touche: Touche) -> None:
    rows = json.loads(touche("tasks", "list", "--format", "json").stdout)
    assert [row["task"] for row in rows] == list(TASKS)
    for name, task in TASKS.items():
        shown = touche("tasks", "show", name)
        assert shown.returncode == 0 and task.title in shown.stdout
        assert " ".join(task.stances) in shown.stdout
    (row,) = json.loads(touche("tasks", "show", "comparative", "--format", "json").stdout)
    assert row in rows and re.findall(r"(\w+):", row["weights"]) == ["relevance", "quality", "both"]
    done = touche("tasks", "show", "nothing")
    assert done.returncode == 2 and "passages, sentence_pairs" in done.stderr


def script(request: Request) -> Mapping[str, Label | Mapping[Label, float]]:
    """Answer by the number of the document, with shares for two grades and labels next to each other."""
    number = int((request.origin.document_id or "0")[-1])
    answer: dict[str, Label | Mapping[Label, float]] = {}
    for field, values in list_fields(request.schema).items():
        labels = values["enum"]
        place = number % len(labels)
        answer[field] = {labels[place]: 0.75, labels[place - 1]: 0.25}
    return answer


async def answer_run(task: str, cassette: Path, out: Path) -> None:
    """Answer the requests of a run with the script, and store them as a cassette."""
    flags = {
        "task": task,
        "topics": "essays/topics.xml",
        "corpus": "essays/opinions.jsonl",
        "index": out / "index",
    }
    flags |= {
        "cache.file": out / "answers.sqlite",
        "cache.mode": CacheMode.REUSE,
        "retriever.method": "lucene",
    }
    config, progress = load_config(None, flags), SilentProgress()
    await retrieve_stage(config, out, progress)
    with Cache(config.cache.file) as cache:
        store_engine_info(FACTS, cache)
        model = ModelClient(
            engine_info=FACTS, engine=ScriptedEngine(script), cache=cache, sampling=SamplingConfig()
        )
        await judge_stage(config, out, progress, model)
        await rank_stage(config, out, progress, model)
        cache.export_cassette(cassette)


def test_a_task_of_five_labels_and_two_scales_is_run_measured_recorded_and_replayed(
    touche: Touche, tmp_path: Path
) -> None:
    change_example(touche, FIVE, TWO_SCALES)
    asyncio.run(answer_run("essays", tmp_path / "answers.jsonl", tmp_path / "first"))
    replay = ("--cache", "answers.jsonl", "--cache-mode", "replay", "--bm25-method", "lucene")
    done = touche("run", "--task", "essays", *INPUTS, *replay, "--out", "runs/mine")
    assert done.returncode == 0, done.stderr
    run = Path("runs/mine/run.txt").read_bytes()
    assert run == Path("first/run.txt").read_bytes()
    found = tl.read_run("runs/mine/run.txt")
    assert set(found.stances.values()) == set(LABELS)
    # Document 2 has relevance 2 or 1 and depth 2 or 1; document 4 has relevance 1 or 0 and depth 4
    # or 3.
    rows = Path("runs/mine/results.tsv").read_text().splitlines()
    columns = rows[0].split("\t")
    grades = {row.split("\t")[1]: row.split("\t") for row in rows[1:]}
    assert columns[6:8] == ["relevance", "depth"] and columns[8:] == [
        f"p_{label}" for label in LABELS
    ]
    assert [float(value) for value in grades["opinion-2"][6:8]] == [1.75, 1.75]
    assert [float(value) for value in grades["opinion-4"][6:8]] == [0.75, 3.75]

    qrels = write_qrels()
    for command in (
        (
            "validate",
            "runs/mine",
            "--topics",
            "essays/topics.xml",
            "--corpus",
            "essays/opinions.jsonl",
        ),
        ("evaluate", "runs/mine", *qrels),
        ("show", "runs/mine"),
        ("show", "runs/mine", "--topic", "1"),
        ("report", "runs/mine", *qrels),
        ("rank", "--out", "runs/mine", "--objective", "relevance"),
        ("rank", "--out", "runs/mine", "--objective", "both"),
        ("calibrate", "runs/mine", "--stance", "stance.txt", "--out", "thresholds.yaml"),
        ("compare", "runs/mine", "first/run.txt", *qrels, "--html", "both.html"),
        ("regress", "record", "runs/mine", "one"),
        ("regress", "check"),
        ("prompts", "check", "--task", "essays"),
    ):
        done = touche(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert Path("runs/mine/run.txt").read_bytes() == Path("regress/one/run.txt").read_bytes() == run
    (row,) = json.loads(touche("runs", "runs", "--format", "json").stdout)
    assert row["depth nDCG@5"] is not None and row["quality nDCG@5"] is None
    assert "depth" in touche("runs", "runs").stdout
    rows = json.loads(touche("evaluate", "runs/mine", *qrels, "--format", "json").stdout)
    assert {"depth nDCG@5", "stance macro-F1"} <= {row["measure"] for row in rows}
    Path("bad.txt").write_text("1 0 opinion-1 5\n")
    done = touche("evaluate", "runs/mine", "--qrels", "depth=bad.txt")
    assert done.returncode == 1 and "bad.txt:1" in done.stderr and "-2 to 4" in done.stderr


FOREIGN: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"grades": {"relevance": 3.0, "support": 3.0}}, ("support 3", "support 0, 1, 2")),
    ({"stance": "NEUTRAL"}, ("stance NEUTRAL", "PRO, CON, MIXED")),
    ({"readings": {"support": Reading(answered=3)}}, ("support 3", "0, 1, 2")),
]


def test_judgments_that_do_not_fit_the_task_are_refused_wherever_they_are_read(
    touche: Touche,
) -> None:
    assert touche("tasks", "new", "essays").returncode == 0
    replay = ("--cache", "essays/answers.jsonl", "--cache-mode", "replay")
    assert touche("run", "--task", "essays", *INPUTS, *replay, "--out", "runs/mine").returncode == 0
    file = Path("runs/mine/judgments.jsonl")
    first, *others = read_records(file, Judgment, "judgments")
    before = Path("runs/mine/run.txt").read_bytes()
    quiet = tl.SilentProgress()
    with tl.open_corpus(
        "essays/opinions.jsonl", task="essays", index="index", progress=quiet
    ) as corpus:
        candidates = tl.retrieve(tl.read_topics("essays/topics.xml"), corpus)
        judgments = tl.Judgments(candidates, [first, *others])
        assert tl.rank(candidates, judgments)
        for change, values in FOREIGN:
            foreign = [*others, structs.replace(first, **change)]
            write_records(file, foreign)
            place = f"topic {first.topic_id}, document {first.document_id}"
            for command in (("rank", "--out", "runs/mine"), ("report", "runs/mine")):
                done = touche(*command)
                assert done.returncode == 1 and done.stderr.startswith(
                    f"error: {file}: {place}: "
                ), (command, done)
                assert len(done.stderr.splitlines()) == 1 and all(
                    value in done.stderr for value in values
                ), done.stderr
            with raises_at(tl.DataError, "judgments", place, *values):
                tl.rank(candidates, replace(judgments, judgments=foreign))
    assert Path("runs/mine/run.txt").read_bytes() == before
