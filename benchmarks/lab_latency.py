"""Waiting times in the lab, in a browser, with a server that answers at once.

    python -m benchmarks.lab_latency [--topics 50] [--depth 1000] [--passages 50000] [--edits 20]

A synthetic run is judged and ranked; then Debian's Chromium opens it in the lab, scrolls through a
topic, and edits a prompt. Of an edit, the time is that from the keystroke until the answers about
five documents are on the screen, without the pause for which the page waits. It says what the lab
costs, and nothing about a model.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from benchmarks.figures import Figure, parse_sizes, show
from benchmarks.judging import PARTS, prepare
from tests.fake_server import FakeServer
from touche_llm.api.progress import SilentProgress
from touche_llm.config.files import load_config
from touche_llm.engines.cached_info import store_engine_info
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.llm.cache import Cache
from touche_llm.llm.model import ModelClient
from touche_llm.llm.protocol import EngineInfo
from touche_llm.llm.settings import SamplingConfig
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.runs.stages import judge_stage, rank_stage

_CHROMIUM = "/usr/bin/chromium"
_SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)
# As the server describes itself.
_FACTS = EngineInfo(model="fake", revision="", context=8192, overhead=10, engine="vllm 0.0-fake")
# Milliseconds for which the page waits after a keystroke.
_PAUSE = 400
_EDIT = """([words]) => new Promise((resolve) => {
  const area = document.querySelector("textarea"), before = document.querySelectorAll(".answer").length;
  const at = area.value.indexOf("\\n", area.value.indexOf("block system")) + 1;
  area.focus();
  area.setSelectionRange(at, at);
  const started = performance.now();
  document.execCommand("insertText", false, words);
  const look = () => {
    const fresh = document.querySelectorAll(".answer:not(.stale) .bar").length >= 5;
    const isDone = /answers in/.test(document.getElementById("draft").textContent);
    if (fresh && isDone && performance.now() - started > 400) resolve(performance.now() - started);
    else requestAnimationFrame(look);
  };
  setTimeout(look, 200);
})"""


async def make_run(folder: Path, depth: int) -> None:
    """Judge and rank the candidates, with answers from their schema alone."""
    given: dict[str, Any] = {
        "topics": folder / "topics.xml",
        "corpus": folder / "passages.jsonl",
        "depth": depth,
    }
    given |= {"index": folder / "index", "cache.file": folder / "answers.sqlite"}
    config, directory = load_config(None, given), RunDirectory(folder / "runs" / "large")
    with Cache(config.cache.file) as cache:
        store_engine_info(_FACTS, cache)
        model = ModelClient(
            engine_info=_FACTS, engine=DryRunEngine(), cache=cache, sampling=SamplingConfig()
        )
        with RunContext(config, SilentProgress(), model) as context, context.using(model):
            await judge_stage(context, directory)
            await rank_stage(context, directory)


@contextmanager
def lab(folder: Path, url: str) -> Iterator[str]:
    """Serve a lab in a process of its own; yield its address."""
    command = [sys.executable, "-m", "touche_llm", "lab", str(folder / "runs"), "--base-url", url]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def open_documents(page: Page, address: str) -> float:
    """Open the documents of the run for the first time.

    Return the seconds until the ranking is on the screen.
    """
    page.goto(address)
    page.locator("main tbody tr").wait_for()
    started = time.perf_counter()
    page.get_by_role("link", name="documents", exact=True).click()
    page.locator(".ranking a").first.wait_for()
    return time.perf_counter() - started


def scroll(page: Page) -> tuple[int, float]:
    """Scroll to the last document of a topic.

    Return the number of rows at first, and the seconds.
    """
    first, started = page.locator(".ranking a").count(), time.perf_counter()
    pane = page.locator("section[aria-label=Ranking]")
    while page.locator(".ranking .end").count():
        pane.evaluate("pane => pane.scrollTo(0, pane.scrollHeight)")
    return first, time.perf_counter() - started


def edit(page: Page, times: int) -> list[float]:
    """Edit the prompt; return the milliseconds of each edit, without the pause."""
    page.get_by_role("link", name="Bench").click()
    page.locator(".answer .bar").first.wait_for()
    return [page.evaluate(_EDIT, [f"word{number} "]) - _PAUSE for number in range(times + 1)][1:]


def main() -> None:
    """Make the run, and measure."""
    options = parse_sizes(
        __doc__, topics=(1, 50), depth=(10, 1000), passages=(10, 50_000), edits=(1, 20)
    ).parse_args()
    with tempfile.TemporaryDirectory() as name, FakeServer().in_thread() as server:
        folder = Path(name)
        prepare(folder, options.topics, options.depth, options.passages)
        (folder / "runs").mkdir()
        (folder / PARTS[0]).rename(folder / "runs" / "large")
        asyncio.run(make_run(folder, options.depth))
        with lab(folder, server.url) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=list(_SWITCHES))
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            opened = open_documents(page, address)
            rows, scrolled = scroll(page)
            edits = edit(page, options.edits)
            browser.close()
    figures = [
        Figure("first opening of the run's documents", f"{opened:.2f} s"),
        Figure(
            f"from the first {rows} rows of a topic to all of them, scrolling", f"{scrolled:.2f} s"
        ),
        Figure(
            f"from the pause after a keystroke to five answers on the screen, median of {len(edits)} edits",
            f"{statistics.median(edits):,.0f} ms (slowest {max(edits):,.0f})",
        ),
    ]
    show(f"The lab: a run of {options.topics} topics of {options.depth:,} documents", figures)


if __name__ == "__main__":
    main()
