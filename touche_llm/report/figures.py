"""The figures of a report: drawn by matplotlib as SVG, and fitted to the page.

What a page's content security policy would block, or what would look the same in the light and in the dark, is taken
out: style attributes become presentation attributes, and the colours of `INKS` become classes of the page's style
sheet. Nothing in a figure depends on the time or on the order of a set, so that a page is the same each time.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from touche_llm.report.measured import Measure
from touche_llm.report.overview import BANDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
# As many runs are on one page at most, each with a letter.
LETTERS = "ABCDEFGH"
# A stand-in for each colour of the page: the class `f-…` fills with it, `s-…` strokes.
_STANCES, _BANDS = [f"stance{n}" for n in range(4)], [f"band{n}" for n in range(len(BANDS) + 1)]
_SIDES = [f"side{n}" for n in range(len(LETTERS))]
INKS = {
    name: f"#0000{number:02x}"
    for number, name in enumerate(("ink", "grid", "run", "first", "strip", *_STANCES, *_BANDS, *_SIDES), start=1)
}
_NAMES = {colour: name for name, colour in INKS.items()}
# Of a bar; there is no room for the number on a smaller one.
_LEAST_LABELLED = 0.06
# Letters of values that differ by less would lie over each other, and have to stand so many inches apart.
_TOO_CLOSE, _APART = 0.055, 0.09
# Pixels.
_LEGIBLE = 1500
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "touche-llm",
    "text.parse_math": False,
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    **{f"{each}.color": INKS["ink"] for each in ("text", "xtick", "ytick")},
    "axes.labelcolor": INKS["ink"],
    "axes.edgecolor": INKS["grid"],
    "grid.color": INKS["grid"],
}


def topic_bars(measure: Measure, titles: Mapping[str, tuple[str, str]]) -> Markup:
    """Each topic's value of a measure beside the first stage's, the best first.

    Args:
        measure: has values by topic.
        titles: by topic id, the anchor of its place on the page and what to call it; of the topics that are there.
    """
    by_topic = sorted((measure.by_topic or {}).items(), key=lambda item: -item[1][0])
    figure, axes = _axes(max(4.0, 0.25 * len(by_topic) + 1.2), 2.9)
    places = range(len(by_topic))
    hints: dict[str, str] = {}
    for name, offset, values in (
        ("first", 0.2, [first for _, (_, first) in by_topic]),
        ("run", -0.2, [value for _, (value, _) in by_topic]),
    ):
        heights = [value or 0.0 for value in values]
        bars = axes.bar([place + offset for place in places], heights, 0.4, color=INKS[name])
        for bar, (topic, (value, first)) in zip(bars, by_topic, strict=True):
            anchor, title = titles.get(topic, ("", ""))
            bar.set_gid(f"{name}-{len(hints)}")
            before = "" if first is None else f", first stage {first:.3f}"
            hints[bar.get_gid() or ""] = f"{topic} {title}: {value:.3f}{before}"
            if anchor:
                bar.set_url(f"#{anchor}")
    axes.set_xticks(list(places), [topic for topic, _ in by_topic], fontsize=8)
    axes.set_xlim(-0.7, len(by_topic) - 0.3)
    axes.set_ylim(0.0, 1.0)
    axes.set_ylabel(measure.name)
    axes.set_xlabel("topic")
    axes.grid(axis="y")
    return _svg(figure, f"{measure.name} of each topic, the run beside the first stage", hints)


def topic_letters(
    name: str, by_topic: Sequence[Mapping[str, float]], baseline: int, titles: Mapping[str, tuple[str, str]]
) -> Markup:
    """Each topic's value of a measure in several runs, a letter for each run; the best for the baseline first.

    Args:
        name: of the measure.
        by_topic: for each run the value of each topic that takes part.
        baseline: which of the runs it is; topics that it lacks come last.
        titles: as in `topic_bars`.
    """
    topics = sorted(
        dict.fromkeys(topic for of_run in by_topic for topic in of_run),
        key=lambda topic: -by_topic[baseline].get(topic, -1.0),
    )
    groups = {topic: _groups([of_run.get(topic) for of_run in by_topic]) for topic in topics}
    slot = max(0.23, 0.04 + _APART * max(len(group) for found in groups.values() for group in found))
    figure, axes = _axes(max(4.0, slot * len(topics) + 0.9), 3.2)
    hints: dict[str, str] = {}
    for place, topic in enumerate(topics):
        anchor, title = titles.get(topic, ("", ""))
        values = {LETTERS[n]: of_run[topic] for n, of_run in enumerate(by_topic) if topic in of_run}
        # What is pointed at, from the bottom to the top; the letters lie on it.
        strip = axes.bar(place * slot, 1.12, slot, bottom=-0.06, color=INKS["strip"])[0]
        strip.set_gid(f"topic-{place}")
        hints[f"topic-{place}"] = f"{topic} {title}: " + ", ".join(f"{at} {value:.3f}" for at, value in values.items())
        if anchor:
            strip.set_url(f"#{anchor}")
        least, most = min(values.values()), max(values.values())
        axes.bar(place * slot, most - least, 0.02, bottom=least, color=INKS["grid"])
        for group in groups[topic]:
            for n, (side, value) in enumerate(group):
                x = place * slot + (n - (len(group) - 1) / 2) * _APART
                axes.text(
                    x,
                    value,
                    LETTERS[side],
                    color=INKS[_SIDES[side]],
                    fontsize=8,
                    weight="bold",
                    ha="center",
                    va="center",
                )
    axes.set_xticks([place * slot for place in range(len(topics))], topics, fontsize=8)
    axes.set_xlim(-0.6 * slot, (len(topics) - 0.4) * slot)
    axes.set_ylim(-0.06, 1.06)
    axes.set_ylabel(name)
    axes.set_xlabel("topic")
    axes.grid(axis="y")
    return _svg(figure, f"{name} of each topic in {len(by_topic)} runs", hints)


def _groups(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The runs and their values, those together whose letters would lie over each other."""
    groups: list[list[tuple[int, float]]] = []
    for side, value in sorted(((n, v) for n, v in enumerate(values) if v is not None), key=lambda each: each[1]):
        if groups and value - groups[-1][-1][1] < _TOO_CLOSE:
            groups[-1].append((side, value))
        else:
            groups.append([(side, value)])
    return [sorted(group) for group in groups]


