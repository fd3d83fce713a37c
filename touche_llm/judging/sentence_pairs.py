"""Sentence pairs: pairing of sentences, their order in a pair, and the judgment inherited from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import combinations
from math import ceil
from typing import Annotated

import msgspec
from pydantic import Field

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Document, Failure, Judgment, Topic
from touche_llm.errors import DataError
from touche_llm.judging.grades import combine_grades
from touche_llm.judging.pointwise import RequestBuilder, Stage, group_judgments, judge
from touche_llm.prompts.prompt import Prompt
from touche_llm.settings.section import Option, Section
from touche_llm.tasks.definition import NO_SIDE, Scale
from touche_llm.tasks.task import Task

SEPARATOR = ","
NO_ROLE = "NONE"
CLAIM = "CLAIM"
# Two sentences of one argument swap places only if their claim scores differ by at least this much.
_MIN_CLAIM_DIFFERENCE = 0.5


class PairSettings(Section):
    """Settings for pairing judged sentences.

    Attributes:
        both_orders: Number of the best judged pairs that are judged again in reversed order; the
            better order is kept.
        most: Maximum number of pairs per topic.
        most_share: Maximum share of a topic's pairs, and of its judged pairs, that one sentence may
            be in; exceeded only if the required number of pairs cannot be reached otherwise.
        no_side_above: Probability of taking no side above which a sentence has none; else it has
            the more probable.
        same_argument: Bonus on the score of two sentences of one argument, since they belong
            together.
    """

    judged: Annotated[
        int,
        Option(
            "--judge-pairs",
            "Pairs per topic that the model judges; the others inherit their grades",
            "Judging",
        ),
    ] = Field(100, ge=0)
    both_orders: Annotated[
        int,
        Option(
            "--both-orders",
            "Best pairs per topic that are judged in the other order too",
            "Judging",
        ),
    ] = Field(20, ge=0)
    most: int = Field(1000, ge=1)
    most_share: float = Field(0.1, gt=0.0, le=1.0)
    no_side_above: float = Field(0.5, ge=0.0, le=1.0)
    same_argument: float = Field(0.1, ge=0.0, le=1.0)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A judged sentence that takes a side, with the rows of its argument and of itself in the corpus.

    Attributes:
        score: Its quality, from 0 to 1.
        claim: Probability that it is a claim minus the probability that it is a premise.
    """

    id: str
    argument: int
    place: int
    side: str
    score: float
    claim: float
    rank: int


