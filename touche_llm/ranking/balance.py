"""Both sides of an issue near the top: documents of about equal worth take turns by the side they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from touche_llm.data.records import ScoredDocument


class BalanceSettings(BaseModel):
    """How far a document may rise for its side.

    Attributes:
        margin: a document passes no other one that is better by more than this, by their judgments (0 to 1).
        places: by so many places at most.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    margin: float = Field(0.05, ge=0.0)
    places: int = Field(3, ge=1)


def balance(
    ranking: Sequence[ScoredDocument],
    worth: Mapping[str, float],
    stances: Mapping[str, str],
    sides: Sequence[str],
    settings: BalanceSettings,
) -> list[ScoredDocument]:
    """The same documents, alternating between the sides among those of about equal worth.

    At each place stands the next document or, if one of those after it that may rise that far takes another side than
    the last one with a side, the first of those. Scores stay with the places, so that they still fall.

    Args:
        ranking: best first.
        worth: the score of each document by its judgment: methods that compare give an order, and no scores to hold
            against each other.
        stances: the label of each document.
        sides: the labels that take a side.
        settings: how far.
    """
    left = [(place, each.document_id) for place, each in enumerate(ranking)]
    order: list[str] = []
    last = None
    while left:
        chosen = 0
        passed = worth[left[0][1]]
        for position, (place, document) in enumerate(left):
            rises = place - len(order)
            if rises > settings.places:
                break
            turn = last is not None and stances[document] in sides and stances[document] != last
            if turn and worth[document] >= passed - settings.margin:
                chosen = position
                break
            passed = max(passed, worth[document])
        document = left.pop(chosen)[1]
        order.append(document)
        if stances[document] in sides:
            last = stances[document]
    return [ScoredDocument(document, each.score) for document, each in zip(order, ranking, strict=True)]
