"""A lab for tests: a judged run, a server that answers by a script, and a client that knows the token."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from tests.batch_replies import body as body_of
from tests.fake_server import FakeServer, schema_in
from tests.own_runs import rewrite
from tests.prompt_variants import DOCUMENTS, LABELS, collection, config_of
from tests.sample_runs import Silent, run_on
from tests.scripted_engine import answer
from touche_llm.config.configuration import Config
from touche_llm.lab.runs_of_lab import LabInputs, Workplace
from touche_llm.lab.security import TOKEN_HEADER
from touche_llm.lab.server import Address, serve_lab
from touche_llm.llm.answer_schema import list_fields

ASPECTS = ("relevance", "quality", "stance")
# For which topic and number of a document a prompt with a word is read wrongly.
Blind = Mapping[str, Callable[[str, int], bool]]
_DOCUMENT = re.compile(r"passage (\d+)-(\d+)")


def reading(blind: Blind, delay: float = 0.0) -> Any:
    """A behaviour that answers with the true grade, probable at 0.8, or with its opposite where it is blind."""

    async def behave(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(delay)
        schema = schema_in(body)
        words = body["messages"][0]["content"].split()
        found = _DOCUMENT.search(body["messages"][-1]["content"])
        assert found is not None
        grade = int(found[2]) % 3
        if any(
            word in words and misread(found[1], int(found[2])) for word, misread in blind.items()
        ):
            grade = 2 - grade
        shares: dict[str, Any] = {
            name: {each: 0.8 if each == grade else 0.2 / 3 for each in range(4)}
            for name in ("relevance", "quality")
            if name in list_fields(schema)
        }
        stance: dict[Any, float] = {each: 0.7 if each == LABELS[grade] else 0.1 for each in LABELS}
        text, tokens = answer({**shares, "stance": stance}, schema)
        return web.json_response(body_of(text, tokens, model="fake"))

    return behave


def make_config(folder: Path, text: str = "", topics: int = 16, **settings: Any) -> Config:
    """The configuration of a run over 16 topics, half of them held out.

    Its qrels are files named as the aspects.
    """
    files = collection(folder, topics=topics, text=text)
    lines = (
        f"{topic} Q0 {topic}-{n} {n + 1} {9 - n} first\n"
        for topic in range(1, topics + 1)
        for n in range(DOCUMENTS)
    )
    (folder / "candidates.txt").write_text("".join(lines))
    given = {"candidates": folder / "candidates.txt", "engine__retry_for": 0.5, "stance__depth": 0}
    return config_of(folder, files, **given | settings)


def make_run(folder: Path, server: FakeServer) -> None:
    """Make the run `runs/first` of a folder."""
    asyncio.run(run_on(server, make_config(folder), folder / "runs" / "first", progress=Silent()))


def copy_run(finished: Path, folder: Path) -> None:
    """Copy the folder of a run with all that its configuration names."""
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    config = folder / "runs" / "first" / "config.yaml"
    rewrite(config, config.read_text().replace(str(finished), str(folder)))


@dataclass
class LabClient:
    """What a page of the lab can request, with the token and as of its own origin unless other headers are given."""

    address: Address
    session: aiohttp.ClientSession
    workplace: Workplace
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        origin = f"http://127.0.0.1:{self.address.port}"
        self.headers = {TOKEN_HEADER: self.address.token, "Origin": origin}

    async def send(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        """Status and content of a reply."""
        url = f"http://127.0.0.1:{self.address.port}{path}"
        data = None if body is None else orjson.dumps(body)
        async with self.session.request(
            method, url, params=query, data=data, headers=self.headers
        ) as response:
            content = await response.read()
            return response.status, orjson.loads(
                content
            ) if response.content_type == "application/json" else content.decode()

    async def get(self, path: str, **query: Any) -> Any:
        """Content of a reply that succeeds."""
        status, content = await self.send("GET", path, **query)
        assert status == 200, content
        return content

    async def put(self, path: str, **body: Any) -> Any:
        status, content = await self.send("PUT", path, body)
        assert status == 200, content
        return content

    async def post(self, path: str, **body: Any) -> Any:
        status, content = await self.send("POST", path, body)
        assert status == 200, content
        return content

    async def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The lines of a reply with one JSON object a line."""
        url = f"http://127.0.0.1:{self.address.port}{path}"
        async with self.session.post(
            url, data=orjson.dumps(body), headers=self.headers
        ) as response:
            assert response.status == 200, await response.text()
            return [orjson.loads(line) async for line in response.content]


@asynccontextmanager
async def open_lab(root: Path | None, **inputs: Any) -> AsyncIterator[LabClient]:
    warnings: list[str] = []
    workplace = Workplace(LabInputs(root, **inputs), warnings.append)
    async with serve_lab(workplace) as address, aiohttp.ClientSession() as session:
        yield LabClient(address, session, workplace)
    assert warnings == []


@contextmanager
def lab_in_thread(root: Path | None, **inputs: Any) -> Iterator[Address]:
    """A lab that serves from a thread, for a browser in this one."""
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    started: Future[Address] = Future()

    async def serve() -> None:
        async with serve_lab(Workplace(LabInputs(root, **inputs), lambda message: None)) as address:
            started.set_result(address)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield started.result(20)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