class PairDocuments:
    """Pairs as documents: the id is `a,b`, the text is the two sentences, each on a line of its own."""

    def __init__(self, sentences: Parts) -> None:
        self._sentences = sentences

    def get(self, document_id: str) -> Document:
        """Return the pair with this id.

        Raise DataError if the id is not a pair or a sentence is unknown.
        """
        if problem := describe_pair_problem(document_id):
            raise DataError(f"document {document_id!r}: {problem}")
        texts = [
            " ".join(self._sentences.get(sentence).text.split())
            for sentence in document_id.split(SEPARATOR)
        ]
        return Document(document_id, "\n".join(texts))

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the given ids with a sentence that the corpus lacks, in the given order."""
        pairs = list(document_ids)
        missing = set(
            self._sentences.find_unknown(
                sentence for pair in pairs for sentence in pair.split(SEPARATOR)
            )
        )
        return [pair for pair in pairs if not missing.isdisjoint(pair.split(SEPARATOR))]


def describe_pair_problem(document_id: str) -> str:
    """Describe why an id is not that of a pair; return an empty text if it is."""
    parts = document_id.split(SEPARATOR)
    if len(parts) != 2 or not all(parts):
        return "not a pair: two sentence ids separated by a comma"
    return "a sentence paired with itself" if parts[0] == parts[1] else ""


def reverse_pair(document_id: str) -> str:
    """Return the id of the pair in reversed order."""
    return SEPARATOR.join(reversed(document_id.split(SEPARATOR)))


def select_sentences(
    candidates: list[Candidate],
    judgments: Mapping[str, Judgment],
    place: Callable[[str], tuple[int, int]],
    settings: PairSettings,
    weights: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> list[Sentence]:
    """Select the judged sentences of a topic that take a side, best first.

    A sentence's score is the weighted mean of its grades, times the probability that it argues,
    times that of its
    side: a sentence that is no argument, or on no clear side, scores low however well it is
        written. Sentences
    without a judgment are left out.
    """
    found = []
    for candidate in candidates:
        judgment = judgments.get(candidate.document_id)
        if judgment is None or (side := _choose_side(judgment, settings.no_side_above)) == NO_SIDE:
            continue
        roles = judgment.readings["role"].shares
        argument, row = place(candidate.document_id)
        clarity = judgment.readings["stance"].shares[side]
        found.append(
            Sentence(
                id=candidate.document_id,
                argument=argument,
                place=row,
                side=side,
                score=(1.0 - roles.get(NO_ROLE, 0.0))
                * clarity
                * combine_grades(judgment, weights, scales),
                claim=2 * roles.get(CLAIM, 0.0) + roles.get(NO_ROLE, 0.0) - 1.0,
                rank=candidate.rank,
            )
        )
    return sorted(found, key=lambda sentence: (-sentence.score, sentence.rank))


def make_pairs(
    topic_id: str, sentences: list[Sentence], settings: PairSettings, min_pairs: int
) -> list[Candidate]:
    """Make the best pairs of sentences on the same side, with the claim before its support.

    A pair's score is the mean of its sentences' scores, plus `same_argument` within one argument.
    Pairs are chosen by score; a sentence that has reached its share of them is not chosen again.
    The judged pairs come first. Two sentences of one argument keep their order unless the later one
    is clearly more of a claim. To reach `min_pairs`, which the task requires, sentences may exceed
    `most_share`.
    """
    ordered = sorted(
        _score_pairs(sentences, settings), key=lambda pair: (-pair[0], pair[1].rank, pair[2].rank)
    )
    judged = _cap(ordered, max(1, int(settings.most_share * settings.judged)), settings.judged)
    ids = {(one.id, other.id) for _, one, other in judged}
    others = [pair for pair in ordered if (pair[1].id, pair[2].id) not in ids]
    chosen = _cap_shares(judged + others, settings, min_pairs)
    return [
        Candidate(
            topic_id,
            SEPARATOR.join(sentence.id for sentence in _put_in_order(one, other)),
            rank,
            score,
        )
        for rank, (score, one, other) in enumerate(chosen, start=1)
    ]


def _put_in_order(one: Sentence, other: Sentence) -> tuple[Sentence, Sentence]:
    """Put the claim before its support.

    If neither is clearly more of a claim, keep the order of the argument.
    """
    difference = one.claim - other.claim
    if one.argument == other.argument and abs(difference) < _MIN_CLAIM_DIFFERENCE:
        return (one, other) if one.place < other.place else (other, one)
    return (one, other) if (-difference, one.rank) <= (0.0, other.rank) else (other, one)


_ScoredPair = tuple[float, Sentence, Sentence]


def _score_pairs(sentences: list[Sentence], settings: PairSettings) -> Iterator[_ScoredPair]:
    # Of n sentences of one side, each is in at most n - 1 pairs. More sentences than this are never
    # needed for `most` pairs, since one side of this size gives enough pairs without any sentence
    # above its share.
    enough = ceil(2 / settings.most_share) + ceil((2 * settings.most) ** 0.5) + 1
    by_side: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        by_side.setdefault(sentence.side, []).append(sentence)
    for side in by_side.values():
        for one, other in combinations(side[:enough], 2):
            bonus = settings.same_argument if one.argument == other.argument else 0.0
            yield (one.score + other.score) / 2 + bonus, one, other


def _cap_shares(
    ordered: list[_ScoredPair], settings: PairSettings, min_pairs: int
) -> list[_ScoredPair]:
    """Choose as many pairs as the share allows.

    Below `min_pairs`, let each sentence be in a few more.
    """
    target = min(settings.most, len(ordered))
    while True:
        limit = max(1, int(settings.most_share * target))
        chosen = _cap(ordered, limit, target)
        if len(chosen) == target:
            break
        target = len(chosen)
    required = min(min_pairs, len(ordered), settings.most)
    while len(chosen) < required:
        limit += 1
        chosen = _cap(ordered, limit, required)
    return chosen


def _cap(ordered: list[_ScoredPair], limit: int, max_pairs: int) -> list[_ScoredPair]:
    """Choose the first `max_pairs` pairs such that no sentence occurs more than `limit` times."""
    used: Counter[str] = Counter()
    chosen: list[_ScoredPair] = []
    for pair in ordered:
        if len(chosen) == max_pairs:
            break
        _, one, other = pair
        if used[one.id] < limit and used[other.id] < limit:
            used.update((one.id, other.id))
            chosen.append(pair)
    return chosen


def inherit_judgment(
    candidate: Candidate, judgments: Mapping[str, Judgment], settings: PairSettings
) -> Judgment:
    """Return the judgment that a pair inherits: the mean grades of its sentences, and their common side."""
    one, other = (judgments[sentence] for sentence in candidate.document_id.split(SEPARATOR))
    return Judgment(
        topic_id=candidate.topic_id,
        document_id=candidate.document_id,
        grades={name: (grade + other.grades[name]) / 2 for name, grade in one.grades.items()},
        stance=_choose_side(one, settings.no_side_above),
        source="inherited",
        prompt=one.prompt,
    )


def _choose_side(judgment: Judgment, no_side_above: float) -> str:
    """Return the side of a sentence: none if that is probable enough, else the most probable of the others."""
    shares = judgment.readings["stance"].shares
    if shares.get(NO_SIDE, 0.0) > no_side_above:
        return NO_SIDE
    sides = {side: share for side, share in shares.items() if side != NO_SIDE}
    highest = max(sides.values(), default=0.0)
    most_probable = [side for side, share in sides.items() if share == highest]
    return most_probable[0] if len(most_probable) == 1 else NO_SIDE


@dataclass(frozen=True, slots=True)
class PairJudge:
    """Judge of sentences, `depth` of a topic at a time, and of the pairs made of them.

    The prompts are those of the purposes `sentence` and, for pairs, `judge`.
    """

    task: Task
    rankings: Mapping[str, list[Candidate]]
    depth: int
    settings: PairSettings
    parts: Parts
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    stage: Stage
    failures: list[Failure] = field(default_factory=list)

    async def judge(
        self, topics: list[Topic]
    ) -> tuple[list[list[Candidate]], list[Judgment], list[Judgment]]:
        """Judge sentences of these topics, make pairs of them, and judge the best pairs.

        The best judged pairs are judged in the reversed order too; the order with the better grades
        is ranked, and both judgments are kept.

        Returns:
            Pairs of each topic, their judgments, and those of the sentences.
        """
        made, sentences = await self._judge_sentences(topics)
        by_sentence = group_judgments(sentences)
        work = [
            (topic, pair.document_id)
            for topic in topics
            for pair in made[topic.id][: self.settings.judged]
        ]
        judged = group_judgments(await self._judge("judging pairs", work))
        work = [
            (topic, reverse_pair(judgment.document_id))
            for topic in topics
            for judgment in nlargest(
                self.settings.both_orders, judged[topic.id].values(), key=self._grade
            )
        ]
        reversed_ = group_judgments(
            await self._judge("judging pairs in reversed order", work) if work else ()
        )
        judgments: list[Judgment] = []
        rankings: list[list[Candidate]] = []
        for topic in topics:
            ranking = []
            for pair in made[topic.id]:
                judgment = judged[topic.id].get(pair.document_id)
                judgment = judgment or inherit_judgment(pair, by_sentence[topic.id], self.settings)
                other = reversed_[topic.id].get(reverse_pair(pair.document_id))
                orders = [judgment] if other is None else [judgment, other]
                best = max(orders, key=self._grade)
                judgments += orders
                ranking.append(msgspec.structs.replace(pair, document_id=best.document_id))
            rankings.append(ranking)
        return rankings, judgments, sentences

    @property
    def min_pairs(self) -> int:
        """Number of pairs per topic that the task requires."""
        return min(self.task.documents_per_topic.min, self.settings.most)

    async def _judge_sentences(
        self, topics: list[Topic]
    ) -> tuple[dict[str, list[Candidate]], list[Judgment]]:
        """Judge sentences, and more of the topics with too few pairs until none is left.

        Make pairs by topic.
        """
        pairs: dict[str, list[Candidate]] = {topic.id: [] for topic in topics}
        sentences: list[Judgment] = []
        lacking, start = topics, 0
        while work := [
            (topic, sentence.document_id)
            for topic in lacking
            for sentence in self.rankings.get(topic.id, [])[start : start + self.depth]
        ]:
            sentences += await self._judge("judging sentences", work, of_pairs=False)
            judged = group_judgments(sentences)
            start += self.depth
            for topic in lacking:
                selected = select_sentences(
                    self.rankings.get(topic.id, [])[:start],
                    judged[topic.id],
                    self.parts.locate,
                    self.settings,
                    self.task.objectives["both"],
                    self.task.aspects,
                )
                pairs[topic.id] = make_pairs(topic.id, selected, self.settings, self.min_pairs)
            lacking = [topic for topic in lacking if len(pairs[topic.id]) < self.min_pairs]
        return pairs, sentences

    async def _judge(
        self, title: str, work: list[tuple[Topic, str]], *, of_pairs: bool = True
    ) -> list[Judgment]:
        """Judge pairs or sentences.

        Return their judgments, and add failed requests to `failures`.
        """
        prompt = self.prompts["judge" if of_pairs else "sentence"]
        documents = PairDocuments(self.parts) if of_pairs else self.parts
        question = self.task.question if of_pairs else self.task.sentence_question
        assert question is not None
        with self.stage(title, len(work) * len(prompt.sent)) as done:
            judgments, failed = await judge(work, documents, question, prompt, self.builder, done)
        self.failures.extend(failed)
        return judgments

    def _grade(self, judgment: Judgment) -> float:
        """Combine the grades by the task's weights.

        The run's weights must not change which pairs are judged.
        """
        return combine_grades(judgment, self.task.objectives["both"], self.task.aspects)
