"""Judgments that pairs inherit from their sentences."""

from __future__ import annotations

from collections.abc import Mapping

from touche_llm.data.records import Candidate, Judgment
from touche_llm.kinds.pairs.documents import split_pair
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.tasks.parts import NO_SIDE


def inherit_judgment(
    pair: Candidate,
    judgments: Mapping[str, Judgment],
    settings: PairSettings,
) -> Judgment:
    """Return the judgment of a pair that the model did not judge: that of its sentences.

    It has the mean of their grades, and the side that they share.

    Args:
        pair: Pair of two judged sentences.
        judgments: Judgments of the topic's sentences, by sentence id.
        settings: Threshold of the side.
    """
    first_id, second_id = split_pair(pair.document_id)
    first = judgments[first_id]
    second = judgments[second_id]

    mean_grades: dict[str, float] = {}
    for aspect, grade in first.grades.items():
        mean_grades[aspect] = (grade + second.grades[aspect]) / 2

    return Judgment(
        topic_id=pair.topic_id,
        document_id=pair.document_id,
        grades=mean_grades,
        # Pairs are made only of sentences on the same side.
        stance=choose_side(first, settings.no_side_above),
        source="inherited",
        prompt=first.prompt,
    )


def choose_side(judgment: Judgment, no_side_above: float) -> str:
    """Return the most probable side of a sentence.

    Args:
        judgment: Judgment of the sentence.
        no_side_above: Probability of taking no side above which the sentence has none.

    Returns:
        Label of a side; `NO_SIDE` if that is probable enough, or if several sides are the most
        probable.
    """
    shares = judgment.readings["stance"].shares
    if shares.get(NO_SIDE, 0.0) > no_side_above:
        return NO_SIDE

    sides = {label: share for label, share in shares.items() if label != NO_SIDE}
    highest_share = max(sides.values(), default=0.0)
    most_probable = [side for side, share in sides.items() if share == highest_share]
    if len(most_probable) != 1:
        return NO_SIDE
    return most_probable[0]
