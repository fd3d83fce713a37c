"""Judgments that pairs inherit from pairs in the other order."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.data.records import Candidate, Judgment
from touche_llm.kinds.pairs.documents import SEPARATOR
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.tasks.parts import NO_SIDE


def inherit_judgment(
    candidate: Candidate, judgments: Mapping[str, Judgment], settings: PairSettings
) -> Judgment:
    """Return the judgment that a pair inherits: the mean grades of its sentences, and their common side."""
    one, other = (judgments[sentence] for sentence in candidate.document_id.split(SEPARATOR))
    return Judgment(
        topic_id=candidate.topic_id,
        document_id=candidate.document_id,
        grades={name: (grade + other.grades[name]) / 2 for name, grade in one.grades.items()},
        stance=choose_side(one, settings.no_side_above),
        source="inherited",
        prompt=one.prompt,
    )


def choose_side(judgment: Judgment, no_side_above: float) -> str:
    """Return the side of a sentence: none if that is probable enough, else the most probable of the others."""
    shares = judgment.readings["stance"].shares
    if shares.get(NO_SIDE, 0.0) > no_side_above:
        return NO_SIDE
    sides = {side: share for side, share in shares.items() if side != NO_SIDE}
    highest = max(sides.values(), default=0.0)
    most_probable = [side for side, share in sides.items() if share == highest]
    return most_probable[0] if len(most_probable) == 1 else NO_SIDE
