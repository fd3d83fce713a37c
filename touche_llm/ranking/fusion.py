"""Fusion of rankings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from touche_llm.data.records import Candidate, ScoredDocument
from touche_llm.ranking.registry import CombiningMethod, RankingStep, register
from touche_llm.ranking.scores import NamedRanking, Ranked, scale_scores
from touche_llm.settings.section import Section


class FusionFormula(Section):
    """How rankings are fused: by rank (`rrf`, with its constant `k`) or by scaled score (`interpolation`)."""

    method: Literal["rrf", "interpolation"] = "rrf"
    k: float = Field(60.0, ge=0.0, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class WeightedRanking:
    """A ranking of one topic, each document once, with its weight in a fusion."""

    ranking: Ranked
    weight: float


def fuse(rankings: Sequence[WeightedRanking], formula: FusionFormula) -> list[ScoredDocument]:
    """Fuse the rankings of one topic: a document's score is the weighted mean of its values.

    The formula gives a document a value from 0 to 1 in each ranking, by its rank or its score
    there. In a ranking that lacks the document, the value is 0. Ties are broken by the rank in the
    first ranking that has the document, then by which ranking that is.

    Args:
        rankings: Rankings, of which at least one has a weight above 0.
        formula: Formula of the values.
    """
    weights = _scale_weights(rankings)
    total_weight = math.fsum(weights)

    weighted_values: defaultdict[str, list[float]] = defaultdict(list)
    for weighted, weight in zip(rankings, weights, strict=True):
        values = _list_values(weighted.ranking, formula)
        for scored, value in zip(weighted.ranking, values, strict=True):
            weighted_values[scored.document_id].append(weight * value)

    fused: list[ScoredDocument] = []
    for document_id, terms in weighted_values.items():
        # fsum is exact, so ties of the formula are ties here, whatever the order of the rankings.
        score = math.fsum(terms) / total_weight
        fused.append(ScoredDocument(document_id, score))

    # Sorting is stable, so documents with equal scores and ranks stay in the order in which the
    # rankings first have them.
    first_ranks = _find_first_ranks(rankings)
    return sorted(fused, key=lambda scored: (-scored.score, first_ranks[scored.document_id]))


def _scale_weights(rankings: Sequence[WeightedRanking]) -> list[float]:
    """Return the weights divided by the largest, which prevents overflow and underflow."""
    largest_weight = max(weighted.weight for weighted in rankings)
    return [weighted.weight / largest_weight for weighted in rankings]


def _find_first_ranks(rankings: Sequence[WeightedRanking]) -> dict[str, int]:
    """Return the rank of each document in the first ranking that has it."""
    first_ranks: dict[str, int] = {}
    for weighted in rankings:
        for rank, scored in enumerate(weighted.ranking, start=1):
            # The rank in an earlier ranking stays.
            first_ranks.setdefault(scored.document_id, rank)
    return first_ranks


def _list_values(ranking: Ranked, formula: FusionFormula) -> list[float]:
    """Return the values of a ranking's documents, from 0 to 1, best first.

    With `rrf` (reciprocal rank fusion: Cormack, Clarke and Büttcher, SIGIR 2009), the value is 1/(k
    + rank), divided by that of rank 1. With `interpolation`, it is the score, scaled to 0..1 within
    the ranking; 1 if all are equal.
    """
    if formula.method == "interpolation":
        return scale_scores(ranking)
    return [(formula.k + 1) / (formula.k + rank) for rank in range(1, len(ranking) + 1)]


def fuse_candidates(
    rankings: Sequence[list[Candidate]], weights: Sequence[float], k: float
) -> list[Candidate]:
    """Fuse candidates of one topic by their reciprocal ranks, with one weight per ranking."""
    candidates = [candidate for ranking in rankings for candidate in ranking]
    if not candidates:
        return []

    topic_id = candidates[0].topic_id
    weighted_rankings = [
        WeightedRanking(ranking, weight) for ranking, weight in zip(rankings, weights, strict=True)
    ]
    fused = fuse(weighted_rankings, FusionFormula(method="rrf", k=k))
    return [
        Candidate(topic_id, scored.document_id, rank, scored.score)
        for rank, scored in enumerate(fused, start=1)
    ]


class FusionSettings(FusionFormula, CombiningMethod):
    """Settings of fusion: by rank (`rrf`, with its constant `k`) or by scaled score (`interpolation`).

    Attributes:
        weights: Weights of the first stage (`first_stage`) and of the steps, by name, where a step
            fuses these; 1 by default.
    """

    weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = {}

    def combine(
        self, documents: list[str], earlier: Sequence[NamedRanking]
    ) -> list[ScoredDocument]:
        """Fuse the rankings of documents by the first stage and the steps so far.

        To interpolate scores, a document needs a score in each ranking that has a weight; documents
        that lack one are left out of the result.

        Args:
            documents: Documents to fuse.
            earlier: Rankings, the latest first, since it breaks ties.

        Returns:
            Fused documents; none if there is no document or no weight, as for a topic that could
            not be compared.
        """
        fusable = set(documents)
        for named in earlier:
            if self._needs_scores(named):
                fusable.difference_update(named.ranking.unscored)

        # Documents that are left out of the result still count in the ranks and scales of the others.
        rankings = [self._weight_ranking(named, set(documents)) for named in earlier]
        has_weight = any(weighted.weight > 0 for weighted in rankings)
        if not fusable or not has_weight:
            return []
        return [scored for scored in fuse(rankings, self) if scored.document_id in fusable]

    def _get_weight(self, named: NamedRanking) -> float:
        """Return the weight of a ranking; 1 if the settings have none."""
        return self.weights.get(named.name, 1.0)

    def _needs_scores(self, named: NamedRanking) -> bool:
        """Return whether documents without a score in a ranking cannot be fused."""
        return self.method == "interpolation" and self._get_weight(named) > 0

    def _weight_ranking(self, named: NamedRanking, documents: Set[str]) -> WeightedRanking:
        """Return the ranking of some documents, with its weight in the fusion.

        If the fusion uses the scores of the ranking, documents without a score are left out, so that
        they do not count when the scores are scaled. If it uses the ranks, all documents have one.
        """
        if self._needs_scores(named):
            ranking = named.ranking.scored
        else:
            ranking = named.ranking.fill_scores()
        selected = [scored for scored in ranking if scored.document_id in documents]
        return WeightedRanking(selected, self._get_weight(named))


register(
    RankingStep(
        name="fusion",
        method=FusionSettings,
        summary=(
            "reciprocal ranks (or scores) of the first stage and all steps so far, with "
            "`ranking.fusion.weights`"
        ),
        order=80,
    )
)
