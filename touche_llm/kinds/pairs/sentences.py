"""Judged sentences that pairs are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from touche_llm.corpus.store import PartPlace
from touche_llm.data.records import Candidate, Judgment
from touche_llm.judging.grades import combine_grades
from touche_llm.kinds.pairs.inheritance import choose_side
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.tasks.parts import NO_SIDE, Scale

# Labels of the role of a sentence.
_CLAIM = "CLAIM"
_NO_ROLE = "NONE"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A judged sentence that takes a side.

    Attributes:
        id: Id of the sentence.
        argument: Row of its argument in the corpus.
        place: Row of the sentence in the corpus.
        side: Label of the side that it takes.
        score: Its quality, from 0 to 1.
        claim: Probability that it is a claim minus the probability that it is a premise.
        rank: Its rank in the first stage.
    """

    id: str
    argument: int
    place: int
    side: str
    score: float
    claim: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSelector:
    """Selector of the sentences to pair.

    Attributes:
        locate: Returns the place of a sentence in the corpus.
        settings: Threshold of the side.
        weights: Weight of each aspect.
        scales: Scale of each aspect.
    """

    locate: Callable[[str], PartPlace]
    settings: PairSettings
    weights: Mapping[str, float]
    scales: Mapping[str, Scale]

    def select(
        self,
        candidates: Iterable[Candidate],
        judgments: Mapping[str, Judgment],
    ) -> list[Sentence]:
        """Select the judged sentences of a topic that take a side, best first.

        Args:
            candidates: Sentences of the topic; those without a judgment are left out.
            judgments: Judgments by sentence id.
        """
        selected: list[Sentence] = []
        for candidate in candidates:
            judgment = judgments.get(candidate.document_id)
            if judgment is None:
                continue

            side = choose_side(judgment, self.settings.no_side_above)
            if side != NO_SIDE:
                selected.append(self._make_sentence(candidate, judgment, side))
        return sorted(selected, key=lambda sentence: (-sentence.score, sentence.rank))

    def _make_sentence(self, candidate: Candidate, judgment: Judgment, side: str) -> Sentence:
        """Return a judged sentence with its score.

        The score is the weighted mean of its grades, times the probability that it argues, times
        that of its side. A sentence that is no argument, or on no clear side, scores low however
        well it is written.
        """
        roles = judgment.readings["role"].shares
        claim_share = roles.get(_CLAIM, 0.0)
        no_role_share = roles.get(_NO_ROLE, 0.0)
        # A sentence is a claim, a premise or neither, so the share of premises is
        # `1 - claim_share - no_role_share`. The score is `claim_share` minus that share: from -1
        # for a clear premise to 1 for a clear claim.
        claim_score = 2 * claim_share + no_role_share - 1.0

        argument_share = 1.0 - no_role_share
        side_share = judgment.readings["stance"].shares[side]
        mean_grade = combine_grades(judgment, self.weights, self.scales)

        place = self.locate(candidate.document_id)
        return Sentence(
            id=candidate.document_id,
            argument=place.document,
            place=place.row,
            side=side,
            score=argument_share * side_share * mean_grade,
            claim=claim_score,
            rank=candidate.rank,
        )
