"""Other ways to measure systems with unjudged documents, to compare with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from touche_llm.evaluation.filling.grades import fit_grade_model
from touche_llm.evaluation.filling.pool import NONE, Floats, Integers, SystemPool

# Samples of the bootstrapped nDCG.
_SAMPLES = 100


def measure_constant(pool: SystemPool, team: int, grade: float) -> Floats:
    """Return nDCG of a team's systems, (systems, topics), each unjudged document with one grade.

    With 0 and with the highest grade these are bounds.
    """
    gains = np.where(pool.is_judged, pool.grades, 0).astype(np.float64)
    gains[pool.list_unjudged(team)] = grade
    return pool.measure_ndcg(gains, pool.list_systems(team))


def measure_condensed(pool: SystemPool, team: int) -> Floats:
    """Return nDCG of the condensed lists of a team's systems, (systems, topics).

    Unjudged documents are left out, and those below move up (Sakai, SIGIR 2007).
    """
    # The last value is that of NONE.
    is_judged = np.append(pool.is_judged, False)
    is_behind = ~is_judged[pool.orders]
    places = np.argsort(is_behind, axis=2, kind="stable")
    orders = np.take_along_axis(np.where(is_behind, NONE, pool.orders), places, axis=2)
    gains = np.where(pool.is_judged, pool.grades, 0).astype(np.float64)
    return replace(pool, orders=orders).measure_ndcg(gains, pool.list_systems(team))


def measure_bootstrapped(pool: SystemPool, team: int, random: np.random.Generator) -> Floats:
    """Return bootstrapped nDCG of a team's systems, (systems, topics).

    Each unjudged document gets the grade of a random judged document of its topic; the value is the
    mean over samples (Fröbe, Gienapp, Potthast and Hagen, ECIR 2023).
    """
    topics = _find_topics(pool)
    unjudged = pool.list_unjudged(team)
    samples = np.zeros((_SAMPLES, len(unjudged)))
    for topic in np.unique(topics[unjudged]):
        judged = pool.grades[pool.is_judged & (topics == topic)]
        is_of_topic = topics[unjudged] == topic
        if len(judged) > 0:
            samples[:, is_of_topic] = random.choice(judged, (_SAMPLES, is_of_topic.sum()))

    gains = np.where(pool.is_judged, pool.grades, 0).astype(np.float64)
    values: list[Floats] = []
    for sample in samples:
        gains[unjudged] = sample
        values.append(pool.measure_ndcg(gains, pool.list_systems(team)))
    return np.asarray(np.mean(values, axis=0))


def estimate_from_one_team(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return for each document the mean grade of judged documents that one team found."""
    is_of_one_team = pool.is_judged & (pool.is_found.sum(axis=0) == 1)
    is_chosen = is_of_one_team if is_of_one_team.any() else pool.is_judged
    return np.full(len(documents), pool.grades[is_chosen].mean())


def estimate_as_judged(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return the labels of the judge as grades; the mean label for documents without one."""
    labels = pool.labels[documents]
    labelled = pool.labels[pool.labels != NONE]
    return np.where(labels == NONE, labelled.mean(), labels)


def estimate_from_answers(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return the mean grade of the judged documents with the same label."""
    is_usable = pool.is_judged & (pool.labels != NONE)
    sums = np.bincount(
        pool.labels[is_usable], weights=pool.grades[is_usable], minlength=pool.label_count
    )
    counts = np.bincount(pool.labels[is_usable], minlength=pool.label_count)
    overall = pool.grades[is_usable].mean()
    means = np.where(counts > 0, sums / np.maximum(counts, 1), overall)
    labels = pool.labels[documents]
    return np.where(labels == NONE, overall, means[labels])


def estimate_without_prior(pool: SystemPool, team: int, documents: Integers) -> Floats:
    """Return expected grades whose mix is estimated from the labels of these documents alone."""
    model = replace(fit_grade_model(pool, team), prior_documents=0.0)
    probabilities = model.estimate(pool.labels[documents])
    return np.asarray(probabilities @ np.arange(pool.grade_count))


def _find_topics(pool: SystemPool) -> Integers:
    """Return the index of each document's topic, (documents,)."""
    numbers = {topic: number for number, topic in enumerate(pool.topics)}
    return np.array([numbers[topic] for topic, _ in pool.documents])
