"""The plots of a page: SVG drawn by matplotlib and adapted to the page.

Style attributes become presentation attributes, since the content security policy of the page blocks them; the colours
of `INKS` become classes of the style sheet, which has a light and a dark scheme. Plots are reproducible: they depend
neither on the time nor on the order of a set.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from touche_llm.errors import needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
# Letters of the runs on one page, and thereby their maximum number.
LETTERS = "ABCDEFGH"
# A stand-in for each colour of the page: the class `f-…` fills with it, `s-…` strokes.
_STANCES = [f"stance{n}" for n in range(8)]
_SIDES = [f"side{n}" for n in range(len(LETTERS))]
INKS = {
    name: f"#0000{number:02x}"
    for number, name in enumerate(("grid", "run", "first", "strip", *_STANCES, *_SIDES), start=1)
}
_NAMES = {colour: name for name, colour in INKS.items()}
# Fewer topics have no plot: their values stand in their headings.
MIN_TOPICS = 3
# Smallest share whose number fits on its bar.
_MIN_LABELLED = 0.06
# Distance of the letters of a topic, in inches.
_APART = 0.09
# Widest plot, in pixels, that stays legible when scaled down to the page.
_LEGIBLE = 1500
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "axes.edgecolor": INKS["grid"],
    "grid.color": INKS["grid"],
}


@contextmanager
def _style() -> Iterator[None]:
    """Apply the settings of all plots; ticks are made when they are first used, so that this lasts until the end."""
    with needs_extra("plots", "plots"):
        from matplotlib import style

    with style.context(["default", _SETTINGS]):
        yield


@_style()
def plot_topics(
    name: str, values: Mapping[str, tuple[float, float | None]], titles: Mapping[str, tuple[str, str]]
) -> Markup:
    """Plot the value of a measure for each topic beside that of the first stage, best topic first.

    Args:
        name: Name of the measure.
        values: Values of the run and of the first stage by topic; None where the first stage lacks the topic.
        titles: Anchor and title of the topics on the page, by topic id.
    """
    by_topic = sorted(values.items(), key=lambda item: -item[1][0])
    figure, axes = _axes(max(4.0, 0.25 * len(by_topic) + 1.2), 2.9)
    places = range(len(by_topic))
    hints: dict[str, str] = {}
    for ink, offset, heights in (
        ("first", 0.2, [first or 0.0 for _, (_, first) in by_topic]),
        ("run", -0.2, [value for _, (value, _) in by_topic]),
    ):
        bars = axes.bar([place + offset for place in places], heights, 0.4, color=INKS[ink])
        for bar, (topic, (value, first)) in zip(bars, by_topic, strict=True):
            anchor, title = titles.get(topic, ("", ""))
            bar.set_gid(f"{ink}-{len(hints)}")
            before = "" if first is None else f", first stage {first:.3f}"
            hints[bar.get_gid() or ""] = f"{topic} {title}: {value:.3f}{before}"
            if anchor:
                bar.set_url(f"#{anchor}")
    axes.set_xticks(list(places), [topic for topic, _ in by_topic], fontsize=8)
    axes.set_xlim(-0.7, len(by_topic) - 0.3)
    axes.set_ylim(0.0, 1.0)
    axes.set(xlabel="topic", ylabel=name)
    axes.grid(axis="y")
    return _svg(figure, f"{name} of each topic, the run beside the first stage", hints)


@_style()
def plot_topics_of_runs(
    name: str, by_topic: Sequence[Mapping[str, float]], baseline: int, titles: Mapping[str, tuple[str, str]]
) -> Markup:
    """Plot the value of a measure for each topic as one letter per run, in the order of the baseline.

    Args:
        name: Name of the measure.
        by_topic: Values by topic, one mapping per run.
        baseline: Index of the baseline; topics that it lacks come last.
        titles: Anchors and titles, as in `plot_topics`.
    """
    topics = sorted(
        dict.fromkeys(topic for of_run in by_topic for topic in of_run),
        key=lambda topic: -by_topic[baseline].get(topic, -1.0),
    )
    slot = max(0.23, 0.04 + _APART * len(by_topic))
    figure, axes = _axes(max(4.0, slot * len(topics) + 0.9), 3.2)
    hints: dict[str, str] = {}
    for place, topic in enumerate(topics):
        anchor, title = titles.get(topic, ("", ""))
        values = {LETTERS[n]: of_run[topic] for n, of_run in enumerate(by_topic) if topic in of_run}
        # Hover and link target over the full height, behind the letters.
        strip = axes.bar(place * slot, 1.12, slot, bottom=-0.06, color=INKS["strip"])[0]
        strip.set_gid(f"topic-{place}")
        hints[f"topic-{place}"] = f"{topic} {title}: " + ", ".join(f"{at} {value:.3f}" for at, value in values.items())
        if anchor:
            strip.set_url(f"#{anchor}")
        least, most = min(values.values()), max(values.values())
        axes.bar(place * slot, most - least, 0.02, bottom=least, color=INKS["grid"])
        for side, of_run in enumerate(by_topic):
            if topic in of_run:
                # Beside each other, as equal values would hide each other.
                x = place * slot + (side - (len(by_topic) - 1) / 2) * _APART
                letter, ink = LETTERS[side], INKS[_SIDES[side]]
                axes.text(x, of_run[topic], letter, color=ink, fontsize=8, weight="bold", ha="center", va="center")
    axes.set_xticks([place * slot for place in range(len(topics))], topics, fontsize=8)
    axes.set_xlim(-0.6 * slot, (len(topics) - 0.4) * slot)
    axes.set_ylim(-0.06, 1.06)
    axes.set(xlabel="topic", ylabel=name)
    axes.grid(axis="y")
    return _svg(figure, f"{name} of each topic in {len(by_topic)} runs", hints)


@_style()
def plot_stances(stances: Mapping[str, Mapping[str, float]], labels: Sequence[str]) -> Markup:
    """Plot the share of each label in several sets of documents."""
    figure, axes = _axes(5.4, 0.36 * len(stances) + 0.25)
    for place, shares in enumerate(stances.values()):
        left = 0.0
        for ink, label in zip(cycle(_STANCES), labels, strict=False):
            share = shares[label]
            axes.barh(place, share, 0.7, left=left, color=INKS[ink])
            if share >= _MIN_LABELLED:
                text = axes.text(left + share / 2, place, f"{share:.0%}", ha="center", va="center", fontsize=9)
                # The style sheet defines the colour of text on each ink.
                text.set_gid(f"on-{ink}-{place}")
            left += share
    axes.set_yticks(range(len(stances)), list(stances))
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    axes.set_xticks([])
    axes.spines[["bottom", "left"]].set_visible(False)
    return _svg(figure, "The stances of several sets of documents", {})


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    """Create a matplotlib figure of this size in inches, without a window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="tight")
    axes = figure.add_subplot()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    return figure, axes


