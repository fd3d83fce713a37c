from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.lab.labs import open_lab
from touche_llm.lab.security import TOKEN_HEADER
from touche_llm.prompt_lab.holdout import access_log, read_accesses

# Requests of the page, by method and path.
REQUESTS = (
    ("GET", "/api/state"),
    ("GET", "/api/events"),
    ("GET", "/api/folder?run=first"),
    ("GET", "/api/comparison?id=x"),
    ("POST", "/api/run"),
    ("POST", "/api/compare"),
    ("PUT", "/api/labels"),
    ("GET", "/none"),
)


async def test_nothing_but_the_shell_is_served_without_the_token(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        own = dict(lab.headers)
        port = lab.address.port
        without = {"Origin": own["Origin"], "Sec-Fetch-Site": "same-origin"}
        for more in (
            {},
            {TOKEN_HEADER: "wrong"},
            {"Cookie": f"touche-llm-lab-{port}={lab.address.token}"},
        ):
            lab.headers = without | more
            for method, path in REQUESTS:
                assert (await lab.send(method, path))[0] == 401, path
            assert (await lab.send("GET", "/api/state", token=lab.address.token))[0] == 401

        # A navigation from a file is one from another site.
        for headers in ({}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}):
            lab.headers = headers
            status, page = await lab.send("GET", "/")
            assert (status, lab.address.token in page) == (200, False)
            assert (await lab.send("GET", "/static/lab.js"))[0] == 200
            assert (await lab.send("POST", "/"))[0] == 401


async def test_the_token_needs_the_page_of_the_lab(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        own = dict(lab.headers)
        token = {TOKEN_HEADER: own[TOKEN_HEADER]}
        for site in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            lab.headers = token | site
            for method, path in REQUESTS:
                assert (await lab.send(method, path))[0] == 403, (path, site)
        lab.headers = token | {"Sec-Fetch-Site": "same-origin"}
        assert (await lab.send("GET", "/api/state"))[0] == 200


async def test_no_cookie_is_set_and_the_token_is_in_no_address_that_is_sent(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        assert urlsplit(lab.address.url).fragment == f"token={lab.address.token}"
        origin = f"http://127.0.0.1:{lab.address.port}"
        for path in ("/", "/api/state", "/static/lab.js"):
            async with lab.session.get(f"{origin}{path}", headers=lab.headers) as response:
                assert response.status == 200
                assert "Set-Cookie" not in response.headers


async def test_what_has_an_effect_is_no_get(folder: Path) -> None:
    async with open_lab(folder / "runs", qrels={"relevance": folder / "relevance"}) as lab:
        assert (await lab.send("GET", "/api/run", run="first", all=1))[0] == 405
        assert (await lab.send("GET", "/api/compare", run="first", all=1))[0] == 405
        assert (await lab.send("GET", "/api/runs", all=1))[0] == 200
    assert read_accesses(access_log(folder / "answers.sqlite")) == []


async def test_another_origin_or_host_is_refused_even_with_the_token(folder: Path) -> None:
    label = {
        "run": "first",
        "topic": "1",
        "document": "1-0",
        "labels": {"relevance": 1},
        "note": "",
    }
    async with open_lab(folder / "runs") as lab:
        own, port = lab.headers, lab.address.port
        for origin in (
            "http://evil.example",
            "null",
            "http://127.0.0.1:1",
            f"https://127.0.0.1:{port}",
        ):
            lab.headers = own | {"Origin": origin}
            assert (await lab.send("GET", "/api/state"))[0] == 403
            assert (await lab.send("PUT", "/api/labels", label))[0] == 403
        del own["Origin"]
        for host in (
            "evil.example",
            "127.0.0.1",
            f"127.0.0.1.evil.example:{port}",
            f"[::1]:{port}",
        ):
            lab.headers = own | {"Host": host}
            assert (await lab.send("GET", "/api/state"))[0] == 403
        # A change needs an origin or the browser's word for it.
        for site in ("", "cross-site"):
            lab.headers = own | ({"Sec-Fetch-Site": site} if site else {})
            assert (await lab.send("PUT", "/api/labels", label))[0] == 403
        assert not (folder / "runs" / "first" / "labels.jsonl").exists()
        lab.headers = own | {"Sec-Fetch-Site": "same-origin"}
        assert (await lab.send("PUT", "/api/labels", label))[0] == 200


async def test_each_reply_has_the_policy_that_allows_the_labs_own_files_alone(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        for path in ("/", "/api/state", "/static/lab.js", "/static/report.css", "/none"):
            url = f"http://127.0.0.1:{lab.address.port}{path}"
            async with lab.session.get(url, headers=lab.headers) as response:
                policy = response.headers["Content-Security-Policy"]
                assert (
                    "default-src 'none'" in policy
                    and "connect-src 'self'" in policy
                    and "unsafe" not in policy
                )
                assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_no_folder_but_the_runs_below_the_root_is_read(folder: Path) -> None:
    (folder / "runs" / "first").rename(folder / "other")
    (folder / "runs" / "linked").symlink_to(folder / "other")
    async with open_lab(folder / "runs") as lab:
        for run in (
            "..",
            "../other",
            "/etc",
            "first/..",
            ".",
            "",
            "first\0",
            "first/../../other",
            "linked",
        ):
            for path in ("/api/topics", "/api/folder", "/api/bench"):
                assert (await lab.send("GET", path, run=run))[0] == 400
            assert (await lab.send("POST", "/api/compare", {"run": [run, "x"]}))[0] == 400
            note: dict[str, object] = {
                "run": run,
                "topic": "1",
                "document": "1-0",
                "labels": {},
                "note": "x",
            }
            assert (await lab.send("PUT", "/api/labels", note))[0] == 400
    assert not (folder / "other" / "labels.jsonl").exists()


async def test_no_file_but_the_static_ones_is_served_and_a_malformed_request_is_an_error(
    folder: Path,
) -> None:
    async with open_lab(folder / "runs") as lab:
        for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py"):
            assert (await lab.send("GET", path))[0] in (403, 404)
        url = f"http://127.0.0.1:{lab.address.port}/api/reveal"
        for body in (b"", b"[]", b"{", b'{"run": 1}', b"\xff", b'{"run": "first", "topics": "2"}'):
            async with lab.session.post(url, data=body, headers=lab.headers) as response:
                assert response.status == 400 and (await response.json())["error"]


# It stands in for a browser, and writes down its command line and the mode of the page.
_BROWSER = """#!/bin/sh
stat -L -c %a "$(printf %s "$1" | sed s,^file://,,)" > modes
stat -L -c %a "$(dirname "$(printf %s "$1" | sed s,^file://,,)")" >> modes
printf %s "$1" > opened.part
mv opened.part opened
"""


def test_the_token_is_not_in_the_command_line_of_the_browser(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = folder / "browser"
    browser.write_text(_BROWSER)
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "touche_llm", "lab", "runs"]
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        with os.fdopen(ours, "rb", closefd=True) as output:
            url = output.readline().decode().strip()
            deadline = time.monotonic() + 20
            while not (folder / "opened").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            opened = (folder / "opened").read_text()
            page = Path(unquote(urlsplit(opened).path))
            token = urlsplit(url).fragment.partition("=")[2]
            assert token
            assert token not in opened
            assert (folder / "modes").read_text().split() == ["600", "700"]
            assert url in page.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
    assert not page.parent.exists()
