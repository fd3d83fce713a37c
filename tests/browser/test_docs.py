"""The pages of the documentation, as they are opened from a folder, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open

pytestmark = pytest.mark.browser

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module")
def site() -> Path:
    """The pages that `make docs` builds."""
    folder = Path(__file__).parents[2] / "docs" / "_build" / "html"
    assert folder.is_dir(), "make docs"
    return folder


def test_each_page_fits_the_window_and_loads_nothing_from_elsewhere(site: Path, opened: Open) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        with opened(path, viewport={"width": 1400, "height": 900}) as found:
            page = found.page
            for width in (1400, 400):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            backgrounds = []
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert backgrounds[0] == "rgb(255, 255, 255)" != backgrounds[1], path
            assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)"), path
            assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == [], path
            assert found.problems == [], path


def test_the_search_finds_a_page_without_a_network(site: Path, opened: Open) -> None:
    with opened(site / "index.html") as found:
        found.page.context.set_offline(True)
        found.page.get_by_placeholder("Search").first.fill("unjudged")
        found.page.get_by_placeholder("Search").first.press("Enter")
        expect(found.page.locator("#search-results li a", has_text="Unjudged documents").first).to_be_visible()
        found.page.locator("#search-results li a", has_text="Unjudged documents").first.click()
        expect(found.page.locator("h1")).to_contain_text("Unjudged documents")
        assert found.problems == []
