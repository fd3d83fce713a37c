"""The log of a command: requests, retries and timings, but no key and no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.cli.conftest import Touche
from tests.fake_server import FakeServer, good, reply
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"
KEY = "sk-do-not-tell-4711"


class Misbehaving(FakeServer):
    """Refuses every seventh request, and answers every ninth without JSON.

    Quotes prompt and key in both.
    """

    async def misbehave(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        quoted = f"{body['messages'][-1]['content']} {request.headers['Authorization']}"
        if len(self.bodies) % 7 == 0:
            return web.json_response({"error": {"message": quoted[-290:]}}, status=503)
        return reply(quoted) if len(self.bodies) % 9 == 0 else await good(request, body)


def test_the_log_of_a_run_has_requests_retries_and_timings_but_no_key_and_no_text(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    files = [
        "--topics",
        str(SAMPLE / "topics.xml"),
        "--corpus",
        str(SAMPLE / "passages.jsonl"),
        "--out",
        "out",
    ]
    sizes = [
        "--topic",
        "3",
        "--depth",
        "12",
        "--cache-mode",
        "refresh",
        "--cache",
        "answers.sqlite",
    ]
    log = tmp_path / "run.log"

    server = Misbehaving()
    server.rest = server.misbehave
    with server.in_thread():
        done = touche("--log-file", str(log), "run", *files, *sizes, "--base-url", server.url)
    text = log.read_text()
    assert done.returncode in (0, 3), done.stderr
    assert "comparative/judge, topic 3, document" in text and " in 0." in text
    assert "retry: server_error: HTTP 503" in text
    assert KEY not in text
    lines = (SAMPLE / "passages.jsonl").read_text().splitlines()
    known = [orjson.loads(line)["contents"][:25] for line in lines]
    assert len(known) > 10
    assert not [passage for passage in known if passage in text]
    assert "sample 0" not in done.stderr
    # Another command is appended.
    assert (
        touche(
            "--log-file", str(log), "validate", "out/run.txt", "--task", "comparative"
        ).returncode
        == 0
    )
    assert log.read_text().startswith(text) and len(log.read_text()) > len(text)


def test_a_log_that_cannot_be_written_is_one_line(touche: Touche) -> None:
    done = touche("--log-file", "/dev/full", "tasks", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: /dev/full: ") and len(done.stderr.splitlines()) == 1
