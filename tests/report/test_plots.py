from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from markupsafe import Markup

from touche_llm.report.plots import LETTERS, plot_stances, plot_topics, plot_topics_of_runs

TITLES = {"1": ("t1", 'tea <b>or</b> "coffee" $x^2$ & more'), "2": ("t2", "plain")}


def bars() -> Markup:
    values: dict[str, tuple[float, float | None]] = {"1": (0.25, 0.5), "2": (1.0, None), "elsewhere": (0.0, 0.0)}
    return plot_topics("relevance nDCG@5", values, TITLES)


def stances() -> Markup:
    return plot_stances({"all (3)": {"PRO": 0.97, "CON": 0.03}}, ("PRO", "CON"))


def letters() -> Markup:
    """Of three topics, of which the baseline B has two: one value near A's, and one of 0."""
    values = [{"3": 0.0, "1": 0.5, "2": 0.9}, {"1": 0.51, "2": 0.0}, {"1": 0.1}]
    return plot_topics_of_runs("m", values, 1, TITLES)


def formulas() -> Markup:
    return plot_topics("$m$", {f"$x^{n}$": (0.5, None) for n in range(4)}, {})


ALL = [bars, stances, letters, formulas]


def find_texts(svg: Markup) -> list[tuple[str, float, float]]:
    """The texts of a plot, with their places."""
    found = [element for element in ET.fromstring(svg).iter("text")]
    return [(element.text or "", float(element.attrib["x"]), float(element.attrib["y"])) for element in found]


@pytest.mark.parametrize("draw", ALL)
def test_a_figure_drawn_again_is_the_same(draw: Callable[[], Markup]) -> None:
    assert draw() == draw()


@pytest.mark.parametrize("draw", ALL)
def test_a_figure_has_nothing_that_a_page_would_block_or_mistake(draw: Callable[[], Markup]) -> None:
    root = ET.fromstring(draw())
    assert root.tag == "svg" and root[0].tag == "title" and root[0].text
    for element in root.iter():
        assert element.tag in {"svg", "g", "path", "text", "title", "a"}
        assert not {"style", "id", "clip-path", "target"} & set(element.attrib)
        assert float(element.get("stroke-width", 1)) > 0
        assert not any(name.startswith("{") or name.startswith("on") for name in element.attrib)
        # Every ink is the style sheet's, so that it fits the light and the dark.
        assert not element.get("fill", "none").startswith("#") and not element.get("stroke", "none").startswith("#")


def find_boxes(svg: Markup, ink: str) -> list[tuple[float, float, float, float]]:
    """The left, right, upper and lower ends of the paths in a colour."""
    boxes = []
    for path in ET.fromstring(svg).iter("path"):
        if path.get("class") == ink:
            numbers = [float(word) for word in path.attrib["d"].split() if not word.isalpha()]
            boxes.append((min(numbers[::2]), max(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])))
    return boxes


def test_bars_are_as_high_as_their_values_and_fill_the_width() -> None:
    heights = {ink: [lower - upper for *_, upper, lower in find_boxes(bars(), ink)] for ink in ("f-run", "f-first")}
    whole = heights["f-run"][0]
    assert [height / whole for height in heights["f-run"]] == pytest.approx([1.0, 0.25, 0.0])
    # Of the best topic the first stage has nothing.
    assert [height / whole for height in heights["f-first"]] == pytest.approx([0.0, 0.5, 0.0])
    (left, right, *_), *_ = find_boxes(bars(), "s-grid")
    all_bars = [*find_boxes(bars(), "f-run"), *find_boxes(bars(), "f-first")]
    assert min(box[0] for box in all_bars) - left == pytest.approx(right - max(box[1] for box in all_bars))


@pytest.mark.parametrize(
    ("draw", "colours"),
    [
        (bars, {"f-run", "f-first", "s-grid"}),
        (letters, {"f-strip", "f-grid", "s-grid"}),
        (stances, {"f-stance0", "f-stance1"}),
    ],
)
def test_everything_is_drawn_in_a_colour_of_the_style_sheet(draw: Callable[[], Markup], colours: set[str]) -> None:
    assert {path.get("class") for path in ET.fromstring(draw()).iter("path")} - {None} == colours


@pytest.mark.parametrize(
    ("draw", "hint"),
    [
        (bars, '1 tea <b>or</b> "coffee" $x^2$ & more: 0.250, first stage 0.500'),
        (bars, "2 plain: 1.000"),
        (letters, '1 tea <b>or</b> "coffee" $x^2$ & more: A 0.500, B 0.510, C 0.100'),
        (letters, "3 : A 0.000"),
    ],
)
def test_titles_of_topics_are_text_whatever_they_hold(draw: Callable[[], Markup], hint: str) -> None:
    assert hint in [element.text for element in ET.fromstring(draw()).iter("title")]


def test_shares_have_a_number_in_the_colour_for_their_bar_unless_they_are_small() -> None:
    groups = [group for group in ET.fromstring(stances()).iter("g") if group.get("class", "").startswith("on-")]
    assert {next(group.iter("text")).text: group.get("class") for group in groups} == {"97%": "on-stance0"}
    assert [text for text, _, _ in find_texts(stances()) if "%" in text] == ["97%"]


def test_letters_of_a_topic_stand_beside_each_other_and_topics_in_the_baseline_s_order() -> None:
    texts = find_texts(letters())
    assert [text for text, _, _ in texts if text in ("1", "2", "3")] == ["1", "2", "3"]
    found = [(text, x, y) for text, x, y in texts if text in LETTERS]
    assert [text for text, _, _ in found] == ["A", "B", "C", "A", "B", "A"]
    (_, a, middle), (_, b, upper), (_, c, lower) = found[:3]
    assert c - b > 5 and b - a > 5 and lower > middle > upper
    root = ET.fromstring(letters())
    colours = {element.text: element.get("class") for element in root.iter("text") if element.text in list(LETTERS)}
    assert colours == {"A": "f-side0", "B": "f-side1", "C": "f-side2"}
