"""The run of somebody else in the lab, in a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_report import FAINT
from tests.lab.labs import lab_in_thread
from tests.report.reports import sample_run
from tests.strangers import SAMPLE, add_vllm, make_bait, make_hostile, open_sink, watch

pytestmark = pytest.mark.browser

VIEWS = ("runs", "documents?run=first&topic=3", "bench?run=first", "confirm?run=first")
QRELS = {"relevance": SAMPLE / "qrels-relevance.txt"}


@pytest.fixture(scope="session")
def made(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; made in a thread, since Playwright keeps an event loop in this one."""
    folder = tmp_path_factory.mktemp("made")
    with ThreadPoolExecutor() as other:
        return other.submit(sample_run, "comparative", folder).result()


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of it, beside the current one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "runs" / "first")
    return tmp_path / "runs"


def visit(page: Page, url: str, look: Callable[[Page], None] = lambda page: None) -> None:
    """Open every view, with the documents of a topic, and let it work for a while."""
    page.goto(url)
    for view in VIEWS:
        page.goto(f"{url.partition('#')[0]}#/{view}")
        page.wait_for_timeout(1000)
        look(page)
    page.goto(f"{url.partition('#')[0]}#/{VIEWS[1]}")
    expect(page.locator(".ranking a").first).to_be_visible()
    for _ in range(3):
        page.keyboard.press("j")
        page.wait_for_timeout(200)


def test_a_strangers_run_starts_sends_and_reads_nothing_in_any_view(
    browser: Browser, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_API_KEY", "CHATNOIR_API_KEY", "ELASTICSEARCH_API_KEY"):
        monkeypatch.setenv(name, "secret")
    started = add_vllm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    bait = make_bait(tmp_path / "bait")
    with open_sink() as sink:
        make_hostile(runs / "first", bait, sink.url)
        with watch() as events, lab_in_thread(runs, qrels=QRELS) as address:
            page = browser.new_page()
            visit(page, address.url)
            expect(page.locator("#folder")).to_contain_text("not written here")
            expect(page.locator(".document")).to_contain_text("No document texts")
            page.context.close()
        assert sink.connections == []
    assert not started.exists()
    acted = [(event, what) for event, what in events if event != "open" or os.fspath(bait) in what]
    assert acted == []


def test_topics_and_corpus_are_read_after_a_click_that_shows_their_paths(
    browser: Browser, runs: Path
) -> None:
    file = runs / "first" / "config.yaml"
    file.write_text(file.read_text() + "# Written elsewhere.\n")
    with lab_in_thread(runs, qrels=QRELS) as address:
        page = browser.new_page()
        visit(page, address.url)
        folder = page.locator("#folder")
        expect(folder).to_contain_text("topics.xml")
        expect(folder).to_contain_text("passages.jsonl")
        expect(page.locator(".topics")).to_contain_text("title of topic 3 not read")
        page.get_by_role("button", name="Read topics and corpus").click()
        expect(page.locator(".topics")).to_contain_text("heat pump")
        expect(page.locator(".document blockquote")).to_be_visible()
        expect(folder.get_by_role("button", name="Read topics and corpus")).to_have_count(0)
        page.get_by_role("link", name="Bench").click()
        expect(page.locator(".pins button").first).to_be_visible()
        page.context.close()


def test_all_settings_are_used_after_a_click_below_their_list(browser: Browser, runs: Path) -> None:
    file = runs / "first" / "config.yaml"
    file.write_text(file.read_text() + "# Written elsewhere.\n")
    with lab_in_thread(runs, qrels=QRELS) as address:
        page = browser.new_page()
        page.goto(address.url)
        page.goto(f"{address.url.partition('#')[0]}#/bench?run=first")
        expect(page.get_by_role("alert")).to_contain_text("not written here")
        page.get_by_text("settings are not used").click()
        expect(page.locator("#folder")).to_contain_text("cache.file")
        page.get_by_role("button", name="Use all settings of this folder").click()
        expect(page.locator("#folder")).to_contain_text("Used until the lab ends")
        page.get_by_role("button", name="Request answers").click()
        expect(page.locator(".answer .bar").first).to_be_visible()
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_views_of_a_strangers_run_fit_and_can_be_read(
    browser: Browser, runs: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    make_hostile(runs / "first", make_bait(tmp_path / "bait"))

    def look(page: Page) -> None:
        for summary in page.locator("#folder summary").all():
            if summary.is_visible():
                summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(FAINT) == []

    with lab_in_thread(runs, qrels=QRELS) as address:
        page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
        )
        visit(page, address.url, look)
        page.context.close()
