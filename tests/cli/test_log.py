"""The log of a command: requests, retries and timings; no key, and no text unless asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.cli.conftest import Done, Touche
from tests.fake_server import FakeServer, good, reply
from touche_llm.cli.demo import SAMPLES
from touche_llm.cli.log import logged, take_options
from touche_llm.errors import UsageError

SAMPLE = SAMPLES / "comparative"
KEY = "sk-do-not-tell-4711"


def passages() -> list[str]:
    """The beginnings of the sample's passages, as any log would have them."""
    lines = (SAMPLE / "passages.jsonl").read_text().splitlines()
    return [orjson.loads(line)["contents"][:25] for line in lines]


class Misbehaving(FakeServer):
    """Refuses every seventh request, and answers every ninth without JSON; quotes prompt and key in both."""

    async def misbehave(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        quoted = f"{body['messages'][-1]['content']} {request.headers['Authorization']}"
        if len(self.bodies) % 7 == 0:
            return web.json_response({"error": {"message": quoted[-290:]}}, status=503)
        return reply(quoted) if len(self.bodies) % 9 == 0 else await good(request, body)


def test_the_log_of_a_run_has_requests_retries_and_timings_but_no_key_and_no_text(
    touche: Touche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    files = ["--topics", str(SAMPLE / "topics.xml"), "--corpus", str(SAMPLE / "passages.jsonl"), "--out", "out"]
    sizes = ["--topic", "3", "--depth", "12", "--cache-mode", "refresh", "--cache", "answers.sqlite"]

    def run(*more: str) -> Done:
        """Run on a server that misbehaves."""
        server = Misbehaving()
        server.rest = server.misbehave
        with server.in_thread():
            return touche("run", *files, *sizes, "--base-url", server.url, *more)

    log = tmp_path / "run.log"
    done = run("--log-file", str(log))
    text = log.read_text()
    assert done.returncode in (0, 3), done.stderr
    assert "comparative/judge, topic 3, document" in text and "answer in" in text
    assert "retry: server_error: HTTP 503" in text
    assert f"run: exit code {done.returncode} after " in text
    assert KEY not in text
    known = passages()
    assert len(known) > 10
    assert not [passage for passage in known if passage in text]
    assert "sample 0" not in done.stderr
    # Another run is appended.
    done = run("--verbose", f"--log-file={log}")
    assert log.read_text().startswith(text)
    assert "sample 0" in done.stderr and KEY not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "rest", "file", "verbose"),
    [
        (["--log-file", "a", "run", "x"], ["run", "x"], Path("a"), False),
        (["run", "x", "--log-file=a", "--verbose"], ["run", "x"], Path("a"), True),
        (["run", "--verbose", "--lo"], ["run", "--lo"], None, True),
        (["prompts", "try", "--topic", "-3"], ["prompts", "try", "--topic", "-3"], None, False),
    ],
)
def test_the_options_stand_before_or_after_the_command(
    arguments: list[str], rest: list[str], file: Path | None, verbose: bool
) -> None:
    found, options = take_options(arguments)
    assert (found, options.log_file, options.verbose) == (rest, file, verbose)


def test_a_log_without_a_file_is_wrong_usage() -> None:
    with pytest.raises(UsageError):
        take_options(["run", "--log-file"])


def test_a_line_is_one_bounded_line_without_control_characters_or_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with logged("run", tmp_path / "a.log"):
        logging.getLogger("touche_llm.x").info("a\nb\x1b[31m\u202e %s", KEY)
        logging.getLogger("touche_llm.x").info("x" * 10_000)
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert len(lines) == 4
    assert lines[1].endswith("INFO a\\nb\\x1b[31m\\u202e [key]")
    assert len(lines[2]) == 2000
    assert "exit code 0" in lines[-1]


def test_a_log_that_cannot_be_written_is_left_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with logged("run", Path("/dev/full")):
        pass
    assert capsys.readouterr().err.count("cannot write the log") == 1
