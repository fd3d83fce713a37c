"""Pairs of sentences: which are made, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from math import ceil

from touche_llm.data.records import Candidate, Judgment
from touche_llm.judging.grades import combine_grades
from touche_llm.kinds.pairs.documents import CLAIM, NO_ROLE, SEPARATOR, Sentence
from touche_llm.kinds.pairs.inheritance import choose_side
from touche_llm.kinds.pairs.settings import PairSettings
from touche_llm.tasks.parts import NO_SIDE, Scale

# Two sentences of one argument swap places only if their claim scores differ by at least this much.
_MIN_CLAIM_DIFFERENCE = 0.5


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
        if judgment is None or (side := choose_side(judgment, settings.no_side_above)) == NO_SIDE:
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
