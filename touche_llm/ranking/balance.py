"""Balance of stances in a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from touche_llm.ranking.registry import RankingStep, ReorderingMethod, register
from touche_llm.ranking.scores import JudgedRanking, TopicInputs


class BalanceSettings(ReorderingMethod):
    """Limits on how far a document may rise because of its side.

    Attributes:
        margin: Maximum difference of judged scores (0 to 1) by which a document may pass a better
            one.
        places: Maximum number of places that a document may rise.
    """

    margin: float = Field(0.05, ge=0.0)
    places: int = Field(3, ge=1)

    def reorder(self, documents: list[str], topic: TopicInputs) -> list[str]:
        """Balance the sides of documents, whatever scores the steps gave them."""
        return balance(
            documents,
            list_balance_scores(topic.judged),
            topic.stances,
            topic.sides,
            self,
        )


# Judged scores are at least 0, so with a margin below 1 a document without a grade of its own stays
# behind the judged ones, and one without a judgment behind both.
_SCORE_OF_INHERITED = -1.0
_SCORE_OF_UNJUDGED = -2.0


def list_balance_scores(judged: JudgedRanking) -> dict[str, float]:
    """Return the score by which `balance` compares each document of a topic.

    Documents without a grade of their own have fixed scores below those of the judged ones.
    """
    scores = {document.document_id: document.score for document in judged.judged}
    for document_id in judged.inherited:
        scores[document_id] = _SCORE_OF_INHERITED
    for document_id in judged.unjudged:
        scores[document_id] = _SCORE_OF_UNJUDGED
    return scores


def balance(
    documents: Sequence[str],
    scores: Mapping[str, float],
    stances: Mapping[str, str],
    sides: Sequence[str],
    settings: BalanceSettings,
) -> list[str]:
    """Reorder documents of about equal judged score so that their sides alternate.

    The places are filled from the first. If the last document with a side is PRO, the next place
    goes to the first remaining document with another side that may rise so far. If there is none,
    it goes to the next document.

    Args:
        documents: Documents, best first.
        scores: Score of each document, see `list_balance_scores`.
        stances: Stance of each document.
        sides: Stances that take a side, as PRO and CON.
        settings: Limits on the rise of a document.
    """
    waiting: list[_Contender] = []
    for place, document in enumerate(documents):
        contender = _Contender(
            document_id=document,
            place=place,
            score=scores[document],
            stance=stances[document],
        )
        waiting.append(contender)

    # Without a wanted side, `_choose` returns the next document.
    wanted_sides: list[str] = []
    balanced: list[str] = []
    for place in range(len(documents)):
        chosen = _choose(waiting, place, wanted_sides, settings)
        waiting.remove(chosen)
        balanced.append(chosen.document_id)
        if chosen.stance in sides:
            wanted_sides = [side for side in sides if side != chosen.stance]
    return balanced


@dataclass(frozen=True, slots=True, eq=False)
class _Contender:
    """A document that has no place in the balanced ranking yet.

    Attributes:
        place: Place in the given ranking, from 0.
        score: Judged score.
    """

    document_id: str
    place: int
    score: float
    stance: str


def _choose(
    contenders: Sequence[_Contender],
    target_place: int,
    wanted_sides: Sequence[str],
    settings: BalanceSettings,
) -> _Contender:
    """Return the first contender with a wanted side that may rise to a place, or else the next one.

    A contender may rise a limited number of places, and only if its score is close to the highest
    score among the contenders that it passes.

    Args:
        contenders: Documents without a place, in the order of the given ranking.
        target_place: Place to fill, from 0.
        wanted_sides: Sides of which one is wanted.
        settings: Limits on the rise of a document.
    """
    next_contender = contenders[0]
    best_passed_score = next_contender.score
    for contender in contenders:
        rise = contender.place - target_place
        if rise > settings.places:
            # Later contenders would rise even further.
            break

        is_close = contender.score >= best_passed_score - settings.margin
        if is_close and contender.stance in wanted_sides:
            return contender
        best_passed_score = max(best_passed_score, contender.score)
    return next_contender


register(
    RankingStep(
        name="balance",
        method=BalanceSettings,
        summary=(
            "sides take turns: a document rises by at most 3 places, past others whose judgments are "
            "at most 0.05 better"
        ),
        needs_sides=True,
        order=90,
    )
)
