"""Made-up teams of systems over documents with grades, for `benchmarks.fill`.

Each system ranks the documents of a topic by a·grade + u + v + e: a is uniform from 0.3 to 1 by
team; u, v and e are normal with the standard deviations 0.6, 0.8 and 0.4: u is shared by all, v by
the systems of a team, and e is the system's own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

TEAM_SIZES = (3, 3, 3, 3, 3, 3, 3, 3)
LEAST_SKILL, SHARED, OF_TEAM, OF_SYSTEM = 0.3, 0.6, 0.8, 0.4


def describe() -> str:
    """Return the parameters in one line."""
    return (
        f"systems of teams {TEAM_SIZES}, skill from {LEAST_SKILL}, deviations {SHARED} (shared), "
        f"{OF_TEAM} (team), {OF_SYSTEM} (system)"
    )


def make_pools(
    rng: np.random.Generator, grades: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, dict[str, list[str]]]]:
    """Return made-up rankings by team, system and topic.

    Args:
        rng: Source of randomness.
        grades: Grades by topic and document.
    """
    documents = [(topic, document) for topic, judged in grades.items() for document in judged]
    values = np.array([grades[topic][document] for topic, document in documents], dtype=np.float64)
    shared = rng.normal(0.0, SHARED, len(documents))
    teams: dict[str, dict[str, dict[str, list[str]]]] = {}
    for team, size in enumerate(TEAM_SIZES):
        skill = rng.uniform(LEAST_SKILL, 1.0)
        of_team = rng.normal(0.0, OF_TEAM, len(documents))
        scores_of_team = skill * values + shared + of_team
        systems: dict[str, dict[str, list[str]]] = {}
        for system in range(size):
            scores = scores_of_team + rng.normal(0.0, OF_SYSTEM, len(documents))
            systems[f"team{team}-{system}"] = _rank(documents, scores)
        teams[f"team{team}"] = systems
    return teams


def _rank(documents: list[tuple[str, str]], scores: np.ndarray) -> dict[str, list[str]]:
    """Return the documents of each topic by falling score."""
    rankings: dict[str, list[str]] = {topic: [] for topic, _ in documents}
    for number in np.argsort(-scores, kind="stable"):
        topic, document = documents[number]
        rankings[topic].append(document)
    return rankings
