"""Share of judged documents among those that a measure looks at."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from touche_llm.data.measure import Measure, MeasureName
from touche_llm.data.records import Candidate
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.registry import GradedTopic, TopicMeasure, register
from touche_llm.evaluation.significance import Estimate, estimate_mean


def estimate_judged(
    run: ParsedRun, qrels: Qrels, measure: Measure, topics: Collection[str]
) -> Estimate:
    """Estimate the share of judged documents among those that a measure looks at.

    nDCG@5 looks at the first 5 documents of a ranking, and a measure without a cutoff at all of
    them. The missing places of a shorter ranking count as unjudged.

    Args:
        run: Run that is measured.
        qrels: Judgments by assessors.
        measure: Measure.
        topics: Judged topics; the estimate is the mean of their shares.
    """
    judged = qrels.judgments_of(measure.aspect)
    shares: dict[str, float] = {}
    for topic_id in topics:
        ranking = run.rankings.get(topic_id, [])
        shares[topic_id] = _compute_share(ranking, judged[topic_id], measure.cutoff)
    return estimate_mean(shares)


def _compute_share(
    ranking: Sequence[Candidate], judged: Collection[str], cutoff: int | None
) -> float:
    """Compute the share of judged documents among the first ones of a topic.

    Args:
        ranking: Documents, best first.
        judged: Judged documents of the topic.
        cutoff: Number of first documents, by which the share is divided even if the ranking is
            shorter; None for the whole ranking.
    """
    # Judged@5 of ir-measures divides by the number of documents instead; P@5 divides by 5 as here.
    top = ranking[:cutoff]
    hits = sum(candidate.document_id in judged for candidate in top)
    places = len(top) if cutoff is None else cutoff
    return hits / max(places, 1)


def compute_judged_share(topic: GradedTopic) -> float:
    """Compute judged@k of a topic, see `estimate_judged`."""
    return _compute_share(topic.ranking, topic.grades, topic.cutoff)


register(
    TopicMeasure(
        name=MeasureName.JUDGED,
        definition=(
            "share of the first places with a document that somebody judged; those of a shorter "
            "ranking count as not judged"
        ),
        compute=compute_judged_share,
        is_compared=False,
        order=40,
    )
)
