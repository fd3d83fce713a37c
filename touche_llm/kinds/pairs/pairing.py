"""Pairs of sentences: which are made, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil

from touche_llm.data.records import Candidate
from touche_llm.kinds.pairs.documents import join_pair
from touche_llm.kinds.pairs.sentences import Sentence
from touche_llm.kinds.pairs.settings import PairSettings

# Two sentences of one argument swap places only if their claim scores differ by at least this much.
_MIN_CLAIM_DIFFERENCE = 0.5


@dataclass(frozen=True, slots=True)
class _ScoredPair:
    """Two sentences on one side.

    Attributes:
        score: Score of the pair.
        one: Sentence with the better or equal score.
        other: The other sentence.
    """

    score: float
    one: Sentence
    other: Sentence

    @property
    def document_id(self) -> str:
        """Id of the pair, with the claim before its support."""
        if self._has_claim_first():
            return join_pair(self.one.id, self.other.id)
        return join_pair(self.other.id, self.one.id)

    def _has_claim_first(self) -> bool:
        """Return whether the first sentence is the claim, or comes first if neither is one."""
        one = self.one
        other = self.other
        difference = one.claim - other.claim
        if one.argument == other.argument and abs(difference) < _MIN_CLAIM_DIFFERENCE:
            return one.place < other.place
        if difference == 0.0:
            return one.rank <= other.rank
        return difference > 0.0


def make_pairs(
    topic_id: str,
    sentences: Sequence[Sentence],
    settings: PairSettings,
    min_pairs: int,
) -> list[Candidate]:
    """Make the best pairs of sentences on the same side, with the claim before its support.

    Pairs are chosen by score; a sentence that has reached its share of them is not chosen again.
    The pairs to judge come first. Two sentences of one argument keep their order unless the later
    one is clearly more of a claim.

    Args:
        topic_id: Topic of the sentences.
        sentences: Judged sentences, best first.
        settings: Numbers of pairs, and the share that one sentence may be in.
        min_pairs: Number of pairs that the task requires; to reach it, sentences may exceed their
            share.

    Returns:
        Pairs, best first, with ranks from 1.
    """
    scored = _score_pairs(sentences, settings)
    scored.sort(key=lambda pair: (-pair.score, pair.one.rank, pair.other.rank))

    max_judged = _get_max_uses(settings, settings.judged)
    judged = _choose_pairs(scored, max_judged, settings.judged)
    judged_ids = {(pair.one.id, pair.other.id) for pair in judged}
    others = [pair for pair in scored if (pair.one.id, pair.other.id) not in judged_ids]
    chosen = _limit_shares([*judged, *others], settings, min_pairs)

    return [
        Candidate(topic_id, pair.document_id, rank, pair.score)
        for rank, pair in enumerate(chosen, start=1)
    ]


def _score_pairs(sentences: Iterable[Sentence], settings: PairSettings) -> list[_ScoredPair]:
    """Return the pairs of sentences on one side that may be needed, with their scores.

    A score is the mean of the sentences' scores, plus `same_argument` within one argument.
    """
    by_side: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        by_side.setdefault(sentence.side, []).append(sentence)

    # Of n sentences of one side, each is in at most n - 1 pairs. More sentences than this are never
    # needed for `most` pairs, since one side of this size gives enough pairs without any sentence
    # above its share.
    max_sentences = ceil(2 / settings.most_share) + ceil((2 * settings.most) ** 0.5) + 1

    pairs: list[_ScoredPair] = []
    for of_side in by_side.values():
        for one, other in combinations(of_side[:max_sentences], 2):
            bonus = settings.same_argument if one.argument == other.argument else 0.0
            score = (one.score + other.score) / 2 + bonus
            pairs.append(_ScoredPair(score, one, other))
    return pairs


def _limit_shares(
    pairs: Sequence[_ScoredPair],
    settings: PairSettings,
    min_pairs: int,
) -> list[_ScoredPair]:
    """Choose as many pairs as possible with no sentence in more than its share of them.

    If these are fewer than `min_pairs`, each sentence may be in a few more.
    """
    max_pairs = min(settings.most, len(pairs))
    max_uses = _get_max_uses(settings, max_pairs)
    chosen = _choose_pairs(pairs, max_uses, max_pairs)

    # A smaller number of pairs allows each sentence a smaller number of uses.
    while len(chosen) < max_pairs:
        max_pairs = len(chosen)
        max_uses = _get_max_uses(settings, max_pairs)
        chosen = _choose_pairs(pairs, max_uses, max_pairs)

    required = min(min_pairs, len(pairs), settings.most)
    while len(chosen) < required:
        max_uses += 1
        chosen = _choose_pairs(pairs, max_uses, required)
    return chosen


def _get_max_uses(settings: PairSettings, pairs: int) -> int:
    """Return the maximum number of pairs, of so many, that one sentence may be in."""
    return max(1, int(settings.most_share * pairs))


def _choose_pairs(
    pairs: Iterable[_ScoredPair],
    max_uses: int,
    max_pairs: int,
) -> list[_ScoredPair]:
    """Choose the first `max_pairs` pairs such that no sentence is in more than `max_uses`."""
    uses: Counter[str] = Counter()
    chosen: list[_ScoredPair] = []
    for pair in pairs:
        if len(chosen) == max_pairs:
            break

        one_id = pair.one.id
        other_id = pair.other.id
        if uses[one_id] < max_uses and uses[other_id] < max_uses:
            uses.update((one_id, other_id))
            chosen.append(pair)
    return chosen
