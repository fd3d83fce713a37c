"""Both sides of an issue near the top: documents of about equal score take turns by the side they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from touche_llm.records import Scored


class BalanceSettings(BaseModel):
    """`margin`: a document passes no other one whose score is higher by more than this; scores lie between 0 and 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    margin: float = Field(0.05, ge=0.0)


def balance(
    ranking: Sequence[Scored], stances: Mapping[str, str], sides: Sequence[str], settings: BalanceSettings
) -> list[Scored]:
    """The same documents, alternating between the sides where scores allow it.

    At each place stands the best document left or, if one that takes another side than the last one with a side is
    within the margin of it, the best of those. Scores stay with the places, so that they still fall.

    Args:
        ranking: best first.
        stances: the label of each document.
        sides: the labels that take a side.
        settings: the margin.
    """
    left = list(ranking)
    order: list[str] = []
    last = None
    while left:
        near = [each for each in left if each.score >= left[0].score - settings.margin]
        others = [each for each in near if stances[each.document_id] in sides and stances[each.document_id] != last]
        chosen = others[0] if others and last is not None else left[0]
        left.remove(chosen)
        order.append(chosen.document_id)
        if stances[chosen.document_id] in sides:
            last = stances[chosen.document_id]
    return [Scored(document, each.score) for document, each in zip(order, ranking, strict=True)]
