"""Pairs of sentences: which sentences stand together, in which order, and what a pair inherits from its sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import ceil

from pydantic import BaseModel, ConfigDict, Field

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Document, Judgment
from touche_llm.errors import DataError
from touche_llm.judging.grades import combine_grades

SEPARATOR = ","
NO_SIDE = "NONE"
NO_ROLE = "NONE"
CLAIM = "CLAIM"
# Two sentences of one argument change places only for a larger difference in being a claim.
_CLEARLY = 0.5


class PairSettings(BaseModel):
    """How pairs are made of judged sentences.

    Attributes:
        judged: pairs that the model judges, for each topic; the others inherit their sentences' grades.
        both_orders: of those the best ones, asked again with the sentences the other way round; the better order stays.
        most: pairs for each topic.
        most_share: share of a topic's pairs that one sentence may be in, and of those that are judged; exceeded only
            where the wanted number of pairs cannot be reached otherwise.
        no_side_above: a sentence takes no side where that has more than this probability; otherwise the more probable.
        same_argument: added to the score of two sentences of one argument, since they belong together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    judged: int = Field(100, ge=0)
    both_orders: int = Field(20, ge=0)
    most: int = Field(1000, ge=1)
    most_share: float = Field(0.1, gt=0.0, le=1.0)
    no_side_above: float = Field(0.5, ge=0.0, le=1.0)
    same_argument: float = Field(0.1, ge=0.0, le=1.0)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A judged sentence that takes a side.

    `score` lies between 0 and 1; `claim` is the probability that it is a claim, less that it is a premise; `argument`
    and `place` are rows of the corpus, so that places tell the order within an argument.
    """

    id: str
    argument: int
    place: int
    side: str
    score: float
    claim: float
    rank: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of one topic, best first.

    `share` is the largest share of them that a sentence is in, `share_judged` that of those that the model judges.
    """

    candidates: list[Candidate]
    share: float
    share_judged: float


class PairDocuments:
    """Pairs as documents: the id is `a,b`, the text is the two sentences, each on a line of its own."""

    def __init__(self, sentences: Parts) -> None:
        self._sentences = sentences

    def get(self, document_id: str) -> Document:
        """The pair of this id; raises DataError where it is none, or of unknown sentences."""
        problem = describe_pair_problem(document_id)
        if problem:
            raise DataError(f"document {document_id!r}: {problem}")
        texts = [" ".join(self._sentences.get(each).text.split()) for each in document_id.split(SEPARATOR)]
        return Document(document_id, "\n".join(texts))

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Those of the given ids of which a sentence is not in the corpus, in the order given."""
        asked = list(document_ids)
        missing = set(self._sentences.find_unknown(part for each in asked for part in each.split(SEPARATOR)))
        return [each for each in asked if not missing.isdisjoint(each.split(SEPARATOR))]


def describe_pair_problem(document_id: str) -> str:
    """What keeps an id from being a pair's, in words; empty where nothing does."""
    parts = document_id.split(SEPARATOR)
    if len(parts) != 2 or not all(parts):
        return "not a pair: two sentence ids with a comma between"
    return "a sentence paired with itself" if parts[0] == parts[1] else ""


def reverse_pair(document_id: str) -> str:
    """The id of the same pair the other way round."""
    first, second = document_id.split(SEPARATOR)
    return f"{second}{SEPARATOR}{first}"


def select_sentences(
    candidates: list[Candidate],
    judgments: Mapping[str, Judgment],
    place: Callable[[str], tuple[int, int]],
    settings: PairSettings,
    weights: Mapping[str, float],
) -> list[Sentence]:
    """The judged sentences of a topic that take a side, best first.

    A sentence's score is the weighted mean of its grades/3, times the probability that it argues, times that of its
    side: what is no argument, or on no clear side, is worth little however well it is written.

    Args:
        candidates: the topic's sentences, by rank.
        judgments: by sentence id; a sentence without one is left out.
        place: the rows of the argument that a sentence is of, and of the sentence.
        settings: say when a sentence takes no side.
        weights: of the grades, by name.
    """
    found = []
    for candidate in candidates:
        judgment = judgments.get(candidate.document_id)
        side = _side(judgment, settings.no_side_above) if judgment else NO_SIDE
        if judgment is None or side == NO_SIDE:
            continue
        roles = _probabilities(judgment, "role")
        argument, row = place(candidate.document_id)
        clear = _probabilities(judgment, "stance")[side]
        found.append(
            Sentence(
                id=candidate.document_id,
                argument=argument,
                place=row,
                side=side,
                score=(1.0 - roles[NO_ROLE]) * clear * combine_grades(judgment, weights),
                claim=2 * roles[CLAIM] + roles[NO_ROLE] - 1.0,
                rank=candidate.rank,
            )
        )
    return sorted(found, key=lambda each: (-each.score, each.rank))


