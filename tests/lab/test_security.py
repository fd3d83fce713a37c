from __future__ import annotations

from pathlib import Path

from aiohttp import ClientSession, CookieJar

from tests.lab.labs import open_lab

PATHS = ("/", "/api/state", "/api/events", "/static/lab.js", "/compare?run=a&run=b")


async def test_nothing_is_served_without_the_token(folder: Path) -> None:
    async with open_lab(folder / "runs") as lab:
        own = dict(lab.headers)
        for cookie in (
            "",
            f"touche-llm-lab-{lab.address.port}=wrong",
            f"other={lab.address.token}",
        ):
            lab.headers = {"Cookie": cookie}
            for path in PATHS:
                assert (await lab.send("GET", path))[0] == 401, path
        assert (await lab.send("GET", "/", token="wrong"))[0] == 401
        lab.headers = own
        assert (await lab.send("GET", "/api/state"))[0] == 200


async def test_the_token_of_the_address_becomes_a_cookie_that_scripts_cannot_read(
    folder: Path,
) -> None:
    async with open_lab(folder / "runs") as lab:
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as browser:
            async with browser.get(lab.address.url) as response:
                assert (response.status, response.url.query_string) == (200, "")
                assert "touche-llm lab" in await response.text()
        async with lab.session.get(lab.address.url, allow_redirects=False) as response:
            cookie = response.cookies[f"touche-llm-lab-{lab.address.port}"]
            assert (response.status, response.headers["Location"]) == (303, "/")
            assert cookie["httponly"] and cookie["samesite"] == "Strict"


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
            for path in ("/api/topics", "/compare"):
                assert (await lab.send("GET", path, run=run))[0] == 400
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
