"""The first documents of the systems of several teams, as arrays, with what people and a judge say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from touche_llm.errors import UsageError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
# Documents by topic, best first.
SystemRanking = Mapping[str, Sequence[str]]
# Values of documents, by topic and document.
DocumentValues = Mapping[str, Mapping[str, int]]
# Grade of a document that people have not judged, and label of one that the judge has not labelled.
NONE = -1


@dataclass(frozen=True)
class SystemPool:
    """The first documents of the systems of several teams.

    Documents are numbered over all topics; systems, teams and topics are in the order of their
    names.

    Attributes:
        topics: Ids of the topics.
        documents: Topic and id of each document.
        systems: Names of the systems.
        teams: Names of the teams.
        system_teams: Index of the team of each system, (systems,).
        orders: Documents of each system, best first, (systems, topics, longest), without those that
            neither people judged nor a system has among its first; filled up with `NONE`.
        depth: Cutoff of the measure: number of first documents.
        grades: Grade by people of each document, (documents,); `NONE` where there is none.
        labels: Label by the judge of each document, from 0 on, (documents,); `NONE` where there is
            none.
        highest_grade: Highest grade of the scale, which begins with 0.
        label_count: Number of labels of the judge.
        topic_documents: Documents of each topic, (topics, most documents of a topic), filled up
            with `NONE`.
    """

    topics: tuple[str, ...]
    documents: tuple[tuple[str, str], ...]
    systems: tuple[str, ...]
    teams: tuple[str, ...]
    system_teams: Integers
    orders: Integers
    depth: int
    grades: Integers
    labels: Integers
    highest_grade: int
    label_count: int
    topic_documents: Integers

    @cached_property
    def tops(self) -> Integers:
        """First documents of each system, (systems, topics, depth)."""
        return self.orders[:, :, : self.depth]

    @property
    def grade_count(self) -> int:
        """Number of grades of the scale."""
        return self.highest_grade + 1

    @cached_property
    def is_judged(self) -> Booleans:
        """Whether people judged each document, (documents,)."""
        return np.asarray(self.grades != NONE)

    @cached_property
    def is_found(self) -> Booleans:
        """Whether each team has each document among its first, (teams, documents)."""
        found = np.zeros((len(self.teams), len(self.documents)), dtype=np.bool_)
        for team in range(len(self.teams)):
            documents = self.tops[self.system_teams == team]
            found[team, documents[documents != NONE]] = True
        return found

    @cached_property
    def discounts(self) -> Floats:
        """Weight of each rank, (depth,)."""
        return 1.0 / np.log2(np.arange(2, self.depth + 2))

    def list_systems(self, team: int) -> Integers:
        """Return the indices of the systems of a team."""
        return np.flatnonzero(self.system_teams == team)

    def list_unjudged(self, team: int) -> Integers:
        """Return the documents among the first of a team that people have not judged."""
        return np.flatnonzero(self.is_found[team] & ~self.is_judged)

    def measure_shares(self, team: int) -> Floats:
        """Return the share of unjudged documents among the first of each system of a team."""
        tops = self.tops[self.list_systems(team)]
        is_document = tops != NONE
        # The last value is that of NONE.
        is_judged = np.append(self.is_judged, True)[tops]
        unjudged = (~is_judged & is_document).sum(axis=(1, 2))
        return np.asarray(unjudged / np.maximum(is_document.sum(axis=(1, 2)), 1))

    def hide_team(self, team: int) -> SystemPool:
        """Return the pool as it were if people had not judged what this team alone found."""
        others = np.delete(self.is_found, team, axis=0).any(axis=0)
        is_hidden = self.is_found[team] & ~others
        grades = np.where(is_hidden, NONE, self.grades)
        return replace(self, grades=grades)

    def drop_team(self, team: int) -> SystemPool:
        """Return the pool of the other teams, without the judgments of what this team alone found."""
        is_kept = self.system_teams != team
        teams = tuple(name for number, name in enumerate(self.teams) if number != team)
        numbers = self.system_teams[is_kept]
        return replace(
            self.hide_team(team),
            systems=tuple(np.array(self.systems, dtype=object)[is_kept]),
            teams=teams,
            system_teams=np.where(numbers > team, numbers - 1, numbers),
            orders=self.orders[is_kept],
        )

    def measure_ndcg(self, gains: Floats, systems: Integers) -> Floats:
        """Return nDCG of systems by topic, (systems, topics).

        Gains are grades, and discounts logarithmic, as in trec_eval (Järvelin and Kekäläinen, ACM
        TOIS 20(4), 2002). A topic whose ideal ranking has no gain has the value 0.

        Args:
            gains: Gain of each document, (documents,), 0 for documents that are not known.
            systems: Indices of the systems.
        """
        # The last gain is that of NONE.
        padded = np.append(gains, 0.0)
        sums = padded[self.tops[systems]] @ self.discounts
        return sums * self.compute_ideal_factors(gains)

    def compute_ideal_factors(self, gains: Floats) -> Floats:
        """Return 1 over the DCG of the ideal ranking of each topic, (topics,); 0 without any gain."""
        padded = np.append(gains, 0.0)
        ideal = -np.sort(-padded[self.topic_documents], axis=1)[:, : self.depth]
        ideal_sums = ideal @ self.discounts[: ideal.shape[1]]
        has_gain = ideal_sums > 0.0
        return np.where(has_gain, 1.0 / np.where(has_gain, ideal_sums, 1.0), 0.0)


def make_pool(
    systems: Mapping[str, Mapping[str, SystemRanking]],
    grades: DocumentValues,
    labels: DocumentValues,
    *,
    depth: int,
    highest_grade: int,
    label_count: int,
) -> SystemPool:
    """Return the pool of the first documents of systems.

    Args:
        systems: Rankings by team and system.
        grades: Grades by people, from 0 on; their topics are those that count.
        labels: Labels by the judge, from 0 on.
        depth: Cutoff of the measure.
        highest_grade: Highest grade of the scale.
        label_count: Number of labels of the judge.

    Raises:
        UsageError: There is no system, or a team has none.
    """
    empty = [team for team, members in systems.items() if not members]
    if empty or not systems:
        raise UsageError(
            f"systems: {', '.join(empty) or 'none'}: give one or more runs of each team"
        )

    topics = tuple(sorted(grades))
    names = [(team, system) for team in sorted(systems) for system in sorted(systems[team])]
    documents = _list_documents(systems, grades, depth)
    numbers = {document: number for number, document in enumerate(documents)}

    teams = tuple(sorted(systems))
    orders: list[list[list[int]]] = []
    for team, system in names:
        ranking = systems[team][system]
        orders.append([_number(topic, ranking.get(topic, ()), numbers) for topic in topics])

    return SystemPool(
        topics=topics,
        documents=documents,
        systems=tuple(system for _, system in names),
        teams=teams,
        system_teams=np.array([teams.index(team) for team, _ in names]),
        orders=_fill_up(orders, depth),
        depth=depth,
        grades=_collect(documents, grades),
        labels=_collect(documents, labels),
        highest_grade=highest_grade,
        label_count=label_count,
        topic_documents=_group_by_topic(topics, documents),
    )


def _group_by_topic(topics: Sequence[str], documents: Sequence[tuple[str, str]]) -> Integers:
    """Return the numbers of the documents of each topic, filled up with `NONE`."""
    numbers_of_topic: dict[str, list[int]] = {topic: [] for topic in topics}
    for number, (topic, _) in enumerate(documents):
        numbers_of_topic[topic].append(number)

    longest = max(map(len, numbers_of_topic.values()), default=0)
    table = np.full((len(topics), longest), NONE, dtype=np.int64)
    for row, numbers in enumerate(numbers_of_topic.values()):
        table[row, : len(numbers)] = numbers
    return table


def _number(
    topic: str, documents: Sequence[str], numbers: Mapping[tuple[str, str], int]
) -> list[int]:
    """Return the numbers of documents, without those that have none."""
    return [numbers[topic, document] for document in documents if (topic, document) in numbers]


def _fill_up(orders: Sequence[Sequence[Sequence[int]]], depth: int) -> Integers:
    """Return orders as an array, (systems, topics, longest), filled up with `NONE`."""
    longest = max((len(order) for system in orders for order in system), default=0)
    table = np.full((len(orders), len(orders[0]), max(longest, depth)), NONE, dtype=np.int64)
    for row, system in enumerate(orders):
        for column, order in enumerate(system):
            table[row, column, : len(order)] = order
    return table


def _list_documents(
    systems: Mapping[str, Mapping[str, SystemRanking]],
    grades: DocumentValues,
    depth: int,
) -> tuple[tuple[str, str], ...]:
    """Return the topic and id of each document that people judged or a system has among its first."""
    found = {(topic, document) for topic, judged in grades.items() for document in judged}
    for members in systems.values():
        for ranking in members.values():
            for topic in grades:
                found |= {(topic, document) for document in ranking.get(topic, ())[:depth]}
    return tuple(sorted(found))


def _collect(documents: Sequence[tuple[str, str]], values: DocumentValues) -> Integers:
    """Return the value of each document, `NONE` where there is none."""
    found = [values.get(topic, {}).get(document, NONE) for topic, document in documents]
    return np.array(found, dtype=np.int64)