def make_pairs(topic_id: str, sentences: list[Sentence], settings: PairSettings, least: int) -> Pairs:
    """The best pairs of sentences that stand on the same side, the claim before what supports it.

    A pair's score is the mean of its sentences' scores, with `same_argument` added within one argument. Pairs are
    taken by score; a sentence that is in its share of them takes no further part. Those that are judged come first.
    Two sentences of one argument keep its order unless the later one is clearly more of a claim.

    Args:
        topic_id: the topic.
        sentences: with their sides, best first.
        settings: how many pairs, and how often a sentence may be in them.
        least: pairs that the task wants; to reach them, sentences may occur more often than `most_share` says.
    """
    ordered = sorted(_scored(sentences, settings), key=lambda pair: (-pair[0], pair[1].rank, pair[2].rank))
    judged = _capped(ordered, _limit(settings, settings.judged), settings.judged)
    ids = {(one.id, other.id) for _, one, other in judged}
    chosen = _within_share(judged + [pair for pair in ordered if (pair[1].id, pair[2].id) not in ids], settings, least)
    candidates = []
    for rank, (score, one, other) in enumerate(chosen, start=1):
        first, second = _in_order(one, other)
        candidates.append(Candidate(topic_id, f"{first.id}{SEPARATOR}{second.id}", rank, score))
    return Pairs(candidates, _largest_share(chosen), _largest_share(chosen[: settings.judged]))


def _in_order(one: Sentence, other: Sentence) -> tuple[Sentence, Sentence]:
    """The claim before its support; where neither is clearly more of a claim, the order of the argument."""
    difference = one.claim - other.claim
    if one.argument == other.argument and abs(difference) < _CLEARLY:
        return (one, other) if one.place < other.place else (other, one)
    return (one, other) if (-difference, one.rank) <= (0.0, other.rank) else (other, one)


def _largest_share(pairs: list[_Scored]) -> float:
    counts = Counter(each.id for _, *pair in pairs for each in pair)
    return max(counts.values(), default=0) / max(len(pairs), 1)


def _limit(settings: PairSettings, pairs: int) -> int:
    """In how many of so many pairs one sentence may be."""
    return max(1, int(settings.most_share * pairs))


_Scored = tuple[float, Sentence, Sentence]


def _scored(sentences: list[Sentence], settings: PairSettings) -> Iterator[_Scored]:
    # Of n sentences of one side, each is in at most n - 1 pairs; more than this many are never needed for `most`
    # pairs, since a side of this size alone gives more than enough without any sentence above its share.
    enough = ceil(2 / settings.most_share) + ceil((2 * settings.most) ** 0.5) + 1
    by_side: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        by_side.setdefault(sentence.side, []).append(sentence)
    for side in by_side.values():
        for one, other in combinations(side[:enough], 2):
            bonus = settings.same_argument if one.argument == other.argument else 0.0
            yield (one.score + other.score) / 2 + bonus, one, other


def _within_share(ordered: list[_Scored], settings: PairSettings, least: int) -> list[_Scored]:
    """As many pairs as the share allows; where they are fewer than `least`, each sentence may be in a few more."""
    target = min(settings.most, len(ordered))
    while True:
        limit = _limit(settings, target)
        chosen = _capped(ordered, limit, target)
        if len(chosen) == target:
            break
        target = len(chosen)
    wanted = min(least, len(ordered), settings.most)
    while len(chosen) < wanted:
        limit += 1
        chosen = _capped(ordered, limit, wanted)
    return chosen


def _capped(ordered: list[_Scored], limit: int, most: int) -> list[_Scored]:
    """The first `most` pairs in which no sentence occurs more than `limit` times."""
    used: Counter[str] = Counter()
    chosen: list[_Scored] = []
    for pair in ordered:
        if len(chosen) == most:
            break
        _, one, other = pair
        if used[one.id] < limit and used[other.id] < limit:
            used.update((one.id, other.id))
            chosen.append(pair)
    return chosen


def inherit_judgment(candidate: Candidate, judgments: Mapping[str, Judgment], settings: PairSettings) -> Judgment:
    """What a pair has from its sentences: their mean grades, and the side that both stand on."""
    one, other = (judgments[each] for each in candidate.document_id.split(SEPARATOR))
    return Judgment(
        topic_id=candidate.topic_id,
        document_id=candidate.document_id,
        grades={name: (grade + other.grades[name]) / 2 for name, grade in one.grades.items()},
        stance=_side(one, settings.no_side_above),
        source="inherited",
        prompt=one.prompt,
    )


def _side(judgment: Judgment, no_side_above: float) -> str:
    """The side of a sentence: none where that is probable enough, else the more probable of the others."""
    shares = _probabilities(judgment, "stance")
    if shares[NO_SIDE] > no_side_above:
        return NO_SIDE
    sides = {side: share for side, share in shares.items() if side != NO_SIDE}
    highest = max(sides.values(), default=0.0)
    most_probable = [side for side, share in sides.items() if share == highest > 0.0]
    return most_probable[0] if len(most_probable) == 1 else NO_SIDE


def _probabilities(judgment: Judgment, field: str) -> Mapping[str, float]:
    """The probabilities of a field's labels; where the engine sent none, 1 for the answered one."""
    reading = judgment.readings[field]
    if reading.probabilities is not None:
        return reading.probabilities
    return Counter({str(reading.answered): 1.0})
