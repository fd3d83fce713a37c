"""Managed server, with a script and its child process in place of `vllm serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.sample_runs import SAMPLE
from touche_llm.api.opening import open_client
from touche_llm.engines import managed
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.engines.managed import serve
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.settings import CacheConfig, SamplingConfig

SERVER = """#!{python}
import http.server, json, os, pathlib, signal, subprocess, sys
here = pathlib.Path(__file__).parent
behaviour = (here / "behaviour").read_text()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
flags = dict(each[2:].split("=", 1) for each in sys.argv[3:] if "=" in each)
switches = [each for each in sys.argv[3:] if "=" not in each]
seen = {{"pids": [os.getpid(), child.pid], "guard": os.getppid(), "command": sys.argv[1:3]}}
seen["session"] = os.getsid(os.getppid())
seen |= {{"flags": flags, "switches": switches}}
(here / "half").write_text(json.dumps(seen))
(here / "half").replace(here / "seen")
print("loading", flush=True)
if behaviour == "fails":
    sys.exit("ValueError: not enough memory")
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if behaviour == "slow" else 200)
        self.end_headers()
        self.wfile.write(b"{{}}")
http.server.HTTPServer((flags["host"], int(flags["port"])), Handler).serve_forever()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "vllm").write_text(SERVER.format(python=sys.executable))
    (folder / "vllm").chmod(0o755)
    (folder / "behaviour").write_text("serves")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(managed, "_POLL_INTERVAL", 0.05)
    monkeypatch.setattr(managed, "_STOP_SECONDS", 0.3)
    return folder


def seen(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((place / "seen").read_bytes())
    return found


def gone(place: Path) -> bool:
    """Return whether the server and its child end within ten seconds."""
    return all(ended(pid) for pid in seen(place)["pids"])


def ended(pid: int) -> bool:
    """Return whether a process ends within ten seconds, or becomes a zombie."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


async def test_the_server_gets_its_options_and_leaves_nothing_behind(
    place: Path, tmp_path: Path
) -> None:
    options = {
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "dtype": "float32",
        "seed": None,
    }
    async with serve(
        tmp_path / "tiny", options, tmp_path / "logs" / "server.log", context=512
    ) as url:
        assert url.startswith("http://127.0.0.1:")
        found = seen(place)
    flags = found["flags"]
    assert isinstance(flags, dict)
    assert found["command"] == ["serve", str(tmp_path / "tiny")]
    assert found["switches"] == [
        "--disable-uvicorn-access-log",
        "--enable-prompt-tokens-details",
        "--enforce-eager",
        "--no-enable-prefix-caching",
    ]
    assert orjson.loads(flags.pop("structured-outputs-config")) == {
        "backend": "xgrammar",
        "disable_any_whitespace": True,
    }
    assert flags.pop("port") == url.rpartition(":")[2]
    assert flags == {
        "served-model-name": "tiny",
        "host": "127.0.0.1",
        "max-model-len": "512",
        "dtype": "float32",
    }
    # Ctrl-C in the terminal reaches only the program, which then stops the server.
    assert found["session"] == found["guard"]
    assert "loading" in (tmp_path / "logs" / "server.log").read_text()
    assert gone(place)


async def test_a_server_that_ends_at_once_gives_the_end_of_its_log(
    place: Path, tmp_path: Path
) -> None:
    (place / "behaviour").write_text("fails")
    with pytest.raises(EngineError, match=r"(?s)code 1 .*server.log:.*not enough memory"):
        async with serve(tmp_path / "tiny", {}, tmp_path / "server.log"):
            pass
    assert gone(place)


async def test_an_error_ends_the_server_even_one_that_ignores_sigterm(
    place: Path, tmp_path: Path
) -> None:
    (place / "behaviour").write_text("deaf")
    with pytest.raises(asyncio.CancelledError):
        async with serve(tmp_path / "tiny", {}, tmp_path / "server.log"):
            raise asyncio.CancelledError
    assert gone(place)


@pytest.fixture
def program(place: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run with a managed server that has started but is not ready."""
    (place / "behaviour").write_text("slow")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    files = [
        "--topics",
        SAMPLE / "topics.xml",
        "--corpus",
        SAMPLE / "passages.jsonl",
        "--out",
        tmp_path / "out",
    ]
    engine = ["--engine", "managed", "--model", tmp_path / "tiny"]
    command = [sys.executable, "-m", "touche_llm", "run", *map(str, [*files, *engine])]
    folder = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(folder)}

    def heed_hangup() -> None:
        # Tests under nohup start programs that survive their terminal.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, preexec_fn=heed_hangup
    ) as process:
        while not (place / "seen").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_the_program_ends_its_server(
    ending: signal.Signals, program: subprocess.Popen[bytes], place: Path
) -> None:
    program.send_signal(ending)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == (-ending if ending == signal.SIGKILL else 130)
    assert (b"answers.sqlite" in errors) == (ending != signal.SIGKILL)
    assert b"Traceback" not in errors
    assert gone(place)


def open_managed(
    folder: Path, model: str | None, mode: CacheMode = CacheMode.REUSE
) -> AbstractAsyncContextManager[ModelClient]:
    cache = CacheConfig(file=folder / "answers.sqlite", mode=mode)
    return open_client(EngineConfig(name="managed", model=model), SamplingConfig(), cache)


async def test_a_managed_engine_without_the_folder_of_a_model_starts_nothing(
    place: Path, tmp_path: Path
) -> None:
    for model in (None, str(tmp_path / "nowhere"), str(place)):
        with pytest.raises(UsageError, match=r"engine\.model"):
            async with open_managed(tmp_path, model):
                pass
    assert not (place / "seen").exists()


@pytest.mark.parametrize("model", ["models/tiny/", None])
async def test_replay_takes_the_folder_or_the_name(model: str | None, tmp_path: Path) -> None:
    info = EngineInfo(model="tiny", revision="", context=512, overhead=30, engine="vllm 0.32.0")
    with Cache(tmp_path / "answers.sqlite") as cache:
        store_engine_info(info, cache)
    async with open_managed(tmp_path, model, CacheMode.REPLAY) as opened:
        assert opened.engine_info == info
