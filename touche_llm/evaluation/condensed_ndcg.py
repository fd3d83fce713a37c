"""nDCG over the judged documents alone, as in the script of the organisers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from touche_llm.data.measure import MeasureName
from touche_llm.evaluation.registry import GradedTopic, TopicMeasure, register

# Errors of the script, which are not repeated: if a document occurs twice, its value can exceed 1,
# and if two spaces separate columns, it stops. `read_run` rejects the first and reads the second.
# The script takes a run with two tags for two runs; here it is one.


def compute_condensed_ndcg(topic: GradedTopic) -> float | None:
    """Compute a topic's nDCG@5 like the organisers' script of 2022.

    The script is webis.de/events/touche-22/evaluate.py. The ranking is cut to the first 5. Then
    unjudged documents are dropped, and the others move up. The ideal ranking is that of all judged
    documents of the topic.

    Returns:
        The value; None if the topic does not count in the mean, since no judged document is among
        the first 5, or no grade of the topic is above 0.
    """
    gains = {document_id: _to_gain(grade) for document_id, grade in topic.grades.items()}
    ranked_ids = [candidate.document_id for candidate in topic.top]
    ranked_gains = [gains[document_id] for document_id in ranked_ids if document_id in gains]
    ideal_gains = sorted(gains.values(), reverse=True)[: topic.cutoff]

    ideal_dcg = _compute_dcg(ideal_gains)
    if not ranked_gains or ideal_dcg == 0.0:
        return None
    return _compute_dcg(ranked_gains) / ideal_dcg


def _to_gain(grade: float) -> int:
    """Return a grade without its decimals; 0 for a grade below 0 (the script knows only -2)."""
    return max(int(grade), 0)


def _compute_dcg(gains: Sequence[int]) -> float:
    """Return the discounted cumulative gain of a ranking with these gains, best rank first."""
    discounts = np.log2(np.arange(len(gains)) + 2.0)
    return float(np.sum(np.array(gains) / discounts))


register(
    TopicMeasure(
        name=MeasureName.TOUCHE_NDCG,
        definition=(
            "the organisers' script: the first five by rank, of these the unjudged dropped; topics "
            "without a judged document there, or without a grade of 1 or more, left out"
        ),
        reference="webis.de/events/touche-22/evaluate.py",
        compute=compute_condensed_ndcg,
        order=50,
    )
)
