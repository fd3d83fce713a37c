"""Sample of a prompt comparison: drawn, and divided by topics."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from touche_llm.data.io import is_word, read_table_lines
from touche_llm.data.records import Topic
from touche_llm.errors import DataError, UsageError, shorten
from touche_llm.evaluation.qrels import Grades
from touche_llm.evaluation.stance_measures import round_grade
from touche_llm.prompt_lab.holdout import CHOICE, HOLD_OUT, find_half
from touche_llm.retrieval.base import Documents

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


# Splits that need no file; `all` is also the name of the one part of such a sample.
HALF, ALL = "half", "all"
# A choice is confirmed if p on the held-out topics is below this level.
CONFIRMED_BELOW = 0.05
# Topics in each half; with fewer held out no choice can be confirmed.
MIN_TOPICS_IN_HALF = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """Documents and topics of a comparison.

    Attributes:
        size: Number of documents in the sample.
        seed: Seed of the sample.
        split: Topics that variants are chosen on, see `split_topics`; the others are held out. `all` holds none out.
        confirm: Whether to confirm the choice on the held-out topics; otherwise they are not judged.
    """

    size: int = 200
    seed: int = 0
    split: str = HALF
    confirm: bool = False


def select_judged(grades: Grades, topics: Iterable[Topic], documents: Documents) -> tuple[Grades, list[str]]:
    """Select the judged documents that are in the corpus, in the order of the topics.

    Returns:
        The grades of the selected documents, and notes on what is left out.

    Raises:
        DataError: No judged document is in the corpus.
    """
    topic_ids = [topic.id for topic in topics]
    judged = [document for topic in topic_ids for document in grades.get(topic, {})]
    unknown = set(documents.find_unknown(judged))
    pool = {
        topic: {document: grade for document, grade in grades[topic].items() if document not in unknown}
        for topic in topic_ids
        if topic in grades
    }
    pool = {topic: found for topic, found in pool.items() if found}
    if not pool:
        raise DataError(
            f"none of the {len(judged):,} documents judged for topics "
            f"{shorten(topic_ids, 5)} is in the corpus; "
            "give the judgments of these topics and this corpus"
        )
    notes = []
    if without := [topic for topic in topic_ids if topic not in pool]:
        notes.append(f"topics without a judged document in the corpus: {shorten(without)}")
    if missing := sum(document in unknown for document in judged):
        notes.append(f"judged documents that are not in the corpus: {missing:,} of {len(judged):,}")
    return pool, notes


def split_topics(judged: Sequence[Topic], split: str) -> dict[str, str]:
    """Return the part of each judged topic, by id: to choose on, held out, or all.

    Args:
        judged: Topics.
        split: `half` for the halves of `find_half`; `all`; or the path of a file of topic ids, one per line, to choose
            on.

    Raises:
        DataError: The file cannot be read, or a line is not a topic id.
        UsageError: There is no topic to choose on.
    """
    if split == ALL:
        return {topic.id: ALL for topic in judged}
    if split == HALF:
        parts = {topic.id: find_half(topic.title) for topic in judged}
        problem = (
            f"split: by their titles, all judged topics are held out; give a file of topics to choose on, or {ALL}"
        )
    else:
        chosen = set()
        for number, line in read_table_lines(Path(split), "a list of topics"):
            name = line.strip()
            if name and not is_word(name):
                raise DataError(f"{split}:{number}: must be a topic id, one per line")
            chosen.add(name)
        parts = {topic.id: CHOICE if topic.id in chosen else HOLD_OUT for topic in judged}
        problem = f"{split}: none of the judged topics is in this file"
    if parts and CHOICE not in parts.values():
        raise UsageError(f"{problem}: {shorten(parts)}")
    return parts


def choose_sample(
    plan: Plan, grades: Grades, topics: list[Topic], parts: Mapping[str, str], documents: Documents
) -> tuple[dict[str, list[Sampled]], list[str]]:
    """Draw equally many documents from each part, as far as available; return them with notes for the user.

    Raises:
        DataError: The judgments do not fit the topics and the corpus.
        UsageError: There is no topic to choose on, or none to confirm the choice on.
    """
    if plan.confirm and plan.split == ALL:
        raise UsageError(f"split: {ALL} holds no topic out to confirm a choice on; give another split")
    pool, notes = select_judged(grades, topics, documents)
    names = (ALL,) if plan.split == ALL else (CHOICE, HOLD_OUT)
    sides = {name: {topic: pool[topic] for topic in pool if parts[topic] == name} for name in names}
    sizes = shares(plan.size, {name: sum(map(len, judged.values())) for name, judged in sides.items()})
    samples = {name: draw_sample(judged, sizes[name], plan.seed) for name, judged in sides.items()}
    drawn = {name: list(dict.fromkeys(item.topic_id for item in sample)) for name, sample in samples.items()}
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
        if not drawn[CHOICE]:
            raise UsageError(
                f"split: all sampled topics are held out: {shorten(drawn[HOLD_OUT])}; choose topics of the other half "
                f"too, or give a file of topics to choose on, or {ALL}"
            )
        chosen, held_out = map(_list_topics, drawn.values())
        notes.append(f"{chosen} to choose on; {held_out} held out to confirm the best")
    # The minimum p of a paired randomisation test: 2 of 2^n sign assignments are all equal.
    held = _count_relevant_topics(samples.get(HOLD_OUT, []))
    if plan.confirm and (min_p := 2.0 ** (1 - held)) >= CONFIRMED_BELOW:
        notes.append(
            f"{held} topics held out with a grade above 0: p cannot be below {min_p:.4f}, so that no choice can be "
            f"confirmed; that takes {MIN_TOPICS_IN_HALF} (a larger sample, or judgments of more topics)"
        )
    return samples, notes


def check_parts(parts: Mapping[str, Sequence[Sampled]]) -> None:
    """Raise UsageError if a part has too few topics with a document above grade 0."""
    counts = {name: _count_relevant_topics(sample) for name, sample in parts.items()}
    if HOLD_OUT in counts:
        if min(counts.values()) < 2:
            raise UsageError(
                f"{counts[CHOICE]} topics to choose on and {counts[HOLD_OUT]} to confirm the choice on, with a "
                "document above grade 0: each side needs two; give another split or "
                "judgments of more topics, or do not confirm"
            )
    elif not min(counts.values()):
        raise UsageError(
            "no sampled document of these topics has a grade above 0, so no order of them is better; draw more of "
            "them, or give another split"
        )


def _list_topics(topics: Sequence[str]) -> str:
    listed = f" ({shorten(topics)})" if topics else ""
    return f"{len(topics)} topic{'' if len(topics) == 1 else 's'}{listed}"


def _count_relevant_topics(sample: Iterable[Sampled]) -> int:
    """Return the number of topics with a document above grade 0, which count in nDCG."""
    return len({item.topic_id for item in sample if item.grade > 0.0})
