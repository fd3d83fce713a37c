"""Stratified sampling of judged documents: enough of each topic, evenly over the grades."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.qrels import Grades

# Documents per topic; with fewer, nearly every order has a high nDCG@5.
MIN_TOPIC_DOCUMENTS = 10

NameT = TypeVar("NameT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A judged document of a topic, with its human grade."""

    topic_id: str
    document_id: str
    grade: float


def draw_sample(pool: Grades, size: int, seed: int) -> list[Sampled]:
    """Draw documents from as many topics as can have 10 each, or all their judged documents if these are fewer.

    Topics with 10 judged documents and a grade above 0 are preferred. Documents are divided evenly among topics, and
    within each topic among whole grades, as far as available; then documents are exchanged within topics until no
    single exchange makes the grades of the whole sample more even.

    The sample depends only on seed and pool: topics and documents are ordered by a digest of seed, topic and document,
    so it does not depend on a random number generator.

    Args:
        pool: Judged documents by topic.
        size: Number of documents; fewer are drawn if the pool has fewer, or if the rest would give a topic too few.
        seed: Seed of the order.

    Returns:
        Documents by topic in the order of the pool; the order within a topic is independent of the grade.
    """

    def digest(*names: str) -> bytes:
        return hashlib.sha256(" ".join((str(seed), *names)).encode()).digest()

    def is_poor(topic: str) -> bool:
        return len(pool[topic]) < MIN_TOPIC_DOCUMENTS or max(pool[topic].values()) <= 0.0

    drawn, left = list[str](), size
    for topic in sorted(pool, key=lambda topic: (is_poor(topic), digest(topic))):
        needed = min(MIN_TOPIC_DOCUMENTS, len(pool[topic]))
        if drawn and needed > left:
            break
        drawn.append(topic)
        left -= needed
    orders: dict[str, list[str]] = {}
    available: dict[str, dict[int, list[str]]] = {}
    for topic in drawn:
        orders[topic] = [name for _, name in sorted((digest(topic, document), document) for document in pool[topic])]
        available[topic] = defaultdict(list)
        for document in orders[topic]:
            available[topic][round_grade(pool[topic][document])].append(document)
    counts = _counts(
        shares(size, {topic: len(pool[topic]) for topic in drawn}),
        {topic: {of: len(found) for of, found in by_level.items()} for topic, by_level in available.items()},
    )
    taken = {
        (topic, document)
        for topic in drawn
        for of, count in counts[topic].items()
        for document in available[topic][of][:count]
    }
    return [
        Sampled(topic, document, pool[topic][document])
        for topic in pool
        for document in orders.get(topic, ())
        if (topic, document) in taken
    ]


def shares(size: int, most: Mapping[NameT, int]) -> dict[NameT, int]:
    """Divide a number as evenly as possible, with a maximum for each share."""
    left, found = size, dict[NameT, int]()
    for number, name in enumerate(sorted(most, key=most.__getitem__)):
        found[name] = min(most[name], left // (len(most) - number))
        left -= found[name]
    return found


def _counts(sizes: Mapping[str, int], available: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """Choose how many documents of each grade to take from each topic."""
    taken = {topic: shares(size, available[topic]) for topic, size in sizes.items()}
    totals: Counter[int] = Counter()
    for counts in taken.values():
        totals.update(counts)
    while exchanges := [
        (totals[more] - totals[less], counts[more] - counts[less], topic, more, less)
        for topic, counts in taken.items()
        for more in counts
        for less in counts
        if totals[more] - totals[less] > 1 and counts[more] and counts[less] < available[topic][less]
    ]:
        _, _, topic, more, less = max(exchanges)
        for of, change in ((more, -1), (less, 1)):
            taken[topic][of] += change
            totals[of] += change
    return taken