def _svg(figure: Figure, description: str, hints: Mapping[str, str]) -> Markup:
    """Convert a matplotlib figure to an SVG element.

    Args:
        figure: Figure to convert.
        description: Text alternative of the plot.
        hints: Tooltips, by element id.
    """
    stream = io.BytesIO()
    figure.savefig(stream, format="svg")
    root = ET.fromstring(stream.getvalue())
    for parent in list(root.iter()):
        for child in [element for element in parent if element.tag in (f"{_SVG}metadata", f"{_SVG}defs")]:
            parent.remove(child)
    for element in root.iter():
        _fit(element, hints)
    box = [float(number) for number in root.attrib["viewBox"].split()]
    # One point equals 1.25 pixels.
    width, height = (length * 1.25 for length in box[2:])
    # Plots shrink to the width of the page, except those that would become illegible.
    name = "figure" if width < _LEGIBLE else "figure long"
    root.attrib |= {"role": "img", "width": f"{width:.0f}", "height": f"{height:.0f}", "class": name}
    _hint(root, description)
    return Markup(ET.tostring(root, encoding="unicode"))


def _fit(element: ET.Element, hints: Mapping[str, str]) -> None:
    """Adapt one element to the page, as described in the module docstring."""
    classes = []
    for declaration in filter(None, element.attrib.pop("style", "").split(";")):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name != "font-family":
            element.set(name, value)
    for name, letter in (("fill", "f"), ("stroke", "s")):
        if element.get(name) in _NAMES:
            classes.append(f"{letter}-{_NAMES[element.attrib.pop(name)]}")
    identifier = element.attrib.pop("id", "")
    if identifier in hints:
        _hint(element, hints[identifier])
    elif identifier.startswith("on-"):
        classes.append(identifier.rsplit("-", 1)[0])
    if element.tag == f"{_SVG}text" and not classes:
        classes.append("f-ink")
    if element.tag == f"{_SVG}a":
        element.attrib.pop("target", None)
    # Nothing is drawn outside the axes, and ids would collide between plots.
    element.attrib.pop("clip-path", None)
    if f"{_XLINK}href" in element.attrib:
        element.set("href", element.attrib.pop(f"{_XLINK}href"))
    if classes:
        element.set("class", " ".join(classes))
    # HTML knows the elements by their plain names.
    element.tag = element.tag.removeprefix(_SVG)


def _hint(element: ET.Element, text: str) -> None:
    hint = ET.Element("title")
    hint.text = text
    element.insert(0, hint)
