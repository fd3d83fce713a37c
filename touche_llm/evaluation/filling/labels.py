"""Labels of a judge as a pool takes them: whole numbers, most probable ones or bins of grades."""

from __future__ import annotations

import numpy as np

from touche_llm.evaluation.filling.pool import DocumentValues
from touche_llm.evaluation.judges.labels import LabelSet

# With more, a bin has too few judged documents of each grade.
MAX_BINS = 8


def bin_labels(judge: LabelSet, people: LabelSet) -> tuple[DocumentValues, int]:
    """Return the label of each document, by topic and document, and the number of labels.

    Where the judge has probabilities, labels are bins of its expected grade: a model may give
    nearly all documents the same most probable label. The bounds are quantiles over the documents
    that people judged too.
    """
    if not judge.probabilities:
        return judge.labels, len(judge.categories)

    judged = [
        grade
        for topic, documents in judge.grades.items()
        for document, grade in documents.items()
        if (topic, document) in people
    ]
    if not judged:
        return judge.labels, len(judge.categories)

    shares = np.arange(1, MAX_BINS) / MAX_BINS
    bounds = np.unique(np.quantile(judged, shares))
    binned = {
        topic: {
            document: int(np.searchsorted(bounds, grade, side="right"))
            for document, grade in documents.items()
        }
        for topic, documents in judge.grades.items()
    }
    return binned, len(bounds) + 1
