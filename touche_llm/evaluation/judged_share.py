"""Share of judged documents among those that a measure looks at."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from touche_llm.data.measure import Measure
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.qrels import Qrels
from touche_llm.evaluation.significance import Estimate, estimate_mean


def estimate_judged(
    run: ParsedRun, qrels: Qrels, measure: Measure, topics: Collection[str]
) -> Estimate:
    """Estimate judged@k over judged topics: the share of judged documents among those that a measure looks at.

    The k is the measure's cutoff. The missing places of a shorter ranking are unjudged, as they are
    no hits for P@5 (Judged@5 of ir-measures divides by the number of documents). Without a cutoff
    the whole ranking counts.
    """
    judged = qrels.judgments_of(measure.aspect)
    documents = {topic: judged[topic] for topic in topics}
    return estimate_share(run, documents, measure.cutoff)


def estimate_share(
    run: ParsedRun, judged: Mapping[str, Collection[str]], cutoff: int | None
) -> Estimate:
    """Estimate the share of judged documents among the first `cutoff` of each judged topic.

    Args:
        run: Run to measure.
        judged: Judged documents by topic.
        cutoff: Number of first documents, by which the share is divided even if the ranking is
            shorter; None for the whole ranking.
    """
    shares: dict[str, float] = {}
    for topic, documents in judged.items():
        top = run.rankings.get(topic, [])[:cutoff]
        hits = sum(candidate.document_id in documents for candidate in top)
        places = len(top) if cutoff is None else cutoff
        shares[topic] = hits / max(places, 1)
    return estimate_mean(shares)
