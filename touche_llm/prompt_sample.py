"""The documents that the prompts of a comparison judge: drawn from the judged ones, evenly over their grades."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from touche_llm.corpus.passages import corpus_lines, is_word
from touche_llm.errors import DataError, UsageError
from touche_llm.evaluation.agreement import level
from touche_llm.files import whole_file
from touche_llm.first_stage import Corpus, listed
from touche_llm.judging import Documents
from touche_llm.qrels import MAX_LINE, Grades, Qrels, some
from touche_llm.records import Topic
from touche_llm.tasks.base import Task

COLUMNS = ("topic", "document", "grade")
ODD, EVEN = "odd", "even"
# The parts of a sample, as rows name them.
ALL, CHOICE, HOLD_OUT = "all", "choice", "hold-out"
# Topics; with fewer, half of them say next to nothing.
LEAST_FOR_HOLD_OUT = 8
SIZE = 200
_SAMPLES = Path(".touche-llm/samples")
# Lines; a comparison of so many documents is a run.
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Sampled:
    """A document for a topic, with the grade that people gave it."""

    topic_id: str
    document_id: str
    grade: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared, beside the wordings: which documents of which topics.

    Attributes:
        size: documents of the sample; None: 200.
        seed: of the sample; None: 0.
        file: the sample is read from it where it is there, and else written to it; None: a name made of its content.
        split: which topics variants are chosen on, see `split_topics`; None: those at odd places.
        hold_out: whether the other topics are held out, to confirm the choice on; None: where topics are parted by
            `split`, or there are at least 8.
        texts: whether the documents' texts are wanted.
    """

    size: int | None = None
    seed: int | None = None
    file: Path | None = None
    split: str | None = None
    hold_out: bool | None = None
    texts: bool = False


def judged_pool(grades: Grades, topics: Iterable[Topic], documents: Documents) -> tuple[Grades, list[str]]:
    """The judged documents that can be asked about, in the order of the topics, and what is left out, in words.

    Args:
        grades: of people.
        topics: that are asked about.
        documents: that are at hand.

    Raises:
        DataError: there is none.
    """
    asked = [topic.id for topic in topics]
    judged = [document for topic in asked for document in grades.get(topic, {})]
    unknown = set(documents.unknown(judged))
    pool = {
        topic: {document: grade for document, grade in grades[topic].items() if document not in unknown}
        for topic in asked
        if topic in grades
    }
    pool = {topic: found for topic, found in pool.items() if found}
    if not pool:
        raise DataError(
            f"none of the {len(judged):,} documents that people judged for topics {some(asked, 5)} is in the corpus; "
            "give the judgments of these topics and this corpus"
        )
    notes = []
    if without := [topic for topic in asked if topic not in pool]:
        notes.append(f"topics without a judged document in the corpus: {some(without)}")
    if missing := sum(document in unknown for document in judged):
        notes.append(f"judged documents that are not in the corpus: {missing:,} of {len(judged):,}")
    return pool, notes


