"""Sample of a prompt comparison: drawn, and divided by topics."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
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


# A split, and the name of the one part of its sample.
ALL: Literal["all"] = "all"
# A choice is confirmed if p on the held-out topics is below this level.
CONFIRMED_BELOW = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a sample.

    Attributes:
        size: Number of documents.
        split: Topics to choose on: those of one half, by `find_half`, while the others are held
            out; or all.
        confirm: Whether to confirm the choice on the held-out topics.
    """

    size: int = 200
    split: Literal["half", "all"] = "half"
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class Sampled:
    """A judged document of a topic, with its human grade."""

    topic_id: str
    document_id: str
    grade: float


def draw_sample(pool: Grades, size: int) -> list[Sampled]:
    """Draw documents from as many topics as can have 10 each.

    Topics with 10 judged documents and a grade above 0 are preferred; a topic with fewer documents
    gives all of them. Documents are divided evenly among topics, and within each topic among whole
    grades, as far as available. The sample depends on the pool alone, since topics and documents
    are chosen by a hash of their names.

    Args:
        pool: Grades by topic and document.
        size: Number of documents; fewer are drawn if the pool has fewer, or if the rest would give
            a topic too few.

    Returns:
        Documents, in the order of the topics, and within a topic in one that is independent of the
        grade.
    """
    drawn_topics = _draw_topics(pool, size)
    size_by_topic = divide_evenly(size, {topic: len(pool[topic]) for topic in drawn_topics})

    sample: list[Sampled] = []
    for topic, grades in pool.items():
        if topic in size_by_topic:
            sample += _draw_documents(topic, grades, size_by_topic[topic])
    return sample


def _draw_topics(pool: Grades, size: int) -> list[str]:
    """Draw topics until a number of documents is reached, those with enough documents first."""
    preferred_first = sorted(
        pool,
        key=lambda topic: (_is_poor(pool[topic]), _hash_names(topic)),
    )
    topics: list[str] = []
    left = size
    for topic in preferred_first:
        needed = min(MIN_TOPIC_DOCUMENTS, len(pool[topic]))
        # At least one topic is drawn, however few documents are wanted.
        if topics and needed > left:
            break
        topics.append(topic)
        left -= needed
    return topics


def _is_poor(grades: Mapping[str, float]) -> bool:
    """Return whether a topic has too few documents, or none with a grade above 0."""
    return len(grades) < MIN_TOPIC_DOCUMENTS or max(grades.values()) <= 0.0


def _draw_documents(topic: str, grades: Mapping[str, float], size: int) -> list[Sampled]:
    """Draw documents of a topic, evenly over whole grades as far as available."""
    count_by_grade = Counter(sorted(map(round_grade, grades.values())))
    left_by_grade = divide_evenly(size, count_by_grade)

    in_random_order = sorted(
        grades,
        key=lambda document: (_hash_names(topic, document), document),
    )
    sample: list[Sampled] = []
    for document in in_random_order:
        whole_grade = round_grade(grades[document])
        if left_by_grade[whole_grade] > 0:
            left_by_grade[whole_grade] -= 1
            sample.append(Sampled(topic, document, grades[document]))
    return sample


def _hash_names(*names: str) -> bytes:
    """Return a hash by which topics or documents are drawn."""
    return hashlib.sha256(" ".join(("0", *names)).encode()).digest()


def divide_evenly(size: int, limits: Mapping[NameT, int]) -> dict[NameT, int]:
    """Divide a number as evenly as possible into shares.

    For example, 10 with the limits 2, 9 and 9 is divided into 2, 4 and 4.

    Args:
        size: Number to divide; less is divided if the limits are reached.
        limits: Max share by name.

    Returns:
        Shares by name, in ascending order of the limits.
    """
    shares: dict[NameT, int] = {}
    left = size
    # Those with the lowest limits come first, so that the others share what they leave.
    for name in sorted(limits, key=limits.__getitem__):
        names_left = len(limits) - len(shares)
        even_share = left // names_left
        shares[name] = min(limits[name], even_share)
        left -= shares[name]
    return shares


@dataclass(frozen=True, slots=True)
class JudgedPool:
    """Judged documents that can be drawn.

    Attributes:
        grades: Grades by topic and document, in the order of the topics.
        notes: Notes on what is left out.
    """

    grades: Grades
    notes: list[str]


def select_judged(grades: Grades, topics: Iterable[Topic], documents: Documents) -> JudgedPool:
    """Select the judged documents in the corpus.

    Args:
        grades: Human grades by topic and document.
        topics: Topics to select from.
        documents: Documents of the corpus.

    Raises:
        DataError: None of the judged documents is in the corpus.
    """
    topic_ids = [topic.id for topic in topics]
    judged: list[str] = []
    for topic_id in topic_ids:
        judged.extend(grades.get(topic_id, {}))
    unknown = set(documents.find_unknown(judged))

    pool: Grades = {}
    for topic_id in topic_ids:
        known_grades = _leave_out(unknown, grades.get(topic_id, {}))
        if known_grades:
            pool[topic_id] = known_grades
    if not pool:
        raise DataError(
            f"none of the {len(judged):,} documents judged for topics {shorten(topic_ids, 5)} is in the corpus; give "
            "the judgments of these topics and this corpus"
        )

    notes: list[str] = []
    lacking = [topic_id for topic_id in topic_ids if topic_id not in pool]
    if lacking:
        notes.append(f"topics without a judged document in the corpus: {shorten(lacking)}")
    missing = [document for document in judged if document in unknown]
    if missing:
        notes.append(
            f"judged documents that are not in the corpus: {len(missing):,} of {len(judged):,}"
        )
    return JudgedPool(pool, notes)


