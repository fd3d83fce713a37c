"""Fusion of rankings."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """Fuse the rankings of one topic by the weighted mean of their documents' values, which are from 0 to 1.

    With `rrf` (reciprocal rank fusion: Cormack, Clarke and Büttcher, SIGIR 2009), the value is 1/(k
    + rank), divided by that of rank 1, whatever the scores. With `interpolation`, it is the score,
    scaled to 0..1 within the ranking; 1 if all are equal. A document that a ranking lacks has the
    value 0 there. Ties are broken by the rank in the first ranking that has the document, then by
    which ranking that is.

    Args:
        rankings: Rankings, of which at least one has a weight above 0.
        formula: Formula of the values.
    """
    # Dividing by the largest weight prevents overflow and underflow.
    largest_weight = max(weighted.weight for weighted in rankings)
    shares = [weighted.weight / largest_weight for weighted in rankings]

    terms: dict[str, list[float]] = {}
    first_places: dict[str, tuple[int, int]] = {}
    for number, (weighted, share) in enumerate(zip(rankings, shares, strict=True)):
        values = _list_values(weighted.ranking, formula)
        for rank, (scored, value) in enumerate(zip(weighted.ranking, values, strict=True), start=1):
            terms.setdefault(scored.document_id, []).append(share * value)
            first_places.setdefault(scored.document_id, (rank, number))

    # fsum is exact, so ties of the formula are ties here, whatever the order of the rankings.
    total = math.fsum(shares)
    fused = [ScoredDocument(document, math.fsum(terms[document]) / total) for document in terms]
    return sorted(fused, key=lambda scored: (-scored.score, first_places[scored.document_id]))


def _list_values(ranking: Ranked, formula: FusionFormula) -> list[float]:
    """Return the values of a ranking's documents, from 0 to 1, by rank or by score."""
    if formula.method == "interpolation":
        return scale_scores(ranking)
    return [(formula.k + 1) / (formula.k + rank) for rank in range(1, len(ranking) + 1)]


def fuse_candidates(
    rankings: Sequence[list[Candidate]], weights: Sequence[float], k: float
) -> list[Candidate]:
    """Fuse candidates of one topic by their reciprocal ranks, with one weight per ranking."""
    weighted = [
        WeightedRanking(ranking, weight) for ranking, weight in zip(rankings, weights, strict=True)
    ]
    fused = fuse(weighted, FusionFormula(method="rrf", k=k))
    if not fused:
        return []

    topic_id = next(candidate.topic_id for ranking in rankings for candidate in ranking)
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

        If scores are interpolated, a document without a score in a ranking that has a weight is not
        fused, and the scores of that ranking are scaled over the others.

        Args:
            documents: Documents to fuse.
            earlier: Rankings, the latest first, since it breaks ties.

        Returns:
            Fused documents; none if there is no document or no weight, as for a topic that could
            not be compared.
        """
        given = set(documents)
        fused = set(documents)
        rankings: list[WeightedRanking] = []
        for named in earlier:
            weight = self.weights.get(named.name, 1.0)
            ranking = named.ranking.fill_scores()
            if self.method == "interpolation" and weight > 0:
                ranking = named.ranking.scored
                fused.difference_update(named.ranking.unscored)

            kept = [scored for scored in ranking if scored.document_id in given]
            rankings.append(WeightedRanking(kept, weight))

        has_weight = any(weighted.weight for weighted in rankings)
        if not fused or not has_weight:
            return []
        return [scored for scored in fuse(rankings, self) if scored.document_id in fused]


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
