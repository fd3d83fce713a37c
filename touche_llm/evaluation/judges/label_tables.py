"""Measures of agreement that are computed from a table of people's labels and a judge's.

A table counts documents, with a row for each label of people and a column for each label of the
judge. All functions take tables of shape (…, rows, columns) and return values of shape (…); a value
that is 0 / 0 is NaN, as in scikit-learn and scipy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from touche_llm.evaluation.intervals import Array


def compute_kappa(tables: Array) -> Array:
    """Compute Cohen's kappa of square tables.

    kappa = 1 - (observed disagreement) / (disagreement expected by chance) (J. Cohen, A coefficient
    of agreement for nominal scales, Educational and Psychological Measurement 20, 1960).
    """
    labels = tables.shape[-1]
    return _compute_weighted_kappa(tables, 1.0 - np.eye(labels))


def compute_quadratic_kappa(tables: Array) -> Array:
    """Compute Cohen's kappa of square tables with ascending grades, with quadratic weights.

    A disagreement counts as the square of the difference of the places of both grades (J. Cohen,
    Weighted kappa, Psychological Bulletin 70, 1968).
    """
    places = np.arange(tables.shape[-1], dtype=np.float64)
    return _compute_weighted_kappa(tables, np.square(places[:, np.newaxis] - places))


def _compute_weighted_kappa(tables: Array, weights: Array) -> Array:
    """Compute kappa, in which a disagreement counts as much as the weight of its cell.

    Args:
        tables: Square tables.
        weights: Weight of each cell, of shape (rows, columns).
    """
    counts_of_people = _sum_rows(tables)
    counts_of_judge = _sum_columns(tables)
    documents = counts_of_people.sum(axis=-1)

    # Both disagreements are multiplied by the squared number of documents.
    observed_disagreement = documents * _sum_weighted_cells(tables, weights)
    weights_by_judge = counts_of_people @ weights
    expected_disagreement = (weights_by_judge * counts_of_judge).sum(axis=-1)
    return 1.0 - _divide(observed_disagreement, expected_disagreement)


def _sum_weighted_cells(tables: Array, weights: Array) -> Array:
    """Sum the cells times their weights, (…, rows, columns) to (…)."""
    cells = tables.reshape(*tables.shape[:-2], weights.size)
    return np.asarray(cells @ weights.ravel())


def compute_label_f1(tables: Array) -> Array:
    """Compute F1 of each label, of shape (…, labels): 2 tp / (2 tp + fp + fn)."""
    hits = tables.diagonal(axis1=-2, axis2=-1)
    # A hit occurs in both.
    occurrences = _sum_rows(tables) + _sum_columns(tables)
    return _divide(2.0 * hits, occurrences)


def compute_macro_f1(tables: Array) -> Array:
    """Compute the mean F1 of the labels that people or the judge use."""
    f1_by_label = compute_label_f1(tables)
    is_used = ~np.isnan(f1_by_label)
    used_labels = is_used.sum(axis=-1).astype(np.float64)
    sums = np.where(is_used, f1_by_label, 0.0).sum(axis=-1)
    return _divide(sums, used_labels)


def compute_accuracy(tables: Array) -> Array:
    """Compute the share of documents for which both have the same label."""
    hits = tables.diagonal(axis1=-2, axis2=-1).sum(axis=-1)
    return _divide(hits, tables.sum(axis=(-2, -1)))


def compute_spearman(tables: Array) -> Array:
    """Compute Spearman's rank correlation of ascending grades; ties have their mean rank."""
    counts_of_people = _sum_rows(tables)
    counts_of_judge = _sum_columns(tables)
    ranks_of_people = _rank_grades(counts_of_people)
    ranks_of_judge = _rank_grades(counts_of_judge)

    # Ranks are centred, so that these sums are proportional to the covariance and the variances.
    rank_products = ranks_of_people[..., :, np.newaxis] * ranks_of_judge[..., np.newaxis, :]
    covariance = (rank_products * tables).sum(axis=(-2, -1))
    variance_of_people = (np.square(ranks_of_people) * counts_of_people).sum(axis=-1)
    variance_of_judge = (np.square(ranks_of_judge) * counts_of_judge).sum(axis=-1)
    return _divide(covariance, np.sqrt(variance_of_people * variance_of_judge))


def _rank_grades(counts: Array) -> Array:
    """Return the mean rank of the documents of each grade, minus the mean of all ranks."""
    documents = counts.sum(axis=-1, keepdims=True)
    return np.asarray(np.cumsum(counts, axis=-1) - counts / 2.0 - documents / 2.0)


def compute_auc(tables: Array, grades: Sequence[int], threshold: int) -> Array:
    """Compute the area under the ROC curve of a judge that has to find relevant documents.

    It is the probability that the judge grades a random relevant document higher than a random
    other one; equal grades count half.

    Args:
        tables: Tables with ascending grades of the judge.
        grades: Grades of people, the rows.
        threshold: Lowest grade of people of a relevant document.
    """
    is_relevant = np.array(grades) >= threshold
    relevant = tables[..., is_relevant, :].sum(axis=-2)
    others = tables[..., ~is_relevant, :].sum(axis=-2)

    # For each grade of the judge, the others with a lower one, and half of those with the same.
    lower_others = np.cumsum(others, axis=-1) - others / 2.0
    wins = (relevant * lower_others).sum(axis=-1)
    pairs = relevant.sum(axis=-1) * others.sum(axis=-1)
    return _divide(wins, pairs)


def _sum_rows(tables: Array) -> Array:
    """Sum each row, (…, rows, columns) to (…, rows).

    By a product, which is several times faster than a sum over a short axis.
    """
    rows, columns = tables.shape[-2:]
    cells = tables.reshape(*tables.shape[:-2], rows * columns)
    # Of shape (cells, rows): 1 if the cell belongs to the row.
    is_in_row = np.repeat(np.eye(rows), columns, axis=0)
    return np.asarray(cells @ is_in_row)


def _sum_columns(tables: Array) -> Array:
    """Sum each column, (…, rows, columns) to (…, columns).

    By a product, which is several times faster than a sum over a short axis.
    """
    rows, columns = tables.shape[-2:]
    cells = tables.reshape(*tables.shape[:-2], rows * columns)
    # Of shape (cells, columns): 1 if the cell belongs to the column.
    is_in_column = np.tile(np.eye(columns), (rows, 1))
    return np.asarray(cells @ is_in_column)


def _divide(numerators: Array, denominators: Array) -> Array:
    """Divide; 0 / 0 is NaN."""
    undefined = np.full(np.shape(denominators), np.nan)
    return np.asarray(np.divide(numerators, denominators, out=undefined, where=denominators > 0.0))
