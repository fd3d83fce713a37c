"""The pages of the documentation, as they are opened from a folder, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open

pytestmark = pytest.mark.browser

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


# Blocks of code that do not fit their width, apart from output, which scrolls.
CUT_OFF = """() => {
    const blocks = [...document.querySelectorAll("div[class*=highlight-]:not(.highlight-text) pre")].map(block => {
        const copy = block.cloneNode(true);
        copy.querySelectorAll(".go").forEach(output => output.remove());
        block.parentNode.append(copy);
        const isCut = copy.scrollWidth > copy.clientWidth + 1;
        copy.remove();
        return isCut ? block.textContent : "";
    });
    return blocks.filter(text => text);
}"""


@pytest.fixture(scope="module")
def site() -> Path:
    """The pages that `make docs` builds."""
    folder = Path(__file__).parents[2] / "docs" / "_build" / "html"
    assert folder.is_dir(), "make docs"
    return folder


def test_each_page_fits_the_window_and_loads_nothing_from_elsewhere(
    site: Path, opened: Open
) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    # One page for all of them: a new one takes as long as what is checked on it.
    with opened(pages[0]) as found:
        page = found.page
        for path in pages:
            page.goto(path.as_uri())
            for width in (1400, 400):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
                assert page.evaluate(CUT_OFF) == [], path
            backgrounds = []
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert backgrounds[0] == "rgb(255, 255, 255)" != backgrounds[1], path
            assert page.evaluate(
                "[...document.images].every(image => image.complete && image.naturalWidth)"
            ), path
            assert [
                url for url in found.requests if not url.startswith(("file:", "data:"))
            ] == [], path
            assert found.problems == [], path


def test_the_search_finds_a_page_without_a_network(site: Path, opened: Open) -> None:
    with opened(site / "index.html") as found:
        found.page.context.set_offline(True)
        found.page.get_by_placeholder("Search").first.fill("unjudged")
        found.page.get_by_placeholder("Search").first.press("Enter")
        expect(
            found.page.locator("#search-results li a", has_text="Unjudged documents").first
        ).to_be_visible()
        found.page.locator("#search-results li a", has_text="Unjudged documents").first.click()
        expect(found.page.locator("h1")).to_contain_text("Unjudged documents")
        assert found.problems == []


def test_the_search_shows_excerpts_and_finds_a_sentence_of_doctor_first(
    site: Path, opened: Open
) -> None:
    with opened(site / "index.html") as found:
        found.page.get_by_placeholder("Search").first.fill("a run could not be made")
        found.page.get_by_placeholder("Search").first.press("Enter")
        first = found.page.locator("#search-results li").first
        expect(first.locator("a")).to_contain_text("A run could not be made")
        expect(first.locator("p.context")).to_contain_text("exit code is 1")
        first.locator("a").click()
        expect(found.page.locator("h1")).to_contain_text("What doctor prints")
        assert "#a-run-could-not-be-made" in found.page.url
        assert found.problems == []


def test_a_button_copies_commands_without_prompts_and_output(site: Path, opened: Open) -> None:
    with opened(site / "tutorials" / "own-task.html") as found:
        block = found.page.locator(".highlight-console").nth(1)
        expect(block.locator("button.copybtn")).to_be_visible()
        found.page.evaluate(
            "document.addEventListener('copy', event => { window.copied = event.target.value; })"
        )
        block.locator("button.copybtn").click()
        lines = found.page.evaluate("window.copied").strip().replace("\\\n", " ").split("\n")
        assert [line.split()[:2] for line in lines] == [
            ["touche-llm", "run"],
            ["touche-llm", "evaluate"],
        ]
