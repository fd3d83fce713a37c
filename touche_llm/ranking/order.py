"""Rankings with scores: of orders, values, the first stage and judgments, and fused from others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from touche_llm.data.records import Candidate, Judgment, RunLine, ScoredDocument
from touche_llm.data.trec_runs import NO_STANCE_COLUMN, ParsedRun, make_strictly_decreasing
from touche_llm.errors import UsageError
from touche_llm.judging.labels import combine_grades
from touche_llm.settings.section import Section
from touche_llm.tasks.definition import Scale
from touche_llm.tasks.task import Task


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


# Documents of one topic with their scores, best first.
Ranked = Sequence[ScoredDocument | Candidate]


def score_positions(documents: Sequence[str]) -> list[ScoredDocument]:
    """Give documents, best first, evenly decreasing scores from 1 that stay above 0."""
    return [
        ScoredDocument(document, 1.0 - place / len(documents))
        for place, document in enumerate(documents)
    ]


def rank_by_value(values: Mapping[str, float | None]) -> list[ScoredDocument]:
    """Rank documents by descending value, equal ones in the given order.

    A document whose value is None keeps its given place, with the score of the document above it.
    """
    known = [(document, value) for document, value in values.items() if value is not None]
    ranking = [
        ScoredDocument(document, value)
        for document, value in sorted(known, key=lambda item: -item[1])
    ]
    for place, (document, value) in enumerate(values.items()):
        if value is None:
            ranking.insert(
                place, ScoredDocument(document, ranking[place - 1].score if place else 1.0)
            )
    return ranking


def scale_scores(ranking: Ranked) -> list[float]:
    """Scale the scores of a ranking to 0..1; return 1 for all if they are equal."""
    lowest = min((scored.score for scored in ranking), default=0.0)
    span = max((scored.score for scored in ranking), default=0.0) - lowest
    return [(scored.score - lowest) / span if span else 1.0 for scored in ranking]


# Marks in place of scores, below every score, so that documents that the model judged stay above
# the others.
_INHERITED, _UNJUDGED = -1.0, -2.0


def is_judged(document: ScoredDocument) -> bool:
    """Return whether a document of a ranking has a score, not a mark of `rank_by_judgment`."""
    return document.score >= 0.0


def replace_marks(ranking: Sequence[ScoredDocument]) -> list[float]:
    """Return the scores of a ranking, the lowest of them in place of a mark: who scales scores knows no marks."""
    lowest = min((document.score for document in ranking if is_judged(document)), default=0.0)
    return [max(document.score, lowest) for document in ranking]


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
) -> list[ScoredDocument]:
    """Rank the documents by their judgments.

    A judged document's score is the weighted mean of its grades and the first-stage score; equal
    scores keep their first-stage order. Documents with inherited grades follow in first-stage
    order, which is based on those grades. Documents without a judgment come last, also in
    first-stage order. Both have a mark for a score, see `is_judged`.
    """

    def score(document: ScoredDocument) -> float:
        judgment = judgments.get(document.document_id)
        if judgment is None:
            return _UNJUDGED
        if judgment.source == "inherited":
            return _INHERITED
        return combine_grades(judgment, weights, scales, document.score)

    scored = [ScoredDocument(document.document_id, score(document)) for document in first_stage]
    return sorted(scored, key=lambda document: -document.score)


class FusionSettings(Section):
    """Settings of fusion: by rank (`rrf`, with its constant `k`) or by scaled score (`interpolation`).

    Attributes:
        weights: Weights of the first stage (`first_stage`) and of the steps, by name, where a step
            fuses these; 1 by default.
    """

    method: Literal["rrf", "interpolation"] = "rrf"
    k: float = Field(60.0, ge=0.0, allow_inf_nan=False)
    weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = {}


@dataclass(frozen=True, slots=True)
class FusedRun:
    """The fusion of several runs.

    Attributes:
        lines: Lines of the fused run, topic by topic.
        partial: Topics that some of the runs lack.
        disagreeing: Number of documents for which the runs have different stances.
        imputed: Number of documents whose stance is the task's label for an unknown one.
        left_out: Number of documents left out because no run has their stance and the task has no
            label for that.
    """

    lines: list[RunLine]
    partial: list[str]
    disagreeing: int
    imputed: int
    left_out: int


def fuse(
    rankings: Sequence[Ranked], weights: Sequence[float], settings: FusionSettings
) -> list[ScoredDocument]:
    """Fuse the rankings of one topic by the weighted mean of their documents' values, which are from 0 to 1.

    With `rrf` (reciprocal rank fusion: Cormack, Clarke and Büttcher, SIGIR 2009), the value is 1/(k
    + rank), divided by that of rank 1, whatever the scores. With `interpolation`, it is the score,
    scaled to 0..1 within the ranking; 1 if all are equal. A document that a ranking lacks has the
    value 0 there. Ties are broken by the rank in the first ranking that has the document, then by
    which ranking that is.

    There is one weight per ranking; a ranking has each document once.
    """
    # Dividing by the largest weight prevents overflow and underflow.
    shares = [weight / max(weights) for weight in weights]
    parts: dict[str, list[float]] = {}
    places: dict[str, tuple[int, int]] = {}
    for number, (ranking, share) in enumerate(zip(rankings, shares, strict=True), start=1):
        if settings.method == "rrf":
            values = [(settings.k + 1) / (settings.k + rank) for rank in range(1, len(ranking) + 1)]
        else:
            values = scale_scores(ranking)
        for rank, (scored, value) in enumerate(zip(ranking, values, strict=True), start=1):
            parts.setdefault(scored.document_id, []).append(share * value)
            places.setdefault(scored.document_id, (rank, number))
    # fsum is exact, so ties of the formula are ties here, whatever the order of the rankings.
    total = math.fsum(shares)
    fused = [ScoredDocument(document, math.fsum(part) / total) for document, part in parts.items()]
    return sorted(fused, key=lambda scored: (-scored.score, places[scored.document_id]))


def fuse_candidates(
    rankings: Sequence[list[Candidate]], weights: Sequence[float], k: float
) -> list[Candidate]:
    """Fuse candidates of one topic by their reciprocal ranks."""
    topic_id = next((candidate.topic_id for ranking in rankings for candidate in ranking), "")
    fused = fuse(rankings, weights, FusionSettings(k=k))
    return [
        Candidate(topic_id, scored.document_id, rank, scored.score)
        for rank, scored in enumerate(fused, start=1)
    ]


def fuse_runs(
    runs: Sequence[ParsedRun],
    weights: Sequence[float],
    settings: FusionSettings,
    *,
    task: Task | None,
    depth: int,
    tag: str,
) -> FusedRun:
    """Fuse runs topic by topic, each topic from the runs that have it, in the order of first occurrence.

    A document has the stance of the first run that gives it one. If no run has any stance, the
    column keeps `Q0`; else a document without one gets the task's label for an unknown stance, or
    is left out if the task has none.

    The runs are read with the labels of the task, which may be None if no document or every
    document has a stance.

    Raises:
        UsageError: Weights are missing, negative or all 0, only runs of weight 0 have a topic, or a
            task is needed.
    """
    if (
        len(weights) != len(runs)
        or not all(0 <= weight < math.inf for weight in weights)
        or not any(weights)
    ):
        given = ", ".join(map(str, weights))
        raise UsageError(
            f"weights: {given}; give one of at least 0 to each of {len(runs)} runs, not all 0"
        )
    has_stances = any(run.stances for run in runs)
    lines: list[RunLine] = []
    partial: list[str] = []
    disagreeing = imputed = left_out = 0
    for topic in dict.fromkeys(topic for run in runs for topic in run.rankings):
        weighted = [
            (run, weight)
            for run, weight in zip(runs, weights, strict=True)
            if topic in run.rankings
        ]
        if not any(weight for _, weight in weighted):
            raise UsageError(
                f"topic {topic}: only runs of weight 0 have it; weigh one of them, or leave them out"
            )
        if len(weighted) < len(runs):
            partial.append(topic)
        rankings = [run.rankings[topic] for run, _ in weighted]
        kept: list[tuple[ScoredDocument, str]] = []
        for scored in fuse(rankings, [weight for _, weight in weighted], settings):
            if len(kept) == depth:
                break
            key = topic, scored.document_id
            stances = [run.stances[key] for run, _ in weighted if key in run.stances]
            stance = (
                stances[0]
                if stances
                else _impute_stance(*key, task)
                if has_stances
                else NO_STANCE_COLUMN
            )
            disagreeing += len(set(stances)) > 1
            imputed += has_stances and not stances and stance is not None
            left_out += stance is None
            if stance is not None:
                kept.append((scored, stance))
        scores = make_strictly_decreasing([scored.score for scored, _ in kept])
        lines += [
            RunLine(topic, stance, scored.document_id, rank, score, tag)
            for rank, (score, (scored, stance)) in enumerate(
                zip(scores, kept, strict=True), start=1
            )
        ]
    return FusedRun(lines, partial, disagreeing, imputed, left_out)


def _impute_stance(topic: str, document: str, task: Task | None) -> str | None:
    """Return the task's label for an unknown stance, or None if it has none."""
    if task is None:
        raise UsageError(
            f"topic {topic}, document {document}: has no stance in any run, other documents have one; give "
            "`task: NAME`, whose label for an unknown stance it then gets"
        )
    return task.unknown_stance
