"""Brier score of label probabilities, with its parts, and reliability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from touche_llm.evaluation.intervals import Array

# Bins of equal width, as in most reliability tables.
BINS = 10


@dataclass(frozen=True, slots=True)
class BrierParts:
    """Brier score of label probabilities, and its parts.

    score = reliability - resolution + uncertainty + within_bins (A. H. Murphy, A new vector
    partition of the probability score, 1973; the last part is 0 if all probabilities in a bin are
    equal: D. B. Stephenson et al., Two extra components in the Brier score decomposition, 2008).

    Attributes:
        score: Mean over the documents of the squared errors of all their probabilities, from 0 to 2.
        reliability: How far probabilities are from the shares of true labels; 0 is best.
        resolution: How far the shares differ from bin to bin; the higher the better.
        uncertainty: Score of the judge that gives each label its share among all documents.
        within_bins: What probabilities vary within their bins.
    """

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    within_bins: float


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Probabilities of all labels within a range.

    Attributes:
        low: Lowest probability of the bin.
        high: Highest probability of the bin; it belongs to the next one unless it is 1.
        count: Number of probabilities, one for each label of a document.
        mean: Mean probability.
        share: Share of them whose label is true.
    """

    low: float
    high: float
    count: int
    mean: float
    share: float


def compute_brier_score(probabilities: Array, truth: NDArray[np.intp]) -> float:
    """Compute the Brier score, from 0 to 2, of one document or more.

    Args:
        probabilities: Of shape (documents, labels).
        truth: Index of the true label of each document.
    """
    return float(np.square(probabilities - _one_hot(probabilities, truth)).sum(axis=1).mean())


def decompose_brier_score(probabilities: Array, truth: NDArray[np.intp]) -> BrierParts:
    """Decompose the Brier score of one document or more over `BINS` bins.

    Each part is the sum over the labels.

    Args:
        probabilities: Of shape (documents, labels).
        truth: Index of the true label of each document.
    """
    outcomes = _one_hot(probabilities, truth)
    base_rates = outcomes.mean(axis=0)

    reliability = 0.0
    resolution = 0.0
    for label, base_rate in enumerate(base_rates):
        bins = _bin_documents(probabilities[:, label], outcomes[:, label])
        calibration_errors = np.square(bins.mean_probabilities - bins.true_shares)
        differences_of_bins = np.square(bins.true_shares - base_rate)
        reliability += float((bins.weights * calibration_errors).sum())
        resolution += float((bins.weights * differences_of_bins).sum())

    score = compute_brier_score(probabilities, truth)
    uncertainty = float((base_rates * (1.0 - base_rates)).sum())
    explained = reliability - resolution + uncertainty
    return BrierParts(
        score=score,
        reliability=reliability,
        resolution=resolution,
        uncertainty=uncertainty,
        within_bins=score - explained,
    )


@dataclass(frozen=True, slots=True)
class _DocumentBins:
    """Documents by the bin of the probability of one label; an entry for each bin that has any.

    Attributes:
        weights: Share of all documents.
        mean_probabilities: Mean probability of the label.
        true_shares: Share of the bin's documents for which the label is true.
    """

    weights: Array
    mean_probabilities: Array
    true_shares: Array


def _bin_documents(probabilities: Array, outcomes: Array) -> _DocumentBins:
    """Return the bins of documents by the probability of one label.

    Args:
        probabilities: Probability of the label, of shape (documents,).
        outcomes: 1 for documents for which it is true, and 0 for the others.
    """
    bins = _assign_bins(probabilities)
    counts = np.bincount(bins, minlength=BINS).astype(np.float64)
    probability_sums = np.bincount(bins, weights=probabilities, minlength=BINS)
    outcome_sums = np.bincount(bins, weights=outcomes, minlength=BINS)

    is_used = counts > 0.0
    used_counts = counts[is_used]
    return _DocumentBins(
        weights=used_counts / len(probabilities),
        mean_probabilities=probability_sums[is_used] / used_counts,
        true_shares=outcome_sums[is_used] / used_counts,
    )


def list_reliability(probabilities: Array, truth: NDArray[np.intp]) -> list[ReliabilityBin]:
    """Return the bins with at least one probability, in ascending order.

    Args:
        probabilities: Of shape (documents, labels).
        truth: Index of the true label of each document.
    """
    outcomes = _one_hot(probabilities, truth).ravel()
    flat_probabilities = probabilities.ravel()
    bins = _assign_bins(flat_probabilities)

    reliability: list[ReliabilityBin] = []
    for index in np.unique(bins).tolist():
        is_in_bin = bins == index
        bin_ = ReliabilityBin(
            low=index / BINS,
            high=(index + 1) / BINS,
            count=int(is_in_bin.sum()),
            mean=float(flat_probabilities[is_in_bin].mean()),
            share=float(outcomes[is_in_bin].mean()),
        )
        reliability.append(bin_)
    return reliability


def _assign_bins(probabilities: Array) -> NDArray[np.intp]:
    """Return the bin of each probability; 1 is in the last one."""
    bins: NDArray[np.intp] = np.minimum((probabilities * BINS).astype(np.intp), BINS - 1)
    return bins


def _one_hot(probabilities: Array, truth: NDArray[np.intp]) -> Array:
    """Return 1 for the true label of each document and 0 for the others."""
    return np.eye(probabilities.shape[1])[truth]
