"""Answers of further samples are found where their temperature is set: in a dry run, and in the lab."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tests.answer_keys.cases import DEPTH, write_inputs
from tests.cli.conftest import Touche
from tests.fake_server import FakeServer, good, reply
from tests.lab.labs import open_lab

TEMPERATURE = 0.9


async def answer_further_samples(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer first samples with words, and others well."""
    if body["temperature"] == TEMPERATURE:
        return await good(request, body)
    return reply("Well, I think")


def make_run(folder: Path, touche: Touche) -> list[str]:
    """Make the run `runs/first` of the current folder; return the arguments of its command."""
    files = write_inputs(folder)
    server = FakeServer(rest=answer_further_samples)
    with server.in_thread():
        run = [
            *("run", "--out", "runs/first", "--base-url", server.url),
            *("--topics", str(files["topics.xml"]), "--corpus", str(files["passages.jsonl"])),
            *("--candidates", str(files["candidates"]), "--depth", str(DEPTH)),
            *("--cache", str(folder / "answers.sqlite")),
            *("--set", f"sampling.resample_temperature={TEMPERATURE}"),
        ]
        done = touche(*run)
        assert done.returncode == 0, done.stderr
    # Documents of two topics, and the objects of one, with two samples each.
    assert len(server.bodies) == 2 * (2 * DEPTH + 1)
    return run


def test_a_dry_run_announces_nothing_that_is_stored(tmp_path: Path, touche: Touche) -> None:
    run = make_run(tmp_path, touche)
    done = touche(*run, "--dry-run", "--format", "json")
    assert (done.returncode, orjson.loads(done.stdout)) == (0, [])


def test_the_lab_shows_the_request_of_a_further_sample(tmp_path: Path, touche: Touche) -> None:
    make_run(tmp_path, touche)

    async def look() -> dict[str, Any]:
        async with open_lab(tmp_path / "runs") as lab:
            found: dict[str, Any] = await lab.get(
                "/api/document", run="first", topic="1", document="1-0"
            )
            return found

    found = asyncio.run(look())
    assert found["notes"] == []
    (request,) = found["requests"]
    assert "passage 1-0" in request["messages"][-1]["text"] and len(request["key"]) == 64
