"""Random draws of unjudged documents for people to judge."""

from __future__ import annotations

import numpy as np

from touche_llm.evaluation.filling.grades import DocumentDraw, fit_grade_model
from touche_llm.evaluation.filling.pool import NONE, Floats, Integers, SystemPool

# Added to the doubt of the judge, in grades, so that a document without doubt can be drawn.
_LEAST_DOUBT = 0.3


def draw_documents(
    pool: SystemPool, team: int, number: int, random: np.random.Generator
) -> DocumentDraw:
    """Draw unjudged documents of a team at random, those that matter more often.

    A document matters by the ranks at which the systems have it and by the judge's doubt about its
    grade. Systematic sampling in random order (Madow, Annals of Mathematical Statistics 20(3),
    1949) draws exactly `number` documents with known probabilities.

    Args:
        pool: Pool of the systems.
        team: Team whose documents are drawn.
        number: Number of documents; all are drawn if there are fewer.
        random: Source of randomness.
    """
    unjudged = pool.list_unjudged(team)
    probabilities = compute_probabilities(_weigh(pool, team, unjudged), number)
    order = random.permutation(len(unjudged))
    ends = np.cumsum(probabilities[order])
    starts = ends - probabilities[order]
    offset = random.random()
    is_drawn = np.floor(ends - offset + 1e-9) > np.floor(starts - offset + 1e-9)
    drawn = np.sort(order[is_drawn])
    return DocumentDraw(unjudged[drawn], probabilities[drawn])


def compute_probabilities(weights: Floats, number: int) -> Floats:
    """Return the probability of each item to be among `number` drawn ones, in proportion to its weight.

    Items whose probability would be above 1 are drawn for certain.

    Args:
        weights: Weights above 0, (items,).
        number: Number of items to draw; all are drawn if there are fewer.
    """
    if number >= len(weights):
        return np.ones(len(weights))

    is_certain = np.zeros(len(weights), dtype=np.bool_)
    while True:
        left = number - is_certain.sum()
        probabilities = np.where(is_certain, 1.0, weights * left / weights[~is_certain].sum())
        is_above = (probabilities >= 1.0) & ~is_certain
        if not is_above.any():
            return probabilities
        is_certain |= is_above


def _weigh(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return how much each document matters to the measures of a team's systems."""
    tops = pool.tops[pool.list_systems(team)]
    discounts = np.broadcast_to(pool.discounts, tops.shape)
    is_document = tops != NONE
    importance = np.bincount(
        tops[is_document],
        weights=discounts[is_document],
        minlength=len(pool.documents),
    )
    posteriors = fit_grade_model(pool, team).estimate(pool.labels[documents])
    return np.asarray(importance[documents] * (_measure_doubt(posteriors) + _LEAST_DOUBT))


def _measure_doubt(probabilities: Floats) -> Floats:
    """Return the standard deviation of grades by their probabilities, (documents,)."""
    grades = np.arange(probabilities.shape[1])
    means = probabilities @ grades
    variances = probabilities @ (grades**2) - means**2
    return np.asarray(np.sqrt(np.maximum(variances, 0.0)))
