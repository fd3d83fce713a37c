"""Labels of a judge as a pool takes them, and how much they say about grades."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from touche_llm.evaluation.filling.pool import NONE, DocumentValues, Floats, Integers, SystemPool
from touche_llm.evaluation.judges.labels import LabelSet

# With more, a bin has too few judged documents of each grade.
MAX_BINS = 8


def bin_labels(judge: LabelSet, people: LabelSet) -> tuple[DocumentValues, int]:
    """Return the label of each document, by topic and document, and the number of labels.

    Where the judge has probabilities, labels are bins of its expected grade: a model may give
    nearly all documents the same most probable label. The bounds are quantiles over the documents
    that people judged too; a grade that many of them share has a bin of its own.
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
    used_places = np.unique(_find_places(judged, bounds))
    binned: dict[str, dict[str, int]] = {}
    for topic, grades in judge.grades.items():
        places = _find_places(list(grades.values()), bounds)
        bins = np.minimum(np.searchsorted(used_places, places), len(used_places) - 1)
        binned[topic] = dict(zip(grades, bins.tolist(), strict=True))
    return binned, len(used_places)


def _find_places(grades: Sequence[float], bounds: Floats) -> Integers:
    """Return the places of grades among bounds: odd for those that equal a bound."""
    below = np.searchsorted(bounds, grades, side="left")
    below_or_equal = np.searchsorted(bounds, grades, side="right")
    return np.asarray(below + below_or_equal)


def measure_explained_share(pool: SystemPool) -> float:
    """Return the share of the variance of people's grades that the judge's labels explain.

    It is that of judged documents which one team found, as unjudged ones are: the squared
    correlation ratio, corrected for the number of labels (Kelley, PNAS 21(9), 1935), and 0 where
    the correction would make it negative. NaN if the grades do not vary, or the documents are too
    few.
    """
    is_usable = pool.is_judged & (pool.labels != NONE) & (pool.is_found.sum(axis=0) == 1)
    grades = pool.grades[is_usable].astype(np.float64)
    labels = pool.labels[is_usable]
    counts = np.bincount(labels, minlength=pool.label_count)
    spare_documents = len(grades) - np.count_nonzero(counts)
    if spare_documents <= 0 or grades.std() == 0.0:
        return float("nan")

    sums = np.bincount(labels, weights=grades, minlength=pool.label_count)
    means = sums / np.maximum(counts, 1)
    variance_of_label = ((grades - means[labels]) ** 2).sum() / spare_documents
    explained = 1.0 - variance_of_label / grades.var(ddof=1)
    return max(0.0, float(explained))
