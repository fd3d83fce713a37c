from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path


def test_the_command_prints_the_address_and_what_it_reads_and_writes(folder: Path) -> None:
    command = [sys.executable, "-m", "touche_llm", "lab", "runs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(6)]
        url = lines[0]
        assert url.startswith("http://127.0.0.1:") and "/?token=" in url
        paths = "\n".join(lines[1:])
        assert all(
            name in paths for name in ("runs", "answers.sqlite", "hold_out_accesses.jsonl", "lab-prompts", "drafts")
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
        with opener.open(url) as response:
            assert response.status == 200 and b"touche-llm lab" in response.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None and "Traceback" not in process.stderr.read()
