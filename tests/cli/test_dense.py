"""`index --retriever dense`: documents embedded once, resumed after a kill, and each fault in one line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Touche
from tests.fake_pooling import FakePooling
from tests.pipeline.test_dense import DOCUMENTS, MODELS, PROBES, server_of
from tests.sample_runs import SAMPLE

DATA = ["--corpus", str(SAMPLE / "passages.jsonl"), "--index", "index"]
INDEX = ["index", "--retriever", "dense", *DATA, "--set", "dense.retry_for=0"]


def inputs_of(server: FakePooling) -> list[str]:
    """Texts of documents that were sent; those of the check come first."""
    return [text for body in server.sent[PROBES:] for text in body["input"]]


@pytest.mark.parametrize("name", ["dense", "hybrid"])
def test_an_index_is_made_once(touche: Touche, tmp_path: Path, name: str) -> None:
    with server_of().in_thread() as server:
        command = [
            "index",
            "--retriever",
            name,
            *DATA,
            "--embeddings-url",
            server.url,
            "--embeddings-preset",
            "e5",
        ]
        done = touche(*command, "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0]["documents"] == DOCUMENTS == len(inputs_of(server))
        assert all(text.startswith("passage: ") for text in inputs_of(server))
        before = len(server.sent)
        assert touche(*command).returncode == 0
        assert len(server.sent) == before + PROBES
    assert len(list((tmp_path / "index").glob("dense-*/vectors.npy"))) == 1
    assert (tmp_path / "index" / "bm25-documents").exists() is (name == "hybrid")


def test_a_killed_index_resumes_and_sends_no_document_twice(touche: Touche, tmp_path: Path) -> None:
    class Holding(FakePooling):
        held = 8

        async def embeddings(self, request: Any) -> Any:
            reply = await super().embeddings(request)
            while self.held and len(self.sent) == PROBES + self.held:
                await asyncio.sleep(0.02)
            return reply

    one = ["--set", "dense.batch=1", "--set", "dense.concurrency=1"]
    with Holding(models=MODELS).in_thread() as server:
        command = [*INDEX, *one, "--embeddings-url", server.url]
        with subprocess.Popen(
            [sys.executable, "-m", "touche_llm", *command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            while len(inputs_of(server)) < server.held:
                assert process.poll() is None
                time.sleep(0.02)
            process.kill()
        # The last one has no reply, so its vector cannot be stored.
        *stored, unanswered = inputs_of(server)
        server.sent.clear()
        server.held = 0
        done = touche(*command)
        assert done.returncode == 0, done.stderr
        sent = inputs_of(server)
        assert not set(stored) & set(sent) and unanswered in sent
        assert len(stored) + len(sent) == DOCUMENTS


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (INDEX, "--embeddings-url: missing"),
        ([*INDEX, "--embeddings-url", "http://127.0.0.1:1"], "--embeddings-url"),
        ([*INDEX, "--embeddings-preset", "e6"], "preset: 'e6'"),
        (
            ["index", *DATA, "--embeddings-url", "http://127.0.0.1:1"],
            "not used with --retriever bm25",
        ),
        ([*INDEX, "--set", "engine.model=x"], "--set engine.model: not used"),
        (["index", "--retriever", "okapi", *DATA], "bm25, dense, hybrid or elasticsearch"),
    ],
)
def test_what_cannot_be_indexed_is_one_line(
    touche: Touche, arguments: list[str], named: str
) -> None:
    done = touche(*arguments)
    assert done.returncode in (1, 2)
    (line,) = [line for line in done.stderr.strip().splitlines() if not line.startswith("note:")]
    assert named in line
