"""Faults of a server with a cross-encoder, each in one line that says what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.cli.conftest import Touche
from tests.fake_pooling import FakePooling
from tests.pipeline.test_rank import judged


def test_a_fault_of_the_server_is_one_line(touche: Touche, tmp_path: Path) -> None:
    asyncio.run(judged(tmp_path))
    with FakePooling(fault="constant").in_thread() as server:
        steps = ["--rank", "judge,cross_encoder:6", "--set", "ranking.cross_encoder.retry_for=0"]
        done = touche("rank", "--out", "out", *steps, "--reranker-url", server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.strip().splitlines()) == 1 and "issues/27857" in done.stderr
    assert not (tmp_path / "out" / "run.txt").exists()


def test_a_server_that_is_not_there_or_does_not_score_is_one_line(
    touche: Touche, tmp_path: Path
) -> None:
    asyncio.run(judged(tmp_path))

    class Generating(FakePooling):
        def add_routes(self, app: Any) -> None:
            app.router.add_get("/version", self.version)

    rank = ["rank", "--out", "out", "--rank", "cross_encoder:6", "--reranker-url"]
    with Generating().in_thread() as server:
        done = touche(*rank, server.url)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1)
    assert "--runner pooling" in done.stderr
    done = touche(*rank, "http://127.0.0.1:1")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1)
    assert "--reranker-url" in done.stderr
