"""The lab in a browser with answers of a real vLLM: an edit and the way back, a sample, its progress and its end."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.conftest import CHROMIUM, SWITCHES
from tests.lab.labs import ASPECTS, lab_in_thread, make_config
from tests.sample_runs import Silent
from touche_llm.runs import stages

pytestmark = pytest.mark.vllm

SECONDS = 120_000


@pytest.fixture
def folder(vllm_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, which is the current one.

    Made before Playwright starts its event loop in this thread.
    """
    monkeypatch.chdir(tmp_path)
    config = make_config(tmp_path, topics=4, engine__base_url=vllm_url, engine__retry_for=60.0)
    asyncio.run(stages.run_all(config, tmp_path / "runs" / "first", Silent()))
    return tmp_path


def test_a_prompt_is_improved_in_the_lab(folder: Path) -> None:
    qrels = {aspect: folder / aspect for aspect in ASPECTS}
    problems: list[str] = []
    with lab_in_thread(folder / "runs", qrels=qrels) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(SWITCHES))
        page = browser.new_page()
        page.set_default_timeout(SECONDS)
        page.on("console", lambda message: problems.append(message.text))
        page.goto(address.url)
        page.goto(f"http://127.0.0.1:{address.port}/#/bench?run=first")
        state, area = page.locator("#draft"), page.locator("textarea").first
        expect(state).to_have_text("saved, answers from the cache", timeout=SECONDS)
        saved = area.input_value()
        area.fill(saved.replace("{% block system %}\n", "{% block system %}\nBe strict. "))
        expect(state).to_have_text(re.compile("draft, 5 answers in"), timeout=SECONDS)
        expect(page.locator(".answer:not(.stale) .bar")).to_have_count(15)
        expect(page.locator("#server")).to_have_text("server ready")
        area.fill(saved)
        expect(state).to_have_text("saved, answers from the cache", timeout=SECONDS)
        area.fill(saved.replace("{% block system %}\n", "{% block system %}\nBe strict. "))
        page.get_by_role("button", name="Judge the sample").click()
        expect(page.locator(".measures table")).to_be_visible(timeout=SECONDS)
        expect(page.locator(".measures tbody tr")).to_have_count(4)
        browser.close()
    assert problems == []
