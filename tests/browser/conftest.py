from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.report.reports import hostile_run, sample_run, write_qrels
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.report.page import render, write_page
from touche_llm.report.run_page import gather_report
from touche_llm.tasks import get_task

CHROMIUM = "/usr/bin/chromium"
# It asks nobody for anything by itself, and runs without a screen, as root too.
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Opened:
    """A page, and what it did: requests but the first, messages on the console, errors."""

    page: Page
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


Open = Callable[..., AbstractContextManager[Opened]]


@pytest.fixture(scope="session")
def browser(sample: Path, hostile: Path) -> Iterator[Browser]:
    # The pages are made first: Playwright keeps an event loop, beside which no run can start its
    # own.
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(SWITCHES))
        yield started
        started.close()


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the comparative sample with judgments of people."""
    folder = tmp_path_factory.mktemp("sample")
    run = sample_run("comparative", folder)
    qrels = read_qrels(write_qrels(run, folder), get_task("comparative"))
    write_page(render(gather_report(run, qrels, 20)), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_page(render(gather_report(hostile_run(folder), None, 20)), folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def opened(browser: Browser) -> Open:
    @contextmanager
    def open_page(path: Path, **context: Any) -> Iterator[Opened]:
        page = browser.new_page(reduced_motion="reduce", **context)
        found = Opened(page)
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.problems.append(message.text))
        page.on("pageerror", lambda error: found.problems.append(str(error)))
        page.goto(path.as_uri())
        found.requests.remove(path.as_uri())
        yield found
        page.close()

    return open_page
