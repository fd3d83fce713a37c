from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.report.reports import ATTACKS

pytestmark = pytest.mark.browser

LEFT = ".doc:not([hidden])"
SHOWN = f"document.querySelectorAll('{LEFT}')"
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
# Texts of a page whose contrast with what is behind them is below 4.5, the least of WCAG 2.2 AA for
# small texts.
FAINT = """() => {
  const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
  const over = (top, below) => {
    const share = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(n => top[n] * share + below[n] * (1 - share));
  };
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const own = parsed(getComputedStyle(element).backgroundColor);
    return own.length === 3 ? own : over(own, behind(element.parentElement));
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *:not(svg):not(svg *):not(script):not(style):not(option)")) {
    const said = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join("");
    if (!said || !element.checkVisibility()) continue;
    const [one, other] = [parsed(getComputedStyle(element).color), behind(element)].map(light).sort((a, b) => b - a);
    if ((one + .05) / (other + .05) < 4.5) faint.push(`${element.className} ${said.slice(0, 40)}`);
  }
  return faint;
}"""


def shown(page: Page) -> int:
    return int(page.evaluate(f"{SHOWN}.length"))


def read_count(page: Page) -> str:
    return page.inner_text("#found")


def test_filters_leave_what_fits_and_can_be_put_together(sample: Path, opened: Open) -> None:
    with opened(sample) as found:
        page = found.page
        assert read_count(page) == "80 of 80 documents, 4 of 4 topics" and shown(page) == 80
        page.select_option("#stance", label="FIRST")
        first = shown(page)
        assert 0 < first < 80
        assert set(
            page.evaluate(f"[...{SHOWN}].map(each => each.querySelector('.chip').textContent)")
        ) == {"FIRST"}
        page.select_option("#judged", "p0")
        unjudged = shown(page)
        page.select_option("#judged", "p1")
        assert shown(page) + unjudged == first
        page.select_option("#judged", "")
        page.select_option("#topic", "t2")
        assert 0 < shown(page) < first
        assert page.evaluate(
            "[...document.querySelectorAll('.topic:not([hidden])')].map(each => each.id)"
        ) == ["t2"]
        assert read_count(page).endswith("1 of 4 topics")
        page.click("button[type=reset]")
        expect(page.locator(LEFT)).to_have_count(80)
        assert read_count(page) == "80 of 80 documents, 4 of 4 topics"


def test_a_filter_leaves_the_documents_that_model_and_assessors_disagree_about(
    sample: Path, opened: Open
) -> None:
    with opened(sample) as found:
        page = found.page
        page.select_option("#assessors", label="differ in stance")
        differing = page.evaluate(
            f"[...{SHOWN}].map(each => [each.querySelector('.chip').textContent,"
            " each.querySelector('.people').textContent.match(/stance (\\w+)/)[1]])"
        )
        assert 0 < len(differing) < 80 and all(one != other for one, other in differing)
        counts = {}
        for value in ("any", "none"):
            page.select_option("#assessors", value)
            counts[value] = shown(page)
        assert counts["any"] >= len(differing) and counts["none"] > 0
        page.select_option("#assessors", "")
        page.select_option("#judged", "p1")
        assert shown(page) == sum(counts.values())


def test_the_search_finds_all_words_in_texts_ids_and_answers(sample: Path, opened: Open) -> None:
    with opened(sample) as found:
        page = found.page
        for words in ("BOILER grants", "sample-heating-10___9", '[3,3,"Y"'):
            page.fill("#search", words)
            expect(page.locator(LEFT)).not_to_have_count(80)
            texts = page.evaluate(f"[...{SHOWN}].map(each => each.textContent.toLowerCase())")
            assert texts and all(word in text for word in words.lower().split() for text in texts)
            assert page.evaluate(f"[...{SHOWN}].every(each => each.checkVisibility())"), (
                "its topic is open"
            )
            page.fill("#search", "")
            expect(page.locator(LEFT)).to_have_count(80)
        page.fill("#search", "no such words anywhere")
        expect(page.locator(LEFT)).to_have_count(0)
        assert page.is_visible("#nothing")
        assert (found.requests, found.problems) == ([], [])


def test_everything_can_be_reached_with_the_keyboard(sample: Path, opened: Open) -> None:
    with opened(sample) as found:
        page = found.page
        page.focus("#t1 > summary")
        page.keyboard.press("Enter")
        assert page.evaluate("document.querySelector('#t1').open")
        reached = []
        for _ in range(4):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.parentElement.className"))
        assert reached == ["doc"] * 4
        page.keyboard.press("Space")
        assert page.locator("#t1 .doc[open] blockquote").count() == 1
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "search"
        page.keyboard.type("/")
        assert page.input_value("#search") == "/"


def test_the_policy_stops_a_script_that_gets_in_all_the_same(
    sample: Path, opened: Open, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(
        sample.read_text().replace("</main>", f"{''.join(ATTACKS[:2])}<p style='color:red'></main>")
    )
    with opened(broken) as found:
        found.page.wait_for_timeout(300)
        assert found.page.evaluate("typeof window.ran") == "undefined"
        assert any("Content Security Policy" in problem for problem in found.problems)