def _leave_out(documents: Set[str], grades: Mapping[str, float]) -> dict[str, float]:
    """Return the grades of all other documents."""
    return {document: grade for document, grade in grades.items() if document not in documents}


@dataclass(frozen=True, slots=True)
class DrawnSample:
    """Sample of a comparison.

    Attributes:
        parts: Documents by name of the part, the one to choose on first.
        notes: Notes for the user.
    """

    parts: dict[str, list[Sampled]]
    notes: list[str]


def choose_sample(
    plan: Plan, grades: Grades, topics: list[Topic], documents: Documents
) -> DrawnSample:
    """Draw equally many documents from each part, as far as available.

    Args:
        plan: Plan of the sample.
        grades: Human grades by topic and document.
        topics: Topics of the run.
        documents: Documents of the corpus.

    Raises:
        DataError: None of the judged documents is in the corpus.
        UsageError: No topic is held out to confirm a choice on, or none is left to choose on.
    """
    if plan.confirm and plan.split == ALL:
        raise UsageError(f"split: {ALL} holds no topic out to confirm a choice on; give half")

    judged = select_judged(grades, topics, documents)
    pools = _divide_pool(judged.grades, topics, plan)
    available = {part: _count_documents(pool) for part, pool in pools.items()}
    sizes = divide_evenly(plan.size, available)
    parts = {part: draw_sample(pool, sizes[part]) for part, pool in pools.items()}

    notes = [*judged.notes, *_describe_size(plan, judged.grades, parts)]
    if HOLD_OUT in parts:
        notes.append(_describe_halves(parts))
    return DrawnSample(parts, notes)


def _divide_pool(pool: Grades, topics: Iterable[Topic], plan: Plan) -> dict[str, Grades]:
    """Return the grades of each part, by its name: all, or two halves of the topics."""
    if plan.split == ALL:
        return {ALL: pool}

    half_by_topic = {topic.id: find_half(topic.title) for topic in topics}
    pools: dict[str, Grades] = {CHOICE: {}, HOLD_OUT: {}}
    for topic_id, topic_grades in pool.items():
        half = half_by_topic[topic_id]
        pools[half][topic_id] = topic_grades
    return pools


def _count_documents(grades: Grades) -> int:
    """Return the number of documents of all topics."""
    return sum(len(topic_grades) for topic_grades in grades.values())


def _list_topics(sample: Iterable[Sampled]) -> list[str]:
    """Return the ids of the topics of documents, each once."""
    return list(dict.fromkeys(document.topic_id for document in sample))


def _describe_size(plan: Plan, pool: Grades, parts: Mapping[str, Sequence[Sampled]]) -> list[str]:
    """Return a note if topics are left out, or fewer documents are drawn than planned."""
    size = 0
    left_out = set(pool)
    for sample in parts.values():
        size += len(sample)
        left_out.difference_update(_list_topics(sample))

    drawn = f"{size:,} of {plan.size:,} documents are drawn"
    if left_out:
        note = (
            f"{drawn}, none of topics {shorten(left_out)}; draw more: another topic needs {MIN_TOPIC_DOCUMENTS}, or "
            "all of its judged ones if these are fewer"
        )
        return [note]
    if size < plan.size:
        return [f"{drawn}: no more are judged"]
    return []


def _describe_halves(parts: Mapping[str, Sequence[Sampled]]) -> str:
    """Return a note with the topics of both halves.

    Raises:
        UsageError: There is no topic to choose on.
    """
    choice = _describe_topics(parts[CHOICE])
    held_out = _describe_topics(parts[HOLD_OUT])
    if not parts[CHOICE]:
        raise UsageError(f"split: {choice} to choose on; {held_out} held out; give {ALL}")
    return f"{choice} to choose on; {held_out} held out to confirm the best"


def _describe_topics(sample: Iterable[Sampled]) -> str:
    """Return the number and the ids of the topics of documents, in words."""
    topics = _list_topics(sample)
    return f"{len(topics)} topics ({shorten(topics) or 'none'})"


def check_parts(parts: Mapping[str, Sequence[Sampled]]) -> None:
    """Raise UsageError if a part has too few topics with a document above grade 0.

    Args:
        parts: Documents by name of the part; with a held-out one, each part needs two topics.
    """
    min_topics = 2 if HOLD_OUT in parts else 1
    for name, sample in parts.items():
        relevant_topics = {document.topic_id for document in sample if document.grade > 0.0}
        if len(relevant_topics) < min_topics:
            raise UsageError(
                f"split: {name}: {len(relevant_topics)} topics with a sampled document above grade 0, and it takes "
                f"{min_topics} to measure an order; draw more documents, give another split or more judgments, or do "
                "not confirm"
            )
