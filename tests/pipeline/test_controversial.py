"""Controversial questions end to end: a local collection, and ChatNoir as first stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_chatnoir import KEY, FakeChatNoir, result
from tests.sample_runs import (
    Silent,
    config_for,
    judge_stage,
    retrieve_stage,
    run_lines,
    run_scripted,
)
from tests.scripted_engine import FACTS, ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.cli.demo import SAMPLES
from touche_llm.config.configuration import Config
from touche_llm.config.files import load_config
from touche_llm.data.files import read_records
from touche_llm.data.records import Judgment
from touche_llm.evaluation.validation import validate_run
from touche_llm.llm.cache import Cache
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Request
from touche_llm.tasks import get_task

SCRIPT = script_of("controversial")
DOCUMENTS = {
    each["docno"]: each["text"]
    for each in map(
        json.loads, (SAMPLES / "controversial" / "documents.jsonl").read_text().splitlines()
    )
}


async def test_a_small_context_shows_the_argument_in_the_middle_and_says_where(
    tmp_path: Path,
) -> None:
    seen: dict[str, str] = {}

    def noting(request: Request) -> Any:
        seen[request.origin.document_id or ""] = request.messages[1].content
        return SCRIPT(request)

    config = config_for(tmp_path, task="controversial", topic=("2",))
    await retrieve_stage(config, tmp_path / "out", Silent())
    with Cache(config.cache.file) as cache:
        small = FACTS.model_copy(update={"context": 1500})
        model = ModelClient(
            engine_info=small, engine=ScriptedEngine(noting), cache=cache, sampling=config.sampling
        )
        await judge_stage(config, tmp_path / "out", Silent(), model)
    judgments = read_records(tmp_path / "out" / "judgments.jsonl", Judgment, "judgments")
    cuts = {each.document_id: each.cut for each in judgments if each.cut}
    assert "\n…" in seen["sample-week-07"] and "cut the week to four days" in seen["sample-week-07"]
    assert len(cuts) >= 2
    for name, cut in cuts.items():
        assert cut.parts and cut.kept_chars < cut.of_chars == len(DOCUMENTS[name])
        shown = seen[name].split("Web page:\n", 1)[1]
        for start, end in cut.parts:
            # Each sentence is on a line of its own, white space collapsed.
            words = DOCUMENTS[name][start:end].split()
            assert " ".join(words) in " ".join(shown.split())


def fake() -> FakeChatNoir:
    """ChatNoir with the sample's pages, and the same ranking of them for every query."""
    return FakeChatNoir(
        [result(name, 100.0 - place) for place, name in enumerate(DOCUMENTS)], dict(DOCUMENTS)
    )


def chatnoir_config(folder: Path, server: FakeChatNoir, **flags: Any) -> Config:
    given: dict[str, Any] = {
        "task": "controversial",
        "topics": SAMPLES / "controversial" / "topics.xml",
        "retriever.name": "chatnoir",
        "chatnoir.base_url": server.url,
        "chatnoir.cache": folder / "chatnoir.sqlite",
        "chatnoir.requests_per_second": 1000.0,
        "chatnoir.retry_for": 1.0,
        "cache.file": folder / "answers.sqlite",
        "depth": 5,
    }
    return load_config(
        None, given | {name.replace("__", "."): value for name, value in flags.items()}
    )


async def test_chatnoir_is_asked_once_and_its_key_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHATNOIR_API_KEY", KEY)
    server = fake()
    async with server.running():
        config = chatnoir_config(tmp_path, server)
        lines, _ = await run_scripted(config, tmp_path / "first", SCRIPT)
    assert len(lines) == 15
    assert validate_run(tmp_path / "first" / "run.txt", get_task("controversial")) == []
    monkeypatch.delenv("CHATNOIR_API_KEY")
    # The server is gone and there is no key any more.
    await run_scripted(config, tmp_path / "again", SCRIPT)
    assert run_lines(tmp_path / "again" / "run.txt") == lines
    metadata = yaml.safe_load((tmp_path / "first" / "ir-metadata.yml").read_text())
    corpus = metadata["stages"]["retrieve"]["corpus"]
    assert (corpus["source"], corpus["index"]) == (server.url + "/", "clueweb22/b")
    assert (corpus["sha256"], corpus["documents"]) == (None, None)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 8
    assert not any(KEY.encode() in path.read_bytes() for path in written)
