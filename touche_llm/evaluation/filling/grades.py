"""Grades of unjudged documents, estimated from a judge's labels.

The judge's labels are not taken as they are. On judged documents it is seen with which probability
the judge gives each label to a document of each grade (its confusion). The mix of grades of the
unjudged documents is not that of judged ones, since documents that one team found are worse than
those that many found: it is estimated from their labels by expectation maximisation (Saerens,
Latinne and Decaestecker, Neural Computation 14(1), 2002), with the mix of judged documents that one
team found as the prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from touche_llm.evaluation.filling.pool import NONE, Booleans, Floats, Integers, SystemPool

# The prior of the mix counts as many documents.
_PRIOR_DOCUMENTS = 10.0
# The confusion of all judged documents counts as many for those that one team found.
_CONFUSION_DOCUMENTS = 20.0
# The same for drawn documents: the confusion and the mix of the others.
_DRAWN_CONFUSION_DOCUMENTS = 3.0
_DRAWN_MIX_DOCUMENTS = 5.0
# The shares of all labels count as many documents for each grade, half of one for each label.
_SMOOTHING = 0.5
_MAX_ROUNDS = 200
_PRECISION = 1e-7


@dataclass(frozen=True, slots=True)
class DrawnSample:
    """Documents that people judged since they were drawn at random from the unjudged ones.

    Attributes:
        documents: Drawn documents, (drawn,).
        probabilities: Probability with which each was drawn, (drawn,).
    """

    documents: Integers
    probabilities: Floats

    @property
    def weights(self) -> Floats:
        """Number of documents for which each drawn one stands; their sum is the number drawn."""
        inverse = 1.0 / self.probabilities
        return np.asarray(inverse * (len(inverse) / inverse.sum()))

    def leave_out(self, number: int) -> DrawnSample:
        """Return the sample without one of its documents."""
        return DrawnSample(np.delete(self.documents, number), np.delete(self.probabilities, number))


@dataclass(frozen=True, slots=True)
class GradeModel:
    """What is known of unjudged documents before their labels are seen.

    Attributes:
        confusion: Probability of each label for each grade, (grades, labels).
        mix: Prior probability of each grade, (grades,).
        prior_documents: Number of documents that the prior counts as.
    """

    confusion: Floats
    mix: Floats
    prior_documents: float

    def estimate(self, labels: Integers) -> Floats:
        """Return the probability of each grade of documents, (documents, grades).

        Args:
            labels: Labels of the documents, (documents,); `NONE` for those without one.
        """
        likelihoods = self.confusion.T[labels]
        # A document without a label says nothing about its grade.
        likelihoods[labels == NONE] = 1.0

        mix = self.mix
        for _ in range(_MAX_ROUNDS):
            posteriors = _normalise(likelihoods * mix)
            counts = self.prior_documents * self.mix + posteriors.sum(axis=0)
            improved = counts / (self.prior_documents + len(labels))
            has_converged = np.abs(improved - mix).max() < _PRECISION
            mix = improved
            if has_converged:
                break
        return _normalise(likelihoods * mix)


def fit_grade_model(pool: SystemPool, drawn: DrawnSample | None = None) -> GradeModel:
    """Return the model of the unjudged documents of a pool.

    Args:
        pool: Pool with at least one judged document that the judge labelled.
        drawn: Documents drawn from the unjudged ones, judged since; None if none were.
    """
    drawn_documents = np.array([], dtype=np.int64) if drawn is None else drawn.documents
    is_usable = pool.is_judged & (pool.labels != NONE)
    is_usable[drawn_documents] = False
    is_of_one_team = is_usable & (pool.is_found.sum(axis=0) == 1)
    if not is_of_one_team.any():
        is_of_one_team = is_usable

    counts_of_all = _count(pool, is_usable)
    counts_of_one_team = _count(pool, is_of_one_team)
    # One more document of each label, so that none is impossible.
    label_shares = _normalise(counts_of_all.sum(axis=0) + 1.0)
    smoothing = _SMOOTHING * pool.label_count
    confusion_of_all = _shrink(counts_of_all, label_shares, smoothing)
    confusion = _shrink(counts_of_one_team, confusion_of_all, _CONFUSION_DOCUMENTS)

    grade_counts = counts_of_one_team.sum(axis=1)
    # So that no grade is impossible.
    mix = _normalise(grade_counts + 1e-3)
    if drawn is None or len(drawn.documents) == 0:
        return GradeModel(confusion, mix, _PRIOR_DOCUMENTS)
    return _add_drawn(pool, drawn, confusion, mix)


def _add_drawn(
    pool: SystemPool,
    drawn: DrawnSample,
    confusion: Floats,
    mix: Floats,
) -> GradeModel:
    """Return the model in which drawn documents count most, since they are of the unjudged ones."""
    weights = drawn.weights
    grades = pool.grades[drawn.documents]
    labels = pool.labels[drawn.documents]

    has_label = labels != NONE
    counts = np.zeros((pool.grade_count, pool.label_count))
    np.add.at(counts, (grades[has_label], labels[has_label]), weights[has_label])
    grade_counts = np.bincount(grades, weights=weights, minlength=pool.grade_count)
    drawn_mix = _normalise(grade_counts + _DRAWN_MIX_DOCUMENTS * mix)
    return GradeModel(
        confusion=_shrink(counts, confusion, _DRAWN_CONFUSION_DOCUMENTS),
        mix=drawn_mix,
        prior_documents=float(len(weights)),
    )


def _count(pool: SystemPool, is_chosen: Booleans) -> Floats:
    """Return the number of chosen documents by grade and label, (grades, labels)."""
    places = pool.grades[is_chosen] * pool.label_count + pool.labels[is_chosen]
    counts = np.bincount(places, minlength=pool.grade_count * pool.label_count)
    return counts.reshape(pool.grade_count, pool.label_count).astype(np.float64)


def _shrink(counts: Floats, shares: Floats, documents: float) -> Floats:
    """Return the shares of counts in each row, drawn towards other shares.

    Args:
        counts: Counts, (grades, labels).
        shares: Shares by row, (grades, labels), or the same for each, (labels,).
        documents: Number of documents that these shares count as.
    """
    return np.asarray(
        (counts + documents * shares) / (counts.sum(axis=1, keepdims=True) + documents)
    )


def _normalise(values: Floats) -> Floats:
    """Return values divided by their sum, along the last axis."""
    return np.asarray(values / values.sum(axis=-1, keepdims=True))
