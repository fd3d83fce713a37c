from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.test_report import LEFT
from tests.prompt_variants import collection, config_of, opening, reader, title_of, wording
from tests.report.reports import ATTACKS
from tests.sample_runs import Silent
from tests.scripted_engine import ScriptedEngine
from touche_llm.errors import Rejected
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.prompt_lab.comparison import ComparisonInputs, compare_prompts
from touche_llm.prompt_lab.sample import Plan
from touche_llm.report.matrix import render_matrix
from touche_llm.report.page import write_page
from touche_llm.tasks import get_task

pytestmark = pytest.mark.browser

ASPECTS = ("relevance", "quality", "stance")
# What a misread grade of 1 comes to is 1. The third wording alone misreads `1-5`.
DIFFER = {f"{topic}-{number}" for topic in range(1, 9) for number in (0, 2, 3)} | {"1-5"}


class Refusing(ScriptedEngine):
    """Takes no request about one document, and says so with an attack."""

    async def complete(self, request: Any) -> Any:
        if request.origin.document_id == "2-2":
            raise Rejected(400, ATTACKS[1])
        return await super().complete(request)


def written(folder: Path, engine: ScriptedEngine, words: dict[str, str], text: str = "") -> Path:
    """The page of a comparison of wordings, by file name."""
    files = collection(folder, topics=8, text=text)
    names = [str(wording(folder / "mine" / name, each)) for name, each in words.items()]
    qrels = read_qrels({aspect: files[aspect] for aspect in ASPECTS}, get_task("comparative"))
    plan = Plan(split="all")
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as other:
        patch.setattr("touche_llm.prompt_lab.comparison.open_client", opening(engine))
        work = compare_prompts(
            ComparisonInputs(config_of(folder, files), names, qrels, plan), Silent()
        )
        # Playwright keeps an event loop in this thread.
        found = other.submit(asyncio.run, work).result()
    write_page(
        render_matrix(found, qrels, {aspect: files[aspect] for aspect in ASPECTS}),
        folder / "matrix.html",
    )
    return folder / "matrix.html"


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three wordings: of 48 documents one misreads 32, another those of topic 1, and all of them misread `3-5`."""
    misread: dict[str, Callable[[str, int], bool]] = {
        "BLUNT": lambda topic, number: number < 4,
        "ONE": lambda topic, number: topic == "1",
        "You": lambda topic, number: (topic, number) == ("3", 5),
    }
    words = {"blunt.jinja": "BLUNT", "sharp.jinja": "SHARP", "one.jinja": "ONE"}
    return written(tmp_path_factory.mktemp("matrix"), reader(misread), words)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hostile topics, texts, names of files and errors."""
    engine = Refusing(reader({"BLUNT": lambda topic, number: number < 4}).script)
    words = {f"{ATTACKS[1]}.jinja": "BLUNT", '"><b onclick=ran()>.jinja': "SHARP"}
    return written(tmp_path_factory.mktemp("attacked"), engine, words, " ".join(ATTACKS))


def ids(page: Page) -> list[str]:
    return list(
        page.evaluate(
            f"[...document.querySelectorAll('{LEFT}')].map(e => e.querySelector('.id').textContent)"
        )
    )


def test_documents_that_the_variants_differ_about_come_first(matrix: Path, opened: Open) -> None:
    with opened(matrix) as found:
        page = found.page
        assert (found.requests, found.problems) == ([], [])
        shown = ids(page)
        assert len(shown) == 48 and set(shown[: len(DIFFER)]) == DIFFER
        assert page.locator("#t1").get_attribute("open") is not None
        assert page.inner_text("#t1 > summary b") == str(len(DIFFER))
        assert page.inner_text("#found") == "48 of 48 documents, 2 of 2 groups"


def test_a_row_says_what_people_and_each_variant_said(matrix: Path, opened: Open) -> None:
    with opened(matrix) as found:
        row = found.page.locator(".doc", has=found.page.locator(".id", has_text="4-2"))
        cells = row.locator(".matrix > span")
        assert [" ".join(text.split()) for text in cells.all_text_contents()] == [
            "assessors relevance 2 quality 2 NEUTRAL",
            "A relevance 0.00 quality 0.00 FIRST",
            "B relevance 2.00 quality 2.00 NEUTRAL",
            "C relevance 2.00 quality 2.00 NEUTRAL",
        ]
        # What people say too is framed.
        assert [cells.nth(n).locator(".hit").count() for n in range(4)] == [0, 0, 1, 1]
        assert not row.locator("blockquote").is_visible()
        row.locator("summary").click()
        assert (row.locator("blockquote").text_content() or "").startswith("passage 4-2")
        assert row.locator(".panel").count() == 3


def test_filters_find_disagreements_errors_topics_and_words(matrix: Path, opened: Open) -> None:
    with opened(matrix) as found:
        page = found.page
        page.select_option("#topic", "t2")
        agreed = ids(page)
        assert len(agreed) == 48 - len(DIFFER) and not DIFFER.intersection(agreed)
        # Grades on another scale than those of people are neither right nor wrong.
        page.select_option("#people", "every")
        assert ids(page) == []
        page.click("button[type=reset]")
        expect(page.locator(LEFT)).to_have_count(48)
        page.select_option("#people", "some")
        assert ids(page) == []
        page.click("button[type=reset]")
        expect(page.locator(LEFT)).to_have_count(48)
        page.select_option("#differs", "stance")
        page.select_option("#of", label=f"5 {title_of('5').strip()}")
        assert set(ids(page)) == {"5-0", "5-2", "5-3"}
        page.fill("#search", "passage 5-3")
        expect(page.locator(LEFT)).to_have_count(1)
        page.fill("#search", "no such words")
        expect(page.locator(LEFT)).to_have_count(0)
        assert page.is_visible("#nothing")
