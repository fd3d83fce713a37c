"""Runs whose answers are stored need no server.

The start-up check waits for the first request that is sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.cli.conftest import Touche
from tests.cli.test_thinking import RUN
from tests.fake_pooling import FakePooling
from tests.fake_server import FakeServer, good, says

OUT = Path("out")
NAMED = ["--model", "fake"]


class Counting(FakeServer):
    """Server that counts its start-up checks."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(probe=self.check, **settings)
        self.checks = 0

    async def check(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.checks += body["messages"][0]["role"] == "user"
        return await good(request, body)


def read_engine() -> tuple[bytes, dict[str, Any]]:
    """The ranking of a run, and what its metadata says of the engine of its judgments."""
    judged = yaml.safe_load((OUT / "ir-metadata.yml").read_text())["stages"]["judge"]
    return (OUT / "run.txt").read_bytes(), judged["llm"]["model"]


def test_a_finished_run_is_repeated_without_a_check_and_is_the_same(touche: Touche) -> None:
    with Counting().in_thread() as server:
        assert touche(*RUN, "--base-url", server.url).returncode == 0
        first, sent = read_engine(), (server.checks, server.tokenized, len(server.bodies))
        again = touche(*RUN, "--base-url", server.url)
        assert again.returncode == 0 and "checking the server" not in again.stderr
        assert (server.checks, server.tokenized, len(server.bodies)) == sent
    assert read_engine() == first


def test_a_finished_run_of_a_named_model_needs_no_server(touche: Touche) -> None:
    with Counting().in_thread() as server:
        url = server.url
        assert touche(*RUN, "--base-url", url, *NAMED).returncode == 0
        first = read_engine()
        server.models = [{"id": "other", "max_model_len": 8192}]
        assert touche(*RUN, "--base-url", url, *NAMED).returncode == 0
        assert (server.checks, read_engine()) == (1, first)
    again = touche(*RUN, "--base-url", url, *NAMED)
    assert again.returncode == 0, again.stderr
    assert read_engine() == first


def test_the_first_answer_that_is_missing_makes_the_check_once(touche: Touche) -> None:
    deeper = [*RUN[:-3], "6", *RUN[-2:], "--overwrite"]
    with Counting().in_thread() as server:
        assert touche(*RUN, "--base-url", server.url, *NAMED).returncode == 0
        before = len(server.bodies)
        done = touche(*deeper, "--base-url", server.url, *NAMED)
        assert (done.returncode, server.checks) == (0, 2), done.stderr
        assert 0 < len(server.bodies) - before
        late = read_engine()
        with FakeServer().in_thread() as other:
            assert (
                touche(*deeper, "--base-url", other.url, "--cache", "other.sqlite").returncode == 0
            )
    assert read_engine() == late


def test_a_late_check_that_fails_is_one_error(touche: Touche) -> None:
    deeper = [*RUN[:-3], "6", *RUN[-2:], "--overwrite"]
    with Counting().in_thread() as server:
        assert touche(*RUN, "--base-url", server.url, *NAMED).returncode == 0
        before = len(server.bodies)
        server.probe = says("Hello!")
        done = touche(*deeper, "--base-url", server.url, *NAMED)
        assert (done.returncode, len(server.bodies)) == (1, before)
    assert done.stderr.count("does not enforce JSON schemas") == 1
    gone = touche(*deeper, "--base-url", server.url, *NAMED)
    assert (
        gone.returncode == 1 and "--base-url" in gone.stderr and gone.stderr.count("error: ") == 1
    )


def test_stored_scores_of_a_cross_encoder_need_no_check(touche: Touche) -> None:
    with Counting().in_thread() as server, FakePooling().in_thread() as pooling:
        flags = [
            "--rank",
            "judge,cross_encoder:2",
            "--reranker-url",
            pooling.url,
            "--base-url",
            server.url,
            *NAMED,
        ]
        flags += ["--set", "ranking.cross_encoder.model=pooling"]
        assert touche(*RUN, *flags).returncode == 0
        first, sent = read_engine(), len(pooling.sent)
        assert sent > 1 and touche(*RUN, *flags).returncode == 0
        assert (read_engine(), len(pooling.sent)) == (first, sent)
