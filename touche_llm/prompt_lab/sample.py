"""Sample of a prompt comparison: drawn, and divided by topics."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from touche_llm.data.records import Topic
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.evaluation.agreement import round_grade
from touche_llm.evaluation.qrels import Grades
from touche_llm.prompt_lab.holdout import CHOICE, HOLD_OUT, find_half
from touche_llm.retrieval.corpus import Documents

# Documents per topic; with fewer, nearly every order has a high nDCG@5.
MIN_TOPIC_DOCUMENTS = 10

NameT = TypeVar("NameT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A judged document of a topic, with its human grade."""

    topic_id: str
    document_id: str
    grade: float


def draw_sample(pool: Grades, size: int) -> list[Sampled]:
    """Draw documents from as many topics as can have 10 each, or all their judged documents if these are fewer.

    Topics with 10 judged documents and a grade above 0 are preferred. Documents are divided evenly
    among topics, and within each topic among whole grades, as far as available. Fewer than `size`
    are drawn if the pool has fewer, or if the rest would give a topic too few. The sample depends
    on the pool alone, since topics and documents are chosen by a hash of their names. Topics keep
    their order; that of documents is independent of the grade.
    """

    def digest(*names: str) -> bytes:
        return hashlib.sha256(" ".join(("0", *names)).encode()).digest()

    def is_poor(topic: str) -> bool:
        return len(pool[topic]) < MIN_TOPIC_DOCUMENTS or max(pool[topic].values()) <= 0.0

    drawn, left = list[str](), size
    for topic in sorted(pool, key=lambda topic: (is_poor(topic), digest(topic))):
        needed = min(MIN_TOPIC_DOCUMENTS, len(pool[topic]))
        if drawn and needed > left:
            break
        drawn.append(topic)
        left -= needed
    sizes = shares(size, {topic: len(pool[topic]) for topic in drawn})
    sample: list[Sampled] = []
    for topic in filter(sizes.__contains__, pool):
        order = sorted(pool[topic], key=lambda document: (digest(topic, document), document))
        open_of = shares(sizes[topic], Counter(sorted(map(round_grade, pool[topic].values()))))
        for document in order:
            level = round_grade(pool[topic][document])
            if open_of[level]:
                open_of[level] -= 1
                sample.append(Sampled(topic, document, pool[topic][document]))
    return sample


def shares(size: int, most: Mapping[NameT, int]) -> dict[NameT, int]:
    """Divide a number as evenly as possible, with a maximum for each share."""
    left, found = size, dict[NameT, int]()
    for number, name in enumerate(sorted(most, key=most.__getitem__)):
        found[name] = min(most[name], left // (len(most) - number))
        left -= found[name]
    return found


# A split, and the name of the one part of its sample.
ALL: Literal["all"] = "all"
# A choice is confirmed if p on the held-out topics is below this level.
CONFIRMED_BELOW = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """Number of documents in the sample, topics to choose on, and whether to confirm the choice on the others.

    The topics are those of `find_half`, and the others are held out, or all.
    """

    size: int = 200
    split: Literal["half", "all"] = "half"
    confirm: bool = False


def select_judged(
    grades: Grades, topics: Iterable[Topic], documents: Documents
) -> tuple[Grades, list[str]]:
    """Select the judged documents in the corpus, in the order of the topics.

    Return notes on what is left out.
    """
    topic_ids = [topic.id for topic in topics]
    judged = [document for topic in topic_ids for document in grades.get(topic, {})]
    unknown = set(documents.find_unknown(judged))
    pool = {
        topic: {
            document: grade for document, grade in grades[topic].items() if document not in unknown
        }
        for topic in topic_ids
        if topic in grades
    }
    pool = {topic: found for topic, found in pool.items() if found}
    if not pool:
        raise DataError(
            f"none of the {len(judged):,} documents judged for topics {shorten(topic_ids, 5)} is in the corpus; give "
            "the judgments of these topics and this corpus"
        )
    notes = []
    if without := [topic for topic in topic_ids if topic not in pool]:
        notes.append(f"topics without a judged document in the corpus: {shorten(without)}")
    if missing := sum(document in unknown for document in judged):
        notes.append(f"judged documents that are not in the corpus: {missing:,} of {len(judged):,}")
    return pool, notes


def choose_sample(
    plan: Plan, grades: Grades, topics: list[Topic], documents: Documents
) -> tuple[dict[str, list[Sampled]], list[str]]:
    """Draw equally many documents from each part, as far as available.

    Return them with notes for the user.
    """
    if plan.confirm and plan.split == ALL:
        raise UsageError(f"split: {ALL} holds no topic out to confirm a choice on; give half")
    parts = {topic.id: ALL if plan.split == ALL else find_half(topic.title) for topic in topics}
    pool, notes = select_judged(grades, topics, documents)
    names = (ALL,) if plan.split == ALL else (CHOICE, HOLD_OUT)
    sides = {name: {topic: pool[topic] for topic in pool if parts[topic] == name} for name in names}
    sizes = shares(
        plan.size, {name: sum(map(len, judged.values())) for name, judged in sides.items()}
    )
    samples = {name: draw_sample(judged, sizes[name]) for name, judged in sides.items()}
    drawn = {
        name: list(dict.fromkeys(item.topic_id for item in sample))
        for name, sample in samples.items()
    }
    size = sum(map(len, samples.values()))
    wanted = f"{size:,} of {plan.size:,} documents are drawn"
    if dropped := set(pool).difference(*drawn.values()):
        notes.append(
            f"{wanted}, none of topics {shorten(dropped)}; draw more: another topic needs {MIN_TOPIC_DOCUMENTS}, or "
            "all of its judged ones if these are fewer"
        )
    elif size < plan.size:
        notes.append(f"{wanted}: no more are judged")
    if HOLD_OUT in drawn:
        chosen, held_out = (
            f"{len(topics)} topics ({shorten(topics) or 'none'})" for topics in drawn.values()
        )
        if not drawn[CHOICE]:
            raise UsageError(f"split: {chosen} to choose on; {held_out} held out; give {ALL}")
        notes.append(f"{chosen} to choose on; {held_out} held out to confirm the best")
    return samples, notes


def check_parts(parts: Mapping[str, Sequence[Sampled]]) -> None:
    """Raise UsageError if a part has too few topics with a document above grade 0."""
    least = 2 if HOLD_OUT in parts else 1
    for name, sample in parts.items():
        if (count := len({item.topic_id for item in sample if item.grade > 0.0})) < least:
            raise UsageError(
                f"split: {name}: {count} topics with a sampled document above grade 0, and it takes {least} to measure "
                "an order; draw more documents, give another split or more judgments, or do not confirm"
            )
