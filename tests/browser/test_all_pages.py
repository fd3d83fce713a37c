"""What all pages have in common: they fit, can be read and used without scripts, and run nothing that a text holds."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.test_compare_page import attacked as attacked_runs
from tests.browser.test_compare_page import three
from tests.browser.test_matrix_page import attacked as attacked_prompts
from tests.browser.test_matrix_page import matrix
from tests.browser.test_report import FAINT, LEFT, OPEN_ALL
from tests.report.reports import ATTACKS

__all__ = ["attacked_prompts", "attacked_runs", "matrix", "three"]
pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("name", ["sample", "three", "attacked_runs", "matrix"])
def test_a_page_fits_and_can_be_read(
    request: pytest.FixtureRequest, opened: Open, name: str, width: int, scheme: str
) -> None:
    with opened(
        request.getfixturevalue(name), viewport={"width": width, "height": 800}, color_scheme=scheme
    ) as found:
        page = found.page
        page.evaluate(OPEN_ALL)
        page.evaluate(
            "document.querySelectorAll('.doc').forEach(each => each.style.contentVisibility = 'visible')"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(FAINT) == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, paper[4:-1].split(","))) < 60) is (scheme == "dark")


@pytest.mark.parametrize("name", ["hostile", "attacked_runs", "attacked_prompts"])
def test_hostile_texts_run_nothing_and_fetch_nothing(
    request: pytest.FixtureRequest, opened: Open, name: str
) -> None:
    with opened(request.getfixturevalue(name), viewport={"width": 320, "height": 800}) as found:
        page = found.page
        page.evaluate(OPEN_ALL)
        page.fill("#search", "<script>")
        page.wait_for_timeout(300)
        expect(page.locator(LEFT)).not_to_have_count(0)
        ran = page.evaluate("[typeof window.ran, document.scripts.length, document.images.length]")
        assert ran == ["undefined", 1, 0]
        assert (found.requests, found.problems) == ([], [])
        text = page.evaluate("document.body.textContent")
        assert all(attack in text for attack in ATTACKS)
        assert page.evaluate("document.documentElement.scrollWidth") == 320


@pytest.mark.parametrize("name", ["sample", "three", "matrix"])
def test_without_scripts_everything_is_there(
    request: pytest.FixtureRequest, opened: Open, name: str
) -> None:
    with opened(request.getfixturevalue(name), java_script_enabled=False) as found:
        assert not found.page.is_visible(".filters")
        if name != "matrix":
            found.page.click("#t1 > summary")
        assert found.page.locator("#t1 .doc").first.is_visible()
