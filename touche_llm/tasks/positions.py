"""Stances from two fields of an answer: whether a document takes a position, and its side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from touche_llm.data.records import Reading


def combine_position(
    position: Reading,
    side: Reading,
    labels: Sequence[str],
    neutral_label: str,
) -> Reading:
    """Return the reading of a stance from those of the position and of the side.

    A side has the probability of YES times its own, the neutral label has that of NO. The side is
    read after the position that the model wrote, so for a document with an unlikely position it is
    the side to which the document leans.

    Args:
        position: Reading of whether the document takes a position, YES or NO.
        side: Reading of the label, any but the neutral one.
        labels: All labels of the stance, in their order.
        neutral_label: Label of a document that takes no position.

    Returns:
        Reading of the stance; without probabilities if one of the two has none.
    """
    takes_position = position.label != "NO"
    answered = side.answered if takes_position else neutral_label
    if position.probabilities is None or side.probabilities is None:
        return Reading(answered=answered)

    return Reading(
        answered=answered,
        probabilities=_combine_probabilities(
            position.probabilities,
            side.probabilities,
            labels,
            neutral_label,
        ),
        off_label_mass=_combine_off_label_masses(position, side),
        shared=max(position.shared or 0.0, side.shared or 0.0),
    )


def _combine_probabilities(
    position: Mapping[str, float],
    side: Mapping[str, float],
    labels: Sequence[str],
    neutral_label: str,
) -> dict[str, float]:
    """Return the probability of each label, from those of YES and NO and of the sides."""
    probabilities: dict[str, float] = {}
    for label in labels:
        if label == neutral_label:
            probability = position["NO"]
        else:
            probability = position["YES"] * side[label]
        probabilities[label] = round(probability, 9)
    return probabilities


def _combine_off_label_masses(position: Reading, side: Reading) -> float:
    """Return the probability that at least one of two fields has no label; unknown counts as 0."""
    position_is_label = 1.0 - (position.off_label_mass or 0.0)
    side_is_label = 1.0 - (side.off_label_mass or 0.0)
    return round(1.0 - position_is_label * side_is_label, 9)
