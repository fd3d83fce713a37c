"""Balance of stances in a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from touche_llm.data.records import ScoredDocument
from touche_llm.settings.section import Section


class BalanceSettings(Section):
    """Limits on how far a document may rise because of its side.

    Attributes:
        margin: Maximum difference of judged scores (0 to 1) by which a document may pass a better
            one.
        places: Maximum number of places that a document may rise.
    """

    margin: float = Field(0.05, ge=0.0)
    places: int = Field(3, ge=1)


def balance(
    ranking: Sequence[ScoredDocument],
    scores: Mapping[str, float],
    stances: Mapping[str, str],
    sides: Sequence[str],
    settings: BalanceSettings,
) -> list[ScoredDocument]:
    """Reorder documents of about equal judged score so that their sides alternate.

    Each place goes to the first later document that may rise that far and takes another side than
    the last document with a side, or else to the next document. Scores stay with the places, so
    they still decrease.
    """
    left = [(place, scored.document_id) for place, scored in enumerate(ranking)]
    order: list[str] = []
    last = None
    while left:
        chosen = 0
        passed = scores[left[0][1]]
        for position, (place, document) in enumerate(left):
            rises = place - len(order)
            if rises > settings.places:
                break
            is_other_side = (
                last is not None and stances[document] in sides and stances[document] != last
            )
            if is_other_side and scores[document] >= passed - settings.margin:
                chosen = position
                break
            passed = max(passed, scores[document])
        document = left.pop(chosen)[1]
        order.append(document)
        if stances[document] in sides:
            last = stances[document]
    return [
        ScoredDocument(document, scored.score)
        for document, scored in zip(order, ranking, strict=True)
    ]
