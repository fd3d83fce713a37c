"""A server, or a proxy before it, that sends back the headers that it received."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.cli.conftest import Touche
from tests.fake_server import FakeServer, good, reply
from touche_llm.cli.demo import SAMPLES
from touche_llm.llm import retries

SAMPLE = SAMPLES / "comparative"
KEY = "sk-do-not-tell/4711"


class Echo(FakeServer):
    """Echoes the headers: as an object, with escapes, as an answer, as a refusal, in turn."""

    async def echo(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        headers = dict(request.headers)
        assert KEY in headers["Authorization"]
        escaped = "".join(f"\\u{ord(character):04x}" for character in headers["Authorization"])
        match body["messages"][-1]["content"].count("e") % 6:
            case 0:
                return web.json_response({"headers": headers})
            case 1:
                text = f'{{"headers": {{"Authorization": "{escaped}"}}}}'
                return web.Response(text=text, content_type="application/json")
            case 2:
                return reply(f"You sent {json.dumps(headers)}")
            case 3:
                return reply(None, refusal=f"Not for {headers['Authorization']}")
            case 4:
                text = f'{{"error": {{"message": "no {escaped}"}}}}'
                return web.Response(text=text, status=400, content_type="application/json")
            case _:
                return await good(request, body)


def test_a_key_that_is_sent_back_is_in_no_file_and_no_output(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.01)
    server = Echo()
    server.rest = server.echo
    files = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl")]
    sizes = ["--topic", "3", "--depth", "16", "--cache", "answers.sqlite", "--retry-for", "0.1"]
    with server.in_thread():
        done = touche(
            *("--log-file", "run.log", "run", "--task", "comparative", *files, *sizes),
            *("--base-url", server.url, "--out", "out"),
        )
    assert done.returncode == 3, done.stderr
    reported = touche("report", "out", "--format", "json")
    shown = touche("show", "out", "--topic", "3")
    kinds = {
        attempt["kind"]
        for line in Path("out/failures.jsonl").read_text().splitlines()
        for attempt in json.loads(line)["attempts"]
    }
    assert {"server_error", "not_json", "refused"} <= kinds

    outputs = [each.stdout + each.stderr for each in (done, reported, shown)]
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert any("[key]" in text for text in written) and Path("out/report.html").exists()
    for text in outputs + written:
        plain = text.replace("\\\\", "\\").replace("\\/", "/")
        assert KEY not in plain and "do-not-tell" not in plain
        assert "\\u0064\\u006f\\u002d\\u006e" not in plain
