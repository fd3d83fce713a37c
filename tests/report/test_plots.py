from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from touche_llm.report.page import create_environment, plot_topics

TITLES = {"1": ("t1", 'tea <b>or</b> "coffee" & more'), "2": ("t2", "plain")}
RUNS = [(letter, letter, f"side{n}") for n, letter in enumerate("ABC")]
# Of three topics, of which the baseline B has two: one value near A's, and one of 0.
VALUES = [{"3": 0.0, "1": 0.5, "2": 0.9}, {"1": 0.51, "2": 0.0}, {"1": 0.1}]


def draw(call: str, **values: Any) -> ET.Element:
    """The element that a macro draws."""
    text = '{% from "macros.html.jinja" import topics_plot, stances_plot with context %}{{ ' + call + " }}"
    given = {"labels": ["PRO", "CON"], "before": "BM25", "anchors": TITLES}
    page = create_environment().from_string(text).render(given | values)
    return ET.fromstring(page.replace("<tr><th>", "<tr/><th/>").replace("<td>", "<td/>"))


def find_marks(plot: ET.Element) -> list[tuple[str, str, float, float]]:
    """The marks of a plot, with their colours and places."""
    found = [text for text in plot.iter("text") if (text.get("class") or "").endswith(" mark")]
    return [(each.text or "", each.attrib["class"], float(each.attrib["x"]), float(each.attrib["y"])) for each in found]


def test_marks_are_beside_each_other_and_topics_in_the_order_of_the_baseline() -> None:
    plot = draw('topics_plot("m", topics, 3)', topics=plot_topics(RUNS, VALUES, 1))
    names = [text.text for text in plot.iter("text") if text.get("class") == "f-ink"]
    assert names[6:] == ["1", "2", "3"]
    found = find_marks(plot)
    assert [mark for mark, *_ in found] == ["A", "B", "C", "A", "B", "A"]
    assert [ink for _, ink, *_ in found[:3]] == ["f-side0 mark", "f-side1 mark", "f-side2 mark"]
    (_, _, a, middle), (_, _, b, upper), (_, _, c, lower) = found[:3]
    assert c - b > 5 and b - a > 5 and lower > middle > upper


def test_heights_are_in_proportion_to_the_values() -> None:
    plot = draw('topics_plot("m", topics, 1)', topics=plot_topics(RUNS[:1], [{"1": 1.0, "2": 0.25, "3": 0.0}]))
    top, middle, bottom = (y for *_, y in find_marks(plot))
    assert (bottom - middle) / (bottom - top) == pytest.approx(0.25, abs=0.01)
    width, last = float(plot.attrib["width"]), find_marks(plot)[-1][2]
    assert 0 < last < width


def test_titles_and_values_of_topics_are_text_whatever_they_hold() -> None:
    plot = draw('topics_plot("m", topics, 3)', topics=plot_topics(RUNS, VALUES, 1))
    hints = [element.text for element in plot.iter("title")]
    assert '1 tea <b>or</b> "coffee" & more: A 0.500, B 0.510, C 0.100' in hints and "3 : A 0.000" in hints
    assert [link.get("href") for link in plot.iter("a")] == ["#t1", "#t2", None]


def test_two_topics_have_no_plot() -> None:
    assert plot_topics(RUNS[:1], [{"1": 0.5, "2": 0.25}]) == {}


def test_shares_fill_the_bar_and_have_a_number_unless_they_are_small() -> None:
    plot = draw("stances_plot(sets)", sets={"all (3)": {"PRO": 0.97, "CON": 0.03}})
    ends = [(bar.get("class"), bar.get("x"), bar.get("width")) for bar in plot.iter("rect")]
    assert ends == [("f-stance0", "0.0%", "97.0%"), ("f-stance1", "97.0%", "3.0%")]
    assert [text.text for text in plot.iter("text")] == ["97%"]
