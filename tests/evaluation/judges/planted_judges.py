"""Judges with a planted defect, and systems whose true order is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from touche_llm.data.records import Candidate
from touche_llm.data.runs.reading import ParsedRun
from touche_llm.evaluation.judges.labels import LabelSet
from touche_llm.tasks.parts import Scale

TOPICS = 25
DOCUMENTS = 60
CUTOFF = 10
SCALE = Scale(0, 3)
# How well each system knows the grades; the best of a family first.
SKILLS = {"a1": 3.0, "b1": 1.8, "a2": 0.9, "b2": 0.4, "a3": 0.0, "b3": -0.6}
Grades = dict[str, dict[str, int]]
Grading = Callable[[str, str, int], int]


def draw_grades() -> Grades:
    """Grades of people; the documents of a topic are known to one of two families of systems."""
    random = np.random.default_rng(0)
    grades: Grades = {}
    for topic in range(TOPICS):
        drawn = random.choice(4, DOCUMENTS, p=[0.45, 0.28, 0.18, 0.09])
        grades[f"q{topic}"] = {
            f"{'ab'[number % 2]}{number}": int(grade) for number, grade in enumerate(drawn)
        }
    return grades


def draw_systems(grades: Grades) -> dict[str, ParsedRun]:
    """Systems, each of which ranks the documents of its family by its skill."""
    random = np.random.default_rng(1)
    systems: dict[str, ParsedRun] = {}
    for name, skill in SKILLS.items():
        rankings: dict[str, list[Candidate]] = {}
        for topic, judged in grades.items():
            scores = {
                document: skill * grade + random.normal(0.0, 1.5)
                for document, grade in judged.items()
                if document[0] == name[0]
            }
            order = sorted(scores, key=lambda document: -scores[document])
            rankings[topic] = [
                Candidate(topic, document, rank, -float(rank))
                for rank, document in enumerate(order, start=1)
            ]
        systems[name] = ParsedRun(rankings, {})
    return systems


def make_labels(
    name: str, grades: Mapping[str, Mapping[str, int]], is_people: bool = False
) -> LabelSet:
    """Labels with these grades."""
    return LabelSet(
        name=name,
        aspect="relevance",
        categories=tuple(map(str, SCALE.grades)),
        scale=SCALE,
        labels={topic: dict(judged) for topic, judged in grades.items()},
        grades={
            topic: {document: float(grade) for document, grade in judged.items()}
            for topic, judged in grades.items()
        },
        is_people=is_people,
    )


def grade_as(name: str, grades: Grades, grading: Grading) -> LabelSet:
    """A judge that gives each document of people the grade of a function."""
    return make_labels(
        name,
        {
            topic: {document: grading(topic, document, grade) for document, grade in judged.items()}
            for topic, judged in grades.items()
        },
    )


def make_noisy_judge(grades: Grades) -> LabelSet:
    """A judge that guesses most grades, whatever the system: low kappa, right order."""
    random = np.random.default_rng(2)
    return grade_as(
        "noisy",
        grades,
        lambda topic, document, grade: grade if random.random() < 0.27 else int(random.integers(4)),
    )


def make_reversing_judge(grades: Grades, systems: Mapping[str, ParsedRun]) -> LabelSet:
    """A judge that errs only on the first documents of the best and the worst system: high kappa, wrong order."""
    best = list_first(systems["a1"], 5)
    worst = list_first(systems["b3"], 5)

    def grade_reversed(topic: str, document: str, grade: int) -> int:
        if (topic, document) in best:
            return 0
        return 3 if (topic, document) in worst else grade

    return grade_as("reversing", grades, grade_reversed)


def make_partial_judge(grades: Grades) -> LabelSet:
    """A judge that grades half of the documents of one family a grade too high."""
    random = np.random.default_rng(3)
    return grade_as(
        "partial",
        grades,
        lambda topic, document, grade: (
            min(grade + 1, 3) if document[0] == "a" and random.random() < 0.5 else grade
        ),
    )


def make_generous_judge(grades: Grades) -> LabelSet:
    """A judge that grades every document a grade too high, as far as the scale goes."""
    return grade_as("generous", grades, lambda topic, document, grade: min(grade + 1, 3))


def list_first(run: ParsedRun, count: int) -> set[tuple[str, str]]:
    """The first documents of each topic."""
    return {
        (topic, candidate.document_id)
        for topic, ranking in run.rankings.items()
        for candidate in ranking[:count]
    }
