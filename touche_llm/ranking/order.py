"""From what a method found to a ranking with scores between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from touche_llm.records import Scored


def by_position(documents: Sequence[str]) -> list[Scored]:
    """A ranking that is known by its order alone: the scores fall evenly from 1 and stay above 0."""
    return [Scored(each, 1.0 - place / len(documents)) for place, each in enumerate(documents)]


def by_value(values: Mapping[str, float]) -> list[Scored]:
    """Documents by descending value; equal ones in the order in which they are given."""
    return [Scored(each, value) for each, value in sorted(values.items(), key=lambda item: -item[1])]
