"""Runs whose first stage searches vectors, alone or with BM25: what is sent, counted, replayed and refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

import touche_llm as tl
from tests.fake_pooling import FakePooling
from tests.sample_runs import SAMPLE, Silent, config_for, run_directly
from tests.scripted_engine import ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.config.configuration import Config
from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import ReplayMiss, UsageError
from touche_llm.llm.cache import CacheMode
from touche_llm.ranking.fusion import fuse_candidates
from touche_llm.retrieval.candidates import Candidates
from touche_llm.runs.dry_run import estimate_cost
from touche_llm.runs.stages import run_retrieve

PROBES = 1  # of the start-up check: clearly different texts
TOPICS = len(read_topics(SAMPLE / "topics.xml"))
MODELS = [{"id": "pooling", "max_model_len": 4096, "owned_by": "vllm"}]
DOCUMENTS = len((SAMPLE / "passages.jsonl").read_bytes().splitlines())


def dense(folder: Path, url: str | None = None, name: str = "dense", **flags: Any) -> Config:
    given = {"retriever__name": name, "dense__url": url, "dense__context": 4096, "depth": 10}
    return config_for(folder, **{**given, **flags})


def server_of(**settings: Any) -> FakePooling:
    """A server with a context in which every document fits."""
    return FakePooling(models=MODELS, **settings)


async def retrieve(server: FakePooling, folder: Path, **flags: Any) -> Candidates:
    async with server.running():
        config = dense(folder, server.url, dense__retry_for=0.0, **flags)
        return await run_retrieve(config, folder / "out", Silent(), overwrite=True)


def ids(candidates: Candidates) -> list[list[str]]:
    return [[each.document_id for each in ranking] for ranking in candidates.list_rankings()]


async def test_documents_are_found_by_vectors_and_replayed_without_the_server(
    tmp_path: Path,
) -> None:
    server = server_of()
    found = await retrieve(server, tmp_path)
    inputs = [text for body in server.sent[PROBES:] for text in body["input"]]
    assert len(inputs) == DOCUMENTS + TOPICS == len(set(inputs))
    assert [len(ranking) for ranking in ids(found)] == [10] * TOPICS
    out = tmp_path / "out"
    facts = yaml.safe_load((out / "ir-metadata.yml").read_text())["stages"]["retrieve"]["dense"]
    assert (facts["model"]["name"], facts["dimensions"]) == ("pooling", 32)
    assert facts["counts"] == {
        "requests": len(server.sent) - PROBES,
        "cache_hits": 0,
        "retries": 0,
        "cut": 0,
    }
    assert yaml.safe_load((out / "config.yaml").read_text())["dense"]["model"] == "pooling"
    run = (out / "candidates.run.txt").read_bytes()
    again = server_of()
    await retrieve(again, tmp_path, dense__model="pooling")
    assert again.sent == []
    for mode in (CacheMode.REPLAY, CacheMode.REUSE):
        await run_retrieve(dense(tmp_path, cache__mode=mode), out, Silent(), overwrite=True)
        assert (out / "candidates.run.txt").read_bytes() == run


async def test_hybrid_fuses_the_rankings_of_both(tmp_path: Path) -> None:
    by_vectors = await retrieve(server_of(), tmp_path, depth=DOCUMENTS)
    words = await run_retrieve(config_for(tmp_path, depth=DOCUMENTS), tmp_path / "words", Silent())
    both = await retrieve(server_of(), tmp_path, name="hybrid", dense__weight=0.5, dense__k=10.0)
    expected = [
        [each.document_id for each in fuse_candidates([first, second], [1.0, 0.5], 10.0)[:10]]
        for first, second in zip(words.list_rankings(), by_vectors.list_rankings(), strict=True)
    ]
    assert ids(both) == expected
    assert ids(both) not in (
        [each[:10] for each in ids(words)],
        [each[:10] for each in ids(by_vectors)],
    )


async def test_the_dry_run_counts_the_requests_that_are_sent_and_writes_no_vector(
    tmp_path: Path,
) -> None:
    config, server = dense(tmp_path, name="hybrid", dense__batch=8), server_of()
    result = await estimate_cost(config, None, ("retrieve", "judge"), Silent())
    said = {cost.prompt: cost.usage.requests for cost in result.costs}
    assert not list((tmp_path / "index").glob("dense-*"))
    await retrieve(server, tmp_path, name="hybrid", dense__batch=8)
    assert said["comparative/embeddings"] == len(server.sent) - PROBES
    # As many documents are judged as will be found.
    assert said["comparative/judge"] == 10 * TOPICS
    after = await estimate_cost(config, None, ("retrieve",), Silent())
    assert (after.costs, after.known) == ([], {"retrieve": TOPICS})


async def test_a_dry_run_with_stored_vectors_judges_the_documents_of_the_search(
    tmp_path: Path,
) -> None:
    topics: dict[str, Any] = {"topic": ("3",), "depth": 4}
    found = await retrieve(server_of(), tmp_path, name="hybrid", **topics)
    config = dense(tmp_path, name="hybrid", **topics)
    await run_directly(config, tmp_path / "out", ScriptedEngine(script_of("comparative")))
    result = await estimate_cost(config, None, ("retrieve", "judge"), Silent())
    assert len(ids(found)[0]) == 4
    assert (result.costs, result.known["judge"]) == ([], 4)


async def test_the_library_searches_both(tmp_path: Path) -> None:
    server = server_of()
    async with server.running():
        with tl.open_corpus(
            SAMPLE / "passages.jsonl",
            task="comparative",
            index=tmp_path / "index",
            retriever=tl.RetrieverConfig(name="hybrid"),
            dense=tl.DenseOptions(
                settings={"url": server.url}, cache={"file": tmp_path / "answers.sqlite"}
            ),
        ) as corpus:
            found = await asyncio.to_thread(
                tl.retrieve, tl.read_topics(SAMPLE / "topics.xml"), corpus, depth=5
            )
    assert [len(ranking) for ranking in ids(found)] == [5] * TOPICS
    with pytest.raises(UsageError, match="dense"):
        tl.open_corpus("x", task="comparative", retriever=tl.RetrieverConfig(name="dense"))


async def test_without_a_server_or_vectors_the_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"retriever\.name: sentence_pairs retrieves sentences"):
        dense(tmp_path, task="sentence_pairs")
    with pytest.raises(UsageError, match=r"^dense\.url: missing"):
        await run_retrieve(dense(tmp_path), tmp_path / "out", Silent())
    with pytest.raises(UsageError, match="nothing to replay"):
        (tmp_path / "cache.jsonl").touch()
        replay: dict[str, Any] = {
            "cache__file": tmp_path / "cache.jsonl",
            "cache__mode": CacheMode.REPLAY,
        }
        await run_retrieve(dense(tmp_path, **replay), tmp_path / "out", Silent())
    await retrieve(server_of(), tmp_path, topic=("3",))
    with pytest.raises(ReplayMiss, match=f"lacks {TOPICS - 1} results of pooling"):
        await run_retrieve(dense(tmp_path), tmp_path / "out", Silent(), overwrite=True)
    (tmp_path / "index2").mkdir()
    with pytest.raises(ReplayMiss, match=f"{DOCUMENTS} of {DOCUMENTS} documents have no vector"):
        await run_retrieve(
            dense(tmp_path, index=tmp_path / "index2"), tmp_path / "out", Silent(), overwrite=True
        )
