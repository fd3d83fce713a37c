"""Stances from two fields of an answer: whether a document takes a position, and its side."""

from __future__ import annotations

from collections.abc import Sequence

from touche_llm.data.records import Reading


def combine_position(
    position: Reading, side: Reading, labels: Sequence[str], without: str
) -> Reading:
    """Return the reading of a stance: the probability of YES times that of each side, or the probability of NO.

    The side, one of the labels but `without`, is read after the position that the model wrote, so
    for a document with an unlikely position it is the side to which the document leans.
    """
    answered = without if position.answered == "NO" else side.answered
    if position.probabilities is None or side.probabilities is None:
        return Reading(answered=answered)
    yes, no = position.probabilities["YES"], position.probabilities["NO"]
    shares = {
        label: no if label == without else yes * side.probabilities[label] for label in labels
    }
    inside = (1.0 - (position.off_label_mass or 0.0)) * (1.0 - (side.off_label_mass or 0.0))
    return Reading(
        answered=answered,
        probabilities={label: round(share, 9) for label, share in shares.items()},
        off_label_mass=round(1.0 - inside, 9),
        shared=max(position.shared or 0.0, side.shared or 0.0),
    )