def movement(moved: Mapping[str, list[int]], way: str) -> Markup:
    """Where the documents at the top came from, or went to.

    Args:
        moved: for each group of ranks how many documents came from each band, or went to it; see `Report.moved`.
        way: what the bands are ranks of.
    """
    shares = {f"places {group}": [count / max(sum(counts), 1) for count in counts] for group, counts in moved.items()}
    return _shares(shares, _BANDS, f"Ranks by {way} of the documents at the top")


def stance_bars(stances: Mapping[str, Mapping[str, float]], labels: Sequence[str]) -> Markup:
    """The share of each label in several sets of documents."""
    shares = {name: [shares[label] for label in labels] for name, shares in stances.items()}
    return _shares(shares, _STANCES, "The stances of several sets of documents")


def _shares(rows: Mapping[str, Sequence[float]], inks: Sequence[str], description: str) -> Markup:
    """A bar for each row, made of shares in these inks."""
    figure, axes = _axes(5.4, 0.36 * len(rows) + 0.25)
    for place, shares in enumerate(rows.values()):
        left = 0.0
        for ink, share in zip(inks, shares, strict=False):
            axes.barh(place, share, 0.7, left=left, color=INKS[ink])
            if share >= _LEAST_LABELLED:
                text = axes.text(left + share / 2, place, f"{share:.0%}", ha="center", va="center", fontsize=9)
                # The page's style has a colour for texts on each ink.
                text.set_gid(f"on-{ink}-{place}")
            left += share
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    axes.set_xticks([])
    axes.spines[["bottom", "left"]].set_visible(False)
    return _svg(figure, description, {})


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches, not bound to a window."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _SETTINGS]):
        figure = Figure(figsize=(width, height), layout="tight")
        axes = figure.add_subplot()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    return figure, axes


def _svg(figure: Figure, description: str, hints: Mapping[str, str]) -> Markup:
    """A figure as an element of a page.

    Args:
        figure: as it was drawn.
        description: for those who cannot see it.
        hints: what is said of the elements of these ids.
    """
    from matplotlib import style

    stream = io.BytesIO()
    with style.context(["default", _SETTINGS]):
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ET.fromstring(stream.getvalue())
    for parent in list(root.iter()):
        for child in [each for each in parent if each.tag in (f"{_SVG}metadata", f"{_SVG}defs")]:
            parent.remove(child)
    for element in root.iter():
        _fit(element, hints)
    box = [float(each) for each in root.attrib["viewBox"].split()]
    # A point of the figure is a pixel and a quarter of the page.
    width, height = (length * 1.25 for length in box[2:])
    # On a wide page figures become as wide as it is at most, but those that could not be read then.
    name = "figure" if width < _LEGIBLE else "figure long"
    root.attrib |= {"role": "img", "width": f"{width:.0f}", "height": f"{height:.0f}", "class": name}
    _hint(root, description)
    return Markup(ET.tostring(root, encoding="unicode"))


def _fit(element: ET.Element, hints: Mapping[str, str]) -> None:
    """Make one element fit for the page; see the module."""
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
    # What is drawn lies within the axes, and ids would have to differ between figures.
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
