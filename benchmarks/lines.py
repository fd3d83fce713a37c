"""Straight lines through measured points, and a picture of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_MARKERS = "osD^v"


@dataclass(frozen=True)
class Line:
    """A straight line through measured points, least squares.

    Attributes:
        what: grows.
        unit: of it.
        by: what it grows with, in the singular.
        points: x and y of each measurement, two different x at least.
        goal: the x that it is followed to.
    """

    what: str
    unit: str
    by: str
    points: Sequence[tuple[float, float]]
    goal: float

    @property
    def slope_and_intercept(self) -> tuple[float, float]:
        """Slope in units per x, and the value at x = 0."""
        xs, ys = zip(*self.points, strict=True)
        slope, intercept = np.polyfit(xs, ys, 1)
        return float(slope), float(intercept)

    @overload
    def at(self, x: float) -> float: ...
    @overload
    def at(self, x: Numbers) -> Numbers: ...
    def at(self, x: float | Numbers) -> float | Numbers:
        """The line's value at a place, or at several."""
        slope, intercept = self.slope_and_intercept
        return slope * x + intercept

    @property
    def off(self) -> float:
        """How far the line is from a measured point at most, as a share of what was measured there."""
        return max(abs(self.at(x) - y) / y for x, y in self.points)

    def describe(self) -> str:
        """What the line comes to at its goal, in words."""
        if self.slope_and_intercept[0] <= 0:
            return f"does not rise with the {self.by}s measured"
        value = self.at(self.goal)
        hours = f", {value / 3600:,.1f} h" if self.unit == "s" and value >= 3600 else ""
        number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        return f"{number} {self.unit}{hours} at {self.goal:,.0f} {self.by}s"

    def reaches(self, y: float) -> float:
        """The x at which the line comes to `y`; infinite where it does not rise."""
        slope, intercept = self.slope_and_intercept
        return (y - intercept) / slope if slope > 0 else float("inf")


def memory_gib() -> float:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def draw(path: Path, lines: dict[str, Line]) -> None:
    """Draw the lines as SVG: measured points on them, dashed where nothing was measured."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Picture

    panels = {
        "First stage": (
            "passages",
            "seconds, GB or GiB",
            ("index", "retrieve", "disk", "index memory", "retrieve memory"),
        ),
        "Judge stage": (
            "topics",
            "tokens, requests, seconds or GiB",
            ("tokens", "computed", "requests", "client", "client memory"),
        ),
    }
    with rc_context({"svg.hashsalt": "touche-llm", "font.size": 10.0, "axes.spines.top": False}):
        picture = Picture(figsize=(11, 5), layout="constrained", facecolor="white")
        for axes, (title, (by, units, names)) in zip(picture.subplots(1, 2), panels.items(), strict=True):
            for colour, name in enumerate(names):
                line, ink = lines[name], f"C{colour}"
                low, high = min(line.points)[0], max(line.points)[0]
                rises = line.slope_and_intercept[0] > 0
                for style, ends in [("-", (low, high)), ("--", (high, line.goal))][: 1 + rises]:
                    xs = np.geomspace(*ends, 200)
                    ys = line.at(xs)
                    axes.plot(xs[ys > 0], ys[ys > 0], style, color=ink, linewidth=1.4)
                label = line.what if line.unit in line.what.split() else f"{line.what}, {line.unit}"
                axes.plot(*zip(*line.points, strict=True), _MARKERS[colour], color=ink, label=label)
            if by == "passages":
                axes.axhline(memory_gib(), color="0.5", linewidth=1, linestyle=":", label="memory of the machine, GiB")
            axes.set(title=title, xscale="log", yscale="log", xlabel=by, ylabel=units)
            axes.grid(color="0.9")
            axes.set_axisbelow(True)
            axes.spines["right"].set_visible(False)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False)
        picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
