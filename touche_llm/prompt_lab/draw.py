"""Which judged documents a comparison of prompts asks about: enough of each topic, evenly over the grades."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.qrels import Grades

# Documents; of fewer, nearly every order has a high nDCG@5.
MIN_TOPIC_DOCUMENTS = 10

NameT = TypeVar("NameT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A document for a topic, with the grade that people gave it."""

    topic_id: str
    document_id: str
    grade: float


def draw_sample(pool: Grades, size: int, seed: int) -> list[Sampled]:
    """Draw documents of as many topics as can have 10 each, or all that were judged where those are fewer.

    Topics with 10 judged documents, one of them above grade 0, come before others. Each has as many documents as any
    other, and as many of each whole grade, as far as there are so many; then documents are exchanged within topics
    until the grades of the whole sample are as even as single exchanges make them.

    What is drawn depends on the seed, the pool and nothing else: topics and documents come in the order of a digest of
    seed, topic and document, so that no generator of random numbers need stay the same.

    Args:
        pool: judged documents by topic.
        size: documents to draw; fewer where the pool has fewer, and rather some fewer than a topic with less than that.
        seed: another one draws others.

    Returns:
        topic by topic in the order of the pool, in an order that does not tell the grade.
    """

    def digest(*names: str) -> bytes:
        return hashlib.sha256(" ".join((str(seed), *names)).encode()).digest()

    def poor(topic: str) -> bool:
        return len(pool[topic]) < MIN_TOPIC_DOCUMENTS or max(pool[topic].values()) <= 0.0

    drawn, left = list[str](), size
    for topic in sorted(pool, key=lambda each: (poor(each), digest(each))):
        needed = min(MIN_TOPIC_DOCUMENTS, len(pool[topic]))
        if drawn and needed > left:
            break
        drawn.append(topic)
        left -= needed
    orders: dict[str, list[str]] = {}
    there: dict[str, dict[int, list[str]]] = {}
    for topic in drawn:
        orders[topic] = [name for _, name in sorted((digest(topic, each), each) for each in pool[topic])]
        there[topic] = defaultdict(list)
        for document in orders[topic]:
            there[topic][round_grade(pool[topic][document])].append(document)
    counts = _counts(
        shares(size, {topic: len(pool[topic]) for topic in drawn}),
        {topic: {of: len(found) for of, found in by_level.items()} for topic, by_level in there.items()},
    )
    taken = {
        (topic, document)
        for topic in drawn
        for of, count in counts[topic].items()
        for document in there[topic][of][:count]
    }
    return [
        Sampled(topic, document, pool[topic][document])
        for topic in pool
        for document in orders.get(topic, ())
        if (topic, document) in taken
    ]


def shares(size: int, most: Mapping[NameT, int]) -> dict[NameT, int]:
    """A number shared out as evenly as can be, where none can have more than its most."""
    left, found = size, dict[NameT, int]()
    for number, name in enumerate(sorted(most, key=most.__getitem__)):
        found[name] = min(most[name], left // (len(most) - number))
        left -= found[name]
    return found


def _counts(sizes: Mapping[str, int], there: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """How many documents of each grade to take from each topic, of those that are there."""
    taken = {topic: shares(size, there[topic]) for topic, size in sizes.items()}
    totals: Counter[int] = Counter()
    for counts in taken.values():
        totals.update(counts)
    while exchanges := [
        (totals[more] - totals[less], counts[more] - counts[less], topic, more, less)
        for topic, counts in taken.items()
        for more in counts
        for less in counts
        if totals[more] - totals[less] > 1 and counts[more] and counts[less] < there[topic][less]
    ]:
        _, _, topic, more, less = max(exchanges)
        for of, change in ((more, -1), (less, 1)):
            taken[topic][of] += change
            totals[of] += change
    return taken
