from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from markupsafe import Markup

from touche_llm.report.plots import plot_movements, plot_stances, plot_topics

TITLES = {"1": ("t1", 'tea <b>or</b> "coffee" $x^2$ & more'), "2": ("t2", "plain")}


def bars() -> Markup:
    values: dict[str, tuple[float, float | None]] = {"1": (0.25, 0.5), "2": (1.0, None), "elsewhere": (0.0, 0.0)}
    return plot_topics("relevance nDCG@5", values, TITLES)


def movements() -> Markup:
    return plot_movements({"1–5": [1, 2, 3, 0, 0, 4], "6–10": [0] * 6}, "first stage")


def stances() -> Markup:
    return plot_stances({"all (3)": {"PRO": 0.97, "CON": 0.03}}, ("PRO", "CON"))


@pytest.mark.parametrize("draw", [bars, movements, stances])
def test_a_figure_drawn_again_is_the_same(draw: Callable[[], Markup]) -> None:
    assert draw() == draw()


@pytest.mark.parametrize("draw", [bars, movements, stances])
def test_a_figure_has_nothing_that_a_page_would_block_or_mistake(draw: Callable[[], Markup]) -> None:
    root = ET.fromstring(draw())
    assert root.tag == "svg" and root[0].tag == "title" and root[0].text
    for element in root.iter():
        assert element.tag in {"svg", "g", "path", "text", "title", "a"}
        assert not {"style", "id", "clip-path"} & set(element.attrib)
        assert not any(name.startswith("{") or name.startswith("on") for name in element.attrib)
        # Every ink is the style sheet's, so that it fits the light and the dark.
        assert not element.get("fill", "none").startswith("#") and not element.get("stroke", "none").startswith("#")


def test_bars_stand_best_first_and_lead_to_their_topics() -> None:
    root = ET.fromstring(bars())
    texts = [element.text for element in root.iter("text")]
    assert [text for text in texts if text in ("1", "2", "elsewhere")] == ["2", "1", "elsewhere"]
    assert {element.get("href") for element in root.iter("a")} == {"#t1", "#t2"}


def test_titles_of_topics_are_text_whatever_they_hold() -> None:
    hints = [element.text for element in ET.fromstring(bars()).iter("title")]
    assert '1 tea <b>or</b> "coffee" $x^2$ & more: 0.250, first stage 0.500' in hints
    assert "2 plain: 1.000" in hints


def test_small_shares_have_no_number_and_others_have() -> None:
    texts = [element.text for element in ET.fromstring(stances()).iter("text")]
    assert "97%" in texts and "3%" not in texts
