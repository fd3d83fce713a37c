"""Pairs of sentences: which are made, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, sqrt

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

    @property
    def sentence_ids(self) -> tuple[str, str]:
        """Ids of the two sentences."""
        return self.one.id, self.other.id

    def _has_claim_first(self) -> bool:
        """Return whether the sentence `one` comes before `other` in the pair.

        The sentence that is more of a claim comes first, since the other one supports it.
        """
        one = self.one
        other = self.other
        difference = one.claim - other.claim

        is_same_argument = one.argument == other.argument
        if is_same_argument and abs(difference) < _MIN_CLAIM_DIFFERENCE:
            # Neither is clearly the claim, so the order is that of the argument.
            return one.place < other.place
        if difference == 0.0:
            # Both are equally claims, so the better ranked one is first.
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
    pairs = _score_pairs(sentences, settings)
    pairs.sort(key=lambda pair: (-pair.score, pair.one.rank, pair.other.rank))

    max_uses = _get_max_uses(settings, settings.judged)
    to_judge = _choose_pairs(pairs, max_uses, settings.judged)
    # Pairs are distinct by their two sentences.
    ids_to_judge = {pair.sentence_ids for pair in to_judge}
    others = [pair for pair in pairs if pair.sentence_ids not in ids_to_judge]
    chosen = _limit_shares([*to_judge, *others], settings, min_pairs)

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

    max_sentences = _get_max_sentences(settings)
    pairs: list[_ScoredPair] = []
    for of_side in by_side.values():
        for one, other in combinations(of_side[:max_sentences], 2):
            score = (one.score + other.score) / 2
            if one.argument == other.argument:
                score += settings.same_argument
            pairs.append(_ScoredPair(score, one, other))
    return pairs


def _get_max_sentences(settings: PairSettings) -> int:
    """Return the number of sentences of one side that suffice for all pairs of a topic.

    Of n sentences, each is in at most n - 1 pairs. One side of this size gives `most` pairs without
    any sentence above its share.
    """
    for_shares = ceil(2 / settings.most_share)
    for_pairs = ceil(sqrt(2 * settings.most))
    return for_shares + for_pairs + 1


def _limit_shares(
    pairs: Sequence[_ScoredPair],
    settings: PairSettings,
    min_pairs: int,
) -> list[_ScoredPair]:
    """Choose as many pairs as possible with no sentence in more than its share of them.

    If these are fewer than `min_pairs`, each sentence may be in more pairs, until there are enough.
    """
    chosen = _choose_within_shares(pairs, settings)
    max_uses = _get_max_uses(settings, len(chosen))
    required = min(min_pairs, len(pairs), settings.most)
    while len(chosen) < required:
        max_uses += 1
        chosen = _choose_pairs(pairs, max_uses, required)
    return chosen


def _choose_within_shares(
    pairs: Sequence[_ScoredPair],
    settings: PairSettings,
) -> list[_ScoredPair]:
    """Choose pairs such that no sentence is in more than its share of the chosen ones.

    How often a sentence may be used depends on the number of pairs. If only 40 of 50 pairs can be
    chosen, a sentence may be used less often than assumed, so pairs are chosen again for 40.
    """
    target = min(settings.most, len(pairs))
    chosen = _choose_pairs(pairs, _get_max_uses(settings, target), target)
    # The target shrinks in each round, so the loop ends.
    while len(chosen) < target:
        target = len(chosen)
        chosen = _choose_pairs(pairs, _get_max_uses(settings, target), target)
    return chosen


def _get_max_uses(settings: PairSettings, pair_count: int) -> int:
    """Return in how many of the pairs of a topic one sentence may be."""
    return max(1, int(settings.most_share * pair_count))


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
