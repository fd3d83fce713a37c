"""Whole arguments as documents, end to end: an invented corpus, and the real arguments and judgments of 2020."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import touche_llm as tl
from tests.sample_runs import run_directly, run_lines
from tests.scripted_engine import ScriptedEngine
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.corpus.args_me import HEADER
from touche_llm.data.measure import Measure, MeasureName
from touche_llm.evaluation.measures import evaluate_run
from touche_llm.evaluation.validation import validate_run
from touche_llm.llm.request import Request
from touche_llm.regression.check import check_folder
from touche_llm.regression.record import record
from touche_llm.tasks import get_task

TEXTS = {
    "S1-A1": ("Schools should start later", "PRO", "Tired pupils learn less."),
    "S1-A2": ("Schools should start later", "CON", "Parents of pupils have to be at work early."),
    "S2-A1": ("Homework should be banned", "PRO", "Pupils need time to play."),
    "S2-A2": ("Tea is better than coffee", "PRO", "It keeps you awake for longer."),
}
# Like those of 2021: titles alone.
TOPICS = "".join(
    f"<topic><number>{number}</number><title>{title}</title></topic>"
    for number, title in (
        (51, "Should schools start later for pupils?"),
        (52, "Should homework be banned?"),
    )
)


def config_of(
    task: str, folder: Path, topics: Path, corpus: Path, more: Mapping[str, Any]
) -> Config:
    places = {
        "topics": topics,
        "corpus": corpus,
        "index": folder / "index",
        "cache.file": folder / "answers.sqlite",
    }
    return load_config(None, {"task": task, **places, **more})


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    """Topics with titles alone, and a corpus."""
    (tmp_path / "topics.xml").write_text(f"<topics>{TOPICS}</topics>")
    with (tmp_path / "arguments.csv").open("w", newline="") as stream:
        rows = [
            [name, conclusion, repr([{"text": text, "stance": side, "annotations": []}]), "", "[]"]
            for name, (conclusion, side, text) in TEXTS.items()
        ]
        csv.writer(stream).writerows([HEADER, *rows])
    return tmp_path / "topics.xml", tmp_path / "arguments.csv"


async def test_an_argument_is_shown_with_its_conclusion_and_its_side(
    tmp_path: Path, inputs: tuple[Path, Path]
) -> None:
    shown: dict[str, str] = {}

    def script(request: Request) -> dict[str, Any]:
        name, text = str(request.origin.document_id), request.messages[1].content
        shown[name] = text
        if " " in name:
            return {"best": {"A": 0.4, "B": 0.6}}
        return {"relevance": {1: 0.5, 3: 0.5}, "quality": 2 if "play" in text else 1}

    config = config_of(
        "arguments_2021",
        tmp_path,
        *inputs,
        {"retriever.method": "lucene", "rank": ("judge", "setwise:2")},
    )
    await run_directly(config, tmp_path / "out", ScriptedEngine(script))
    lines = run_lines(tmp_path / "out" / "run.txt")
    assert validate_run(tmp_path / "out" / "run.txt", get_task("arguments_2021")) == []
    assert {line.topic_id for line in lines} == {"51", "52"} and {
        line.stance for line in lines
    } == {"Q0"}
    assert all(text not in shown["S1-A2"] for text in ("Description", "Narrative"))
    assert shown["S1-A2"].endswith(
        "Argument:\nConclusion: Schools should start later\nPremises against the conclusion: "
        "Parents of pupils have to be at work early."
    )
    compared = [text for name, text in shown.items() if " " in name]
    assert compared and all(
        f"Argument {label}:\nConclusion: " in text for text in compared for label in "AB"
    )

    # The recorded arguments keep their conclusion and side, without which the prompts would be
    # others.
    await record(config, tmp_path / "out", tmp_path / "recorded")
    assert (
        "S1-A2,Schools should start later" in (tmp_path / "recorded" / "arguments.csv").read_text()
    )
    assert (await check_folder(tmp_path / "recorded")).is_same


async def test_files_of_beir_are_ranked_and_measured_as_published(tmp_path: Path) -> None:
    """The three files of a BEIR folder.

    The second argument has lost its metadata, as in later versions.
    """
    corpus = [
        {
            "_id": f"{name}-x",
            "title": title,
            "text": text,
            "metadata": {"stance": side, "url": "https://a.org"},
        }
        for name, (title, side, text) in TEXTS.items()
    ]
    del corpus[1]["metadata"]
    topic = {
        "_id": "51",
        "text": "Should schools start later?",
        "metadata": {"description": "D.", "narrative": "N."},
    }
    (tmp_path / "corpus.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in corpus))
    (tmp_path / "queries.jsonl").write_text(json.dumps(topic))
    (tmp_path / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n51\tS1-A1-x\t1\n51\tS1-A2-x\t2\n"
    )
    shown: dict[str, str] = {}

    def script(request: Request) -> dict[str, Any]:
        shown[str(request.origin.document_id)] = request.messages[1].content
        return {"relevance": 2 if request.origin.document_id == "S1-A2-x" else 0}

    places = (tmp_path / "queries.jsonl", tmp_path / "corpus.jsonl")
    config = config_of("webis_touche2020_v3", tmp_path, *places, {"retriever.method": "lucene"})
    await run_directly(config, tmp_path / "out", ScriptedEngine(script))
    assert (
        "Description: D." in shown["S1-A1-x"]
        and "Premises for the conclusion: Tired" in shown["S1-A1-x"]
    )
    assert "\nPremises: Parents of pupils" in shown["S1-A2-x"]
    qrels = tl.read_qrels({"relevance": tmp_path / "test.tsv"}, "webis_touche2020_v3")
    run = evaluate_run("run", tl.read_run(tmp_path / "out" / "run.txt"), qrels)
    assert run.estimates[Measure("relevance", MeasureName.NDCG, 10)].value == 1.0
    # Recorded with and without a side.
    await record(config, tmp_path / "out", tmp_path / "recorded")
    assert (await check_folder(tmp_path / "recorded")).is_same