def draw_sample(pool: Grades, size: int, seed: int) -> list[Sampled]:
    """Draw documents, as many of each whole grade as of any other, as far as there are so many; and so over the topics.

    What is drawn depends on the seed, the pool and nothing else: documents come in the order of a digest of seed, topic
    and document, so that no generator of random numbers need stay the same.

    Args:
        pool: see `judged_pool`.
        size: documents to draw; fewer where the pool has fewer.
        seed: another one draws others.

    Returns:
        topic by topic in the order of the pool, in an order that does not tell the grade.
    """

    def digest(topic: str, document: str) -> bytes:
        return hashlib.sha256(f"{seed} {topic} {document}".encode()).digest()

    found: dict[int, list[tuple[int, bytes, Sampled]]] = defaultdict(list)
    for topic, judged in pool.items():
        places: Counter[int] = Counter()
        for document in sorted(judged, key=lambda each: digest(topic, each)):
            of = level(judged[document])
            # The first one of each topic comes before the second one of any.
            found[of].append((places[of], digest(topic, document), Sampled(topic, document, judged[document])))
            places[of] += 1
    left, drawn = size, list[tuple[int, bytes, Sampled]]()
    for number, of in enumerate(sorted(found, key=lambda each: (len(found[each]), each))):
        share = min(len(found[of]), left // (len(found) - number))
        drawn += sorted(found[of])[:share] if share else []
        left -= share
    order = {topic: place for place, topic in enumerate(pool)}
    drawn.sort(key=lambda each: (order[each[2].topic_id], each[1]))
    return [each for _, _, each in drawn]


def write_sample(path: Path, sample: Iterable[Sampled]) -> None:
    """Write a sample as tab-separated lines with a header, whole or not at all."""
    with whole_file(path) as stream:
        for columns in (COLUMNS, *((each.topic_id, each.document_id, f"{each.grade:g}") for each in sample)):
            stream.write(("\t".join(columns) + "\n").encode())


def read_sample(path: Path, grades: Grades) -> list[Sampled]:
    """A sample that `write_sample` wrote, in the order of the file.

    Args:
        path: the file.
        grades: that people gave, which must be those of the file: it is of these judgments or of none.

    Raises:
        DataError: the file cannot be read or holds no document, or a line is none of a sample, comes twice or has
            another grade than people gave; names file and line.
    """
    found: dict[tuple[str, str], Sampled] = {}
    for number, raw in corpus_lines(path, MAX_LINE):
        where = f"{path}:{number}"
        if len(raw) > MAX_LINE or number > _MOST:
            raise DataError(f"{where}: longer than a sample can be; give a file that this command wrote")
        try:
            columns = raw.decode().rstrip("\r\n").split("\t")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8: {error.reason}") from error
        if number == 1:
            if tuple(columns) != COLUMNS:
                raise DataError(f"{where}: must be a header, {', '.join(COLUMNS)}, parted by tabs; this is no sample")
            continue
        if len(columns) != len(COLUMNS) or not all(map(is_word, columns)):
            raise DataError(f"{where}: must have {', '.join(COLUMNS)}, parted by tabs")
        topic, document, told = columns
        grade = grades.get(topic, {}).get(document)
        if grade is None:
            raise DataError(
                f"{where}: topic {topic}, document {document}: not judged in the qrels; give those it is of"
            )
        if f"{grade:g}" != told:
            raise DataError(
                f"{where}: topic {topic}, document {document}: grade {told:.20}, but {grade:g} in the qrels; draw a "
                "new sample, to a file that is not there"
            )
        if (topic, document) in found:
            raise DataError(f"{where}: topic {topic}, document {document}: comes twice; leave one of them out")
        found[topic, document] = Sampled(topic, document, grade)
    if not found:
        raise DataError(f"{path}: no document in this sample; draw a new one, to a file that is not there")
    return list(found.values())


def split_topics(topics: Sequence[str], split: str) -> tuple[list[str], list[str]]:
    """Part topics in two: those that are named, and the others; both in the given order.

    Args:
        topics: of a sample.
        split: `odd` or `even`, for the topics at such places, counted from 1, or the path of a file with ids, one a
            line.

    Raises:
        DataError: the file cannot be read, or a line that is no id.
        UsageError: none of the topics is in the file.
    """
    if split in (ODD, EVEN):
        chosen = set(topics[split == EVEN :: 2])
    else:
        chosen = set()
        for number, raw in corpus_lines(Path(split), MAX_LINE):
            try:
                name = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise DataError(f"{split}:{number}: not UTF-8: {error.reason}") from error
            if number > _MOST or len(raw) > MAX_LINE or (name and not is_word(name)):
                raise DataError(f"{split}:{number}: must be the id of a topic, one a line")
            chosen.add(name)
        if not chosen.intersection(topics):
            raise UsageError(
                f"{split}: none of the topics with sampled documents is in this file: {some(list(topics))}"
            )
    return [each for each in topics if each in chosen], [each for each in topics if each not in chosen]


def sample_of(
    plan: Plan, qrels: Qrels, topics: list[Topic], corpus: Corpus, task: Task
) -> tuple[list[Sampled], Path, list[str]]:
    """The sample, the file that it is in, and what people should know of it.

    Raises:
        UsageError: a file that is there, and with it how to draw another one.
        DataError: judgments or a sample that do not fit the topics and the corpus.
    """
    aspect = next(iter(qrels.grades))
    grades = qrels.grades[aspect]
    if plan.file is not None and plan.file.exists():
        if plan.size is not None or plan.seed is not None:
            raise UsageError(
                f"{plan.file}: is there and is taken as it is; leave size and seed out, or name a new file"
            )
        return (*_again(plan.file, grades, topics, corpus), [])
    pool, notes = judged_pool(grades, topics, corpus.documents)
    sample = draw_sample(pool, SIZE if plan.size is None else plan.size, plan.seed or 0)
    text = "\n".join(f"{each.topic_id} {each.document_id}" for each in sample)
    name = f"{task.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.tsv"
    path = plan.file or _SAMPLES / name
    write_sample(path, sample)
    return sample, path, notes


def _again(path: Path, grades: Grades, topics: list[Topic], corpus: Corpus) -> tuple[list[Sampled], Path]:
    """The documents of a sample that was drawn before, of the topics that are asked about, in their order."""
    sample = read_sample(path, grades)
    unknown = corpus.documents.unknown(each.document_id for each in sample)
    if unknown:
        raise DataError(
            f"{path}: {len(unknown)} of its documents are not in the corpus {corpus.name}: {listed(unknown)}"
        )
    places = {topic.id: place for place, topic in enumerate(topics)}
    kept = [each for each in sample if each.topic_id in places]
    if not kept:
        raise DataError(f"{path}: none of its topics is asked about: {some(sorted({s.topic_id for s in sample}))}")
    return sorted(kept, key=lambda each: places[each.topic_id]), path


def parts_of(plan: Plan, sample: Sequence[Sampled]) -> tuple[dict[str, list[Sampled]], list[str]]:
    """The parts of a sample, by name: all, or those to choose on and those held out; and notes of what none asked for.

    Raises:
        UsageError: topics that cannot be parted so, or too few of them that have a document to be found.
        DataError: as `split_topics`.
    """
    topics = list(dict.fromkeys(each.topic_id for each in sample))
    useful = {each.topic_id for each in sample if each.grade > 0.0}
    if not useful:
        raise UsageError("no sampled document has a grade above 0, so no order of them is better; draw more of them")
    hold_out, notes = plan.hold_out, list[str]()
    if hold_out is None:
        hold_out = plan.split is not None or len(topics) >= LEAST_FOR_HOLD_OUT
        many = "every second one is held out (--split, --no-hold-out)"
        few = f"fewer than {LEAST_FOR_HOLD_OUT}, so that none is held out (--hold-out does it all the same)"
        notes = [f"{len(topics)} topics: {many if hold_out else few}"] if plan.split is None else []
    if plan.split is None and not hold_out:
        return {ALL: list(sample)}, notes
    chosen, others = split_topics(topics, plan.split or ODD)
    parts = {CHOICE: [each for each in sample if each.topic_id in chosen]}
    if hold_out:
        parts[HOLD_OUT] = [each for each in sample if each.topic_id in others]
        counts = [len(useful.intersection(each)) for each in (chosen, others)]
        if min(counts) < 2:
            raise UsageError(
                f"{counts[0]} topics to choose on and {counts[1]} to confirm the choice on, with a document above "
                "grade 0: each side needs two; give --no-hold-out, another --split, or judgments of more topics"
            )
    elif not useful.intersection(chosen):
        raise UsageError(f"--split {plan.split}: no sampled document of these topics has a grade above 0")
    return parts, notes
