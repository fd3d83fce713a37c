"""Grades of unjudged documents, estimated from a judge's labels.

The judge's labels are not taken as they are. On judged documents it is seen with which probability
the judge gives each label to a document of each grade (its confusion). The mix of grades of the
unjudged documents is not that of judged ones, since documents that one team found are worse than
those that many found: it is estimated from their labels by expectation maximisation (Saerens,
Latinne and Decaestecker, Neural Computation 14(1), 2002). The prior is the mix of judged documents
that one team found, with the mean that is predicted for this team.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from touche_llm.evaluation.filling.pool import NONE, Booleans, Floats, Integers, SystemPool
from touche_llm.evaluation.filling.team_means import predict_mean_grade, tilt_mix

# The prior of the mix counts as many documents if its mean cannot be predicted for the team.
_PRIOR_DOCUMENTS = 10.0
# The confusion of all judged documents counts as many for those that one team found.
_CONFUSION_DOCUMENTS = 20.0
# The same for drawn documents: the mix of the others, and their confusion, whose weight is seen on
# the drawn documents.
_DRAWN_MIX_DOCUMENTS = 15.0
_DRAWN_CONFUSION_DOCUMENTS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# Probability that the judge's labels of drawn documents are higher by so many than its others.
_SHIFTS = {-1: 0.25, 0: 0.5, 1: 0.25}
# The shares of all labels count as many documents for each grade, half of one for each label.
_SMOOTHING = 0.5
_MAX_ROUNDS = 200
_PRECISION = 1e-5


@dataclass(frozen=True, slots=True)
class DocumentDraw:
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

    def leave_out(self, number: int) -> DocumentDraw:
        """Return the sample without one of its documents."""
        return DocumentDraw(
            np.delete(self.documents, number), np.delete(self.probabilities, number)
        )


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


def fit_grade_model(pool: SystemPool, team: int, drawn: DocumentDraw | None = None) -> GradeModel:
    """Return the model of the unjudged documents of a team.

    Args:
        pool: Pool with at least one judged document that the judge labelled.
        team: Team whose unjudged documents these are.
        drawn: Documents drawn from the unjudged ones, judged since; None if none were.
    """
    if drawn is None or len(drawn.documents) == 0:
        return _fit_to_judged(pool, team, without=np.array([], dtype=np.int64))
    model = _fit_to_judged(pool, team, without=drawn.documents)
    return _add_drawn(pool, drawn, model)


def fit_without_each_drawn(
    pool: SystemPool, team: int, drawn: DocumentDraw
) -> Iterator[GradeModel]:
    """Yield the models of `fit_grade_model` without each of the drawn documents."""
    model = _fit_to_judged(pool, team, without=drawn.documents)
    for number in range(len(drawn.documents)):
        yield _add_drawn(pool, drawn.leave_out(number), model)


def _fit_to_judged(pool: SystemPool, team: int, *, without: Integers) -> GradeModel:
    """Return the model by judged documents alone, except some."""
    is_usable = pool.is_judged & (pool.labels != NONE)
    is_usable[without] = False
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

    # So that no grade is impossible.
    mix = _normalise(counts_of_one_team.sum(axis=1) + 1e-3)
    predicted = predict_mean_grade(pool, team)
    if predicted is None:
        return GradeModel(confusion, mix, _PRIOR_DOCUMENTS)
    return GradeModel(confusion, tilt_mix(mix, predicted.grade), predicted.documents)


def _add_drawn(pool: SystemPool, drawn: DocumentDraw, model: GradeModel) -> GradeModel:
    """Return the model in which drawn documents count most, since they are of the unjudged ones."""
    weights = drawn.weights
    grades = pool.grades[drawn.documents]
    labels = pool.labels[drawn.documents]

    has_label = labels != NONE
    counts = np.zeros((pool.grade_count, pool.label_count))
    np.add.at(counts, (grades[has_label], labels[has_label]), weights[has_label])
    grade_counts = np.bincount(grades, weights=weights, minlength=pool.grade_count)
    return GradeModel(
        confusion=_shrink_adaptively(counts, model.confusion),
        mix=_normalise(grade_counts + _DRAWN_MIX_DOCUMENTS * model.mix),
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


def _shrink_adaptively(counts: Floats, shares: Floats) -> Floats:
    """Return the shares of counts, drawn towards other shares as far as the counts agree with them.

    A judge may rate these documents a label higher or lower than others. So it is the mean over
    such shifts and over weights of the other shares, each by the probability of the counts under
    the Dirichlet-multinomial distribution.

    Args:
        counts: Counts, (grades, labels).
        shares: Shares by row, (grades, labels).
    """
    shifted = np.array([_shift_labels(shares, shift) for shift in _SHIFTS])
    documents = np.array(_DRAWN_CONFUSION_DOCUMENTS)[:, np.newaxis, np.newaxis]
    # (shifts, numbers of documents, grades, labels)
    pseudo_counts = shifted[:, np.newaxis] * documents

    prior = np.array(list(_SHIFTS.values()))[:, np.newaxis]
    logs = np.log(prior) + _log_likelihood(counts, pseudo_counts)
    likelihoods = np.exp(logs - logs.max())
    probabilities = likelihoods / likelihoods.sum()
    return np.asarray(np.tensordot(probabilities, _normalise(counts + pseudo_counts), axes=2))


def _shift_labels(shares: Floats, shift: int) -> Floats:
    """Return the shares of labels, (grades, labels), if each label is higher by a shift.

    A tenth of each row keeps its labels, so that no label is impossible.
    """
    if shift == 0:
        return shares

    shifted = np.zeros_like(shares)
    labels = np.arange(shares.shape[1])
    targets = np.clip(labels + shift, 0, shares.shape[1] - 1)
    for label, target in zip(labels, targets, strict=True):
        shifted[:, target] += shares[:, label]
    return 0.9 * shifted + 0.1 * shares


def _log_likelihood(counts: Floats, pseudo_counts: Floats) -> Floats:
    """Return the log-probability of counts by the Dirichlet-multinomial distribution.

    Args:
        counts: Counts, (grades, labels).
        pseudo_counts: Parameters of several distributions, (..., grades, labels).

    Returns:
        Log-probabilities, (...), without what all distributions have in common.
    """
    totals = pseudo_counts.sum(axis=-1)
    of_rows = gammaln(totals) - gammaln(totals + counts.sum(axis=-1))
    of_labels = gammaln(pseudo_counts + counts) - gammaln(pseudo_counts)
    return np.asarray(of_rows.sum(axis=-1) + of_labels.sum(axis=(-2, -1)))


def _normalise(values: Floats) -> Floats:
    """Return values divided by their sum, along the last axis."""
    return np.asarray(values / values.sum(axis=-1, keepdims=True))
