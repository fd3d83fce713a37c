"""Orders of documents by scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from touche_llm.data.records import Candidate, Judgment, ScoredDocument
from touche_llm.judging.grades import combine_grades
from touche_llm.tasks.parts import Scale

# Documents of one topic with their scores, best first.
Ranked = Sequence[ScoredDocument | Candidate]


def score_positions(documents: Sequence[str]) -> list[ScoredDocument]:
    """Give documents, best first, evenly decreasing scores from 1 that stay above 0."""
    ranking: list[ScoredDocument] = []
    for place, document in enumerate(documents):
        score = 1.0 - place / len(documents)
        ranking.append(ScoredDocument(document, score))
    return ranking


def rank_by_value(values: Mapping[str, float | None]) -> list[ScoredDocument]:
    """Rank documents by descending value, equal ones in the given order.

    A document whose value is None keeps its given place, with the score of the document above it,
    or 1 at the first place.
    """
    ranking = _rank_known_values(values)
    # Places are filled from the first to the last, so that an insertion moves no document without
    # a value, and the document above has its final place.
    for place, (document, value) in enumerate(values.items()):
        if value is not None:
            continue
        score_above = 1.0 if place == 0 else ranking[place - 1].score
        ranking.insert(place, ScoredDocument(document, score_above))
    return ranking


def _rank_known_values(values: Mapping[str, float | None]) -> list[ScoredDocument]:
    """Rank the documents that have a value by descending value, equal ones in the given order."""
    known: list[ScoredDocument] = []
    for document, value in values.items():
        if value is not None:
            known.append(ScoredDocument(document, value))
    return sorted(known, key=lambda scored: -scored.score)


def scale_scores(ranking: Ranked) -> list[float]:
    """Scale the scores of a ranking to 0..1; return 1 for all if they are equal."""
    scores = [scored.score for scored in ranking]
    if not scores:
        return []

    lowest = min(scores)
    span = max(scores) - lowest
    if span == 0:
        return [1.0] * len(scores)
    return [(score - lowest) / span for score in scores]


@dataclass(frozen=True, slots=True)
class PartialRanking:
    """A ranking of one topic's documents, of which the last ones may have no score.

    Attributes:
        scored: Documents with a score, best first.
        unscored: Documents below them, in their order.
    """

    scored: list[ScoredDocument]
    unscored: list[str]

    def __len__(self) -> int:
        return len(self.scored) + len(self.unscored)

    @property
    def documents(self) -> list[str]:
        """Ids of all documents, best first."""
        return [document.document_id for document in self.scored] + self.unscored

    def take(self, depth: int) -> PartialRanking:
        """Return the ranking of the first `depth` documents."""
        unscored_depth = max(depth - len(self.scored), 0)
        return PartialRanking(self.scored[:depth], self.unscored[:unscored_depth])

    def drop(self, depth: int) -> PartialRanking:
        """Return the ranking of the documents below the first `depth`."""
        unscored_depth = max(depth - len(self.scored), 0)
        return PartialRanking(self.scored[depth:], self.unscored[unscored_depth:])

    def reorder(self, documents: Sequence[str]) -> PartialRanking:
        """Return a ranking of the same documents in another order.

        The first places keep their scores, whichever documents take them; the last places may have
        no score.
        """
        scored: list[ScoredDocument] = []
        for document, scored_place in zip(documents, self.scored, strict=False):
            scored.append(ScoredDocument(document, scored_place.score))
        unscored = list(documents[len(scored) :])
        return PartialRanking(scored, unscored)

    def fill_scores(self) -> list[ScoredDocument]:
        """Return all documents, those without a score with the lowest one of the others, or 0."""
        lowest = min((document.score for document in self.scored), default=0.0)
        return self.scored + [ScoredDocument(document, lowest) for document in self.unscored]


@dataclass(frozen=True, slots=True)
class JudgedRanking:
    """A ranking of one topic's documents by their judgments.

    Attributes:
        judged: Judged documents, best first.
        inherited: Documents with inherited grades, in first-stage order; below the judged ones.
        unjudged: Documents without a judgment, in first-stage order; below the others.
    """

    judged: list[ScoredDocument]
    inherited: list[str]
    unjudged: list[str]

    @property
    def ranking(self) -> PartialRanking:
        """Ranking of all documents, of which only the judged ones have a score."""
        return PartialRanking(self.judged, self.inherited + self.unjudged)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInputs:
    """Documents of one topic before the steps.

    Attributes:
        first_stage: Documents in first-stage order, with scores from 0 to 1.
        judged: The same documents ranked by their judgments.
        stances: Stance of each document.
        sides: Stances that take a side.
    """

    first_stage: list[ScoredDocument]
    judged: JudgedRanking
    stances: Mapping[str, str]
    sides: Sequence[str]


@dataclass(frozen=True, slots=True)
class NamedRanking:
    """The ranking of the first stage or of a step, which a later step may fuse."""

    name: str
    ranking: PartialRanking


def rank_by_first_stage(candidates: list[Candidate]) -> list[ScoredDocument]:
    """Rank the candidates of one topic in their order, with scores scaled to 0..1 (1 if all are equal)."""
    scores = scale_scores(candidates)
    return [
        ScoredDocument(candidate.document_id, score)
        for candidate, score in zip(candidates, scores, strict=True)
    ]


def rank_by_judgment(
    first_stage: list[ScoredDocument],
    judgments: Mapping[str, Judgment],
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> JudgedRanking:
    """Rank the documents of one topic by their judgments.

    A judged document's score is the weighted mean of its grades and the first-stage score; equal
    scores keep their first-stage order. Inherited grades give no score, since the first-stage order
    is based on them.

    Args:
        first_stage: Documents, best first.
        judgments: Judgments by document.
        weights: Weights of the grades and of the first stage, by name.
        scales: Scale of each grade.
    """
    judged: list[ScoredDocument] = []
    inherited: list[str] = []
    unjudged: list[str] = []
    for document in first_stage:
        document_id = document.document_id
        judgment = judgments.get(document_id)
        if judgment is None:
            unjudged.append(document_id)
        elif judgment.source == "inherited":
            inherited.append(document_id)
        else:
            score = combine_grades(judgment, weights, scales, document.score)
            judged.append(ScoredDocument(document_id, score))

    best_first = sorted(judged, key=lambda document: -document.score)
    return JudgedRanking(best_first, inherited, unjudged)
