from __future__ import annotations

import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import Any

import pytest

from touche_llm.data.measure import MACRO_F1
from touche_llm.report.measures import TopicPlot, plot_topics
from touche_llm.report.page import Anchor, LabelShares, PlotMark, create_environment

ANCHORS = {"1": Anchor("t1", 'tea <b>or</b> "coffee" & more'), "2": Anchor("t2", "plain")}
MARKS = [PlotMark(letter, letter, f"side{n}") for n, letter in enumerate("ABC")]
# Of three topics, of which the baseline A has two: one value near B's, and one of 0.
VALUES = [{"1": 0.51, "2": 0.0}, {"3": 0.0, "1": 0.5, "2": 0.9}, {"1": 0.1}]


def draw(call: str, **values: Any) -> ET.Element:
    """The element that a macro draws."""
    text = (
        '{% from "macros.html.jinja" import topics_plot, stances_plot with context %}{{ '
        + call
        + " }}"
    )
    shown = SimpleNamespace(labels=["PRO", "CON"], anchors=ANCHORS, marks=MARKS)
    page = create_environment().from_string(text).render(page=shown, **values)
    return ET.fromstring(page.replace("<tr><th>", "<tr/><th/>").replace("<td>", "<td/>"))


def test_values_are_marks_at_their_heights_and_titles_are_text_whatever_they_hold() -> None:
    plot = draw("topics_plot(plot)", plot=TopicPlot(MACRO_F1, plot_topics(VALUES)))
    names = [text.text for text in plot.iter("text") if text.get("class") == "f-ink"]
    assert names[6:] == ["1", "2", "3"]
    found = [
        text.attrib | {"mark": text.text or ""}
        for text in plot.iter("text")
        if text.get("class", "").endswith(" mark")
    ]
    assert [each["mark"] for each in found] == ["A", "B", "C", "A", "B", "B"]
    assert [each["class"] for each in found[:3]] == ["f-side0 mark", "f-side1 mark", "f-side2 mark"]
    a, b, c = ((float(each["x"]), float(each["y"])) for each in found[:3])
    assert c[0] - b[0] > 5 and b[0] - a[0] > 5 and c[1] > b[1] > a[1]
    # 0.51, 0.5 and 0.1 are where their values are.
    assert (c[1] - b[1]) / (c[1] - a[1]) == pytest.approx(0.40 / 0.41, abs=0.01)
    hints = [element.text for element in plot.iter("title")]
    assert (
        '1 tea <b>or</b> "coffee" & more: A 0.510, B 0.500, C 0.100' in hints
        and "3 : B 0.000" in hints
    )
    assert [link.get("href") for link in plot.iter("a")] == ["#t1", "#t2", None]
    assert plot_topics([{"1": 0.5, "2": 0.25}]) == [], "two topics have no plot"


def test_shares_fill_the_bar_and_have_a_number_unless_they_are_small() -> None:
    plot = draw("stances_plot(sets)", sets=[LabelShares("all", 3, {"PRO": 0.97, "CON": 0.03})])
    ends = [(bar.get("class"), bar.get("x"), bar.get("width")) for bar in plot.iter("rect")]
    assert ends == [("f-stance0", "0.0%", "97.0%"), ("f-stance1", "97.0%", "3.0%")]
    assert [text.text for text in plot.iter("text")] == ["97%"]
