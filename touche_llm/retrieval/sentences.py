"""First stage for sentences, which combines their scores with those of their arguments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics.reading import build_query
from touche_llm.retrieval.corpus import FirstStage
from touche_llm.retrieval.selection import select_best_rows, select_candidates
from touche_llm.settings.section import Section
from touche_llm.text.analysis import Analyzer

_ENDINGS = (".com", ".org", ".net", ".edu", ".gov", ".htm", ".html", ".pdf")
_PUNCTUATION = ".,;:!?()[]{}<>\"'“”‘’"
_WORD = re.compile(r"[^\W\d_]{2,}")
# Candidates before filtering, in multiples of the pool; most filtered sentences are repetitions.
_OVERFETCH = 4
# For rounding errors in sizes: 0.55 * 100 is 55.00000000000001, for example.
_TOLERANCE = 1e-9
# In place of a maximum of 0, if no text matches.
_MIN_DIVISOR = 1e-12


class SentenceSettings(Section):
    """Settings of sentence retrieval.

    A score is `1 - argument_share` times the BM25 score of the sentence plus `argument_share` times
    that of its argument, each divided by the maximum of the topic.

    Attributes:
        pool: Sentences kept for each topic.
        arguments: Number of best arguments, all sentences of which are candidates.
        argument_share: Weight of the score of the argument.
        least_words: Min words of a sentence.
        most_chars: Max characters of a sentence.
        duplicate: Jaccard similarity of the terms from which a sentence duplicates a better one.
    """

    pool: int = Field(1000, ge=2, le=100_000)
    arguments: int = Field(100, ge=0)
    argument_share: float = Field(0.3, ge=0.0, le=1.0)
    least_words: int = Field(4, ge=1)
    most_chars: int = Field(1000, ge=1)
    duplicate: float = Field(0.8, gt=0.0, le=1.0)


def retrieve_sentences(
    topics: Iterable[Topic],
    arguments: FirstStage,
    sentences: FirstStage,
    parts: Parts,
    settings: SentenceSettings,
    fields: tuple[str, ...],
) -> Iterator[list[Candidate]]:
    """Yield the best sentences of each topic.

    Candidates are the matching sentences and all sentences of the best arguments. They are scored,
    cut off at a depth, and then filtered for sentences that say something alone and new.

    Args:
        topics: Topics to search for.
        arguments: First stage that scores the documents of the corpus.
        sentences: First stage that scores their sentences.
        parts: Sentences of the corpus.
        settings: Numbers of sentences and arguments, and filters of sentences.
        fields: Fields of a topic that make the query.
    """
    analyzer = Analyzer()
    parents = parts.load_parents()
    for topic in topics:
        query = build_query(topic, fields)
        found = join_scores(
            arguments=arguments.score(query),
            sentences=sentences.score(query),
            parents=parents,
            settings=settings,
        )
        # More than are kept, since many are left out as repetitions.
        ranking = select_candidates(
            topic,
            scores=found.scores,
            # The ranking has places in `found`, which stand for rows of `parts`.
            get_ids=partial(_get_ids, parts, found.rows),
            depth=settings.pool * _OVERFETCH,
        )
        yield select_distinct(ranking, parts, settings, analyzer)


def select_distinct(
    ranking: Sequence[Candidate],
    parts: Parts,
    settings: SentenceSettings,
    analyzer: Analyzer,
) -> list[Candidate]:
    """Return at most `pool` self-contained sentences that are no near-duplicates of better ones."""
    texts = parts.get_texts([candidate.document_id for candidate in ranking])
    duplicates = DuplicateFilter(settings.duplicate)

    selected: list[Candidate] = []
    for candidate, text in zip(ranking, texts, strict=True):
        if len(selected) == settings.pool:
            break
        if not is_self_contained(text, settings):
            continue

        terms = frozenset(analyzer.analyze(text))
        if duplicates.add(terms):
            rank = len(selected) + 1
            selected.append(
                Candidate(candidate.topic_id, candidate.document_id, rank, candidate.score)
            )
    return selected


def _get_ids(parts: Parts, rows: NDArray[np.int64], places: list[int]) -> list[str]:
    """Return the ids of the sentences at some places in an array of rows."""
    return parts.get_ids(rows[places].tolist())


class ScoredRows(NamedTuple):
    """Rows of sentences, ascending, and their scores from 0 to 1; both of shape (found,)."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


def join_scores(
    arguments: NDArray[np.floating[Any]],
    sentences: NDArray[np.floating[Any]],
    parents: NDArray[np.int64],
    settings: SentenceSettings,
) -> ScoredRows:
    """Return the sentences that match or are part of a best argument, with their scores.

    The score is `(1 - argument_share) * s + argument_share * a`. Here `s` is the score of the
    sentence and `a` that of its argument, each divided by the maximum for the topic; `a` is 0
    unless the argument is one of the best.

    Args:
        arguments: Scores of the arguments, of shape (arguments,).
        sentences: Scores of the sentences, of shape (sentences,).
        parents: Row of the argument of each sentence, ascending, of shape (sentences,).
        settings: Number of best arguments (ties at the cutoff are included) and weight of their
            scores.
    """
    best_arguments = select_best_rows(arguments, settings.arguments)
    argument_scores = np.zeros(len(arguments), dtype=np.float64)
    argument_scores[best_arguments] = _scale(arguments[best_arguments], arguments)

    is_match = sentences > 0
    rows = np.flatnonzero(is_match | _are_children(best_arguments, parents))

    scores_of_sentences = _scale(sentences[rows], sentences)
    scores_of_arguments = argument_scores[parents[rows]]
    share = settings.argument_share
    scores = (1.0 - share) * scores_of_sentences + share * scores_of_arguments
    return ScoredRows(rows, scores)


def _are_children(
    arguments: NDArray[np.int64],
    parents: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return whether each sentence is part of one of the arguments, of shape (sentences,).

    Args:
        arguments: Rows of arguments.
        parents: Row of the argument of each sentence, ascending, of shape (sentences,).
    """
    are_children = np.zeros(len(parents), dtype=np.bool_)
    # The sentences of an argument are in successive rows, since parents are ascending.
    starts = np.searchsorted(parents, arguments, side="left")
    ends = np.searchsorted(parents, arguments, side="right")
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        are_children[start:end] = True
    return are_children


def _scale(
    chosen: NDArray[np.floating[Any]],
    scores: NDArray[np.floating[Any]],
) -> NDArray[np.float64]:
    """Return some of the scores, divided by the maximum of all."""
    highest = float(scores.max(initial=0.0))
    scaled: NDArray[np.float64] = chosen.astype(np.float64) / max(highest, _MIN_DIVISOR)
    return scaled


def is_self_contained(text: str, settings: SentenceSettings) -> bool:
    """Return whether a sentence can be understood alone.

    It has at least `least_words` words, and at most `most_chars` characters. A word has two letters
    or more, and is no link.
    """
    if len(text) > settings.most_chars:
        return False

    word_count = 0
    for token in text.split():
        if _WORD.search(token) and not _is_link(token):
            word_count += 1
        # Most sentences have enough words near their beginning, so the others are not examined.
        if word_count == settings.least_words:
            return True
    return False


def _is_link(token: str) -> bool:
    """Return whether a token is an address or a name of a host or file."""
    if "." not in token and "/" not in token:
        return False
    name = token.casefold().strip(_PUNCTUATION)
    return "/" in name or name.startswith("www.") or name.endswith(_ENDINGS)


class DuplicateFilter:
    """Filter that rejects near-duplicates of the sets of terms kept so far.

    Near-duplicates have a Jaccard similarity of at least `threshold`. Prefix and length filtering
    limit the pairs to compare: at similarity t, the smaller set has at least t times the size of
    the larger, and both share one of their first |s| - ceil(t |s|) + 1 terms in any common order
    (Chaudhuri et al., ICDE 2006; Bayardo et al., WWW 2007).
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        # Kept sets, by each term of their prefix.
        self._kept: dict[str, list[frozenset[str]]] = defaultdict(list)

    def add(self, terms: frozenset[str]) -> bool:
        """Keep a set of terms, and return True, unless it is empty or a near-duplicate.

        Prefix filtering makes this fast: near-duplicates share a term of their prefixes, so a set
        is compared only with the kept sets that do.
        """
        if not terms:
            return False

        near_sizes = self._list_near_sizes(len(terms))
        prefix = _select_prefix(terms, min_shared=near_sizes.start)
        for kept in self._find_sharing(prefix):
            if len(kept) in near_sizes and jaccard(terms, kept) >= self._threshold:
                return False

        for term in prefix:
            self._kept[term].append(terms)
        return True

    def _list_near_sizes(self, size: int) -> range:
        """Return the sizes that a near-duplicate of a set of this size can have.

        At a threshold of 0.8, near-duplicates of a set of 10 terms have 8 to 12 terms.
        """
        min_size = ceil(self._threshold * size - _TOLERANCE)
        max_size = int(size / self._threshold + _TOLERANCE)
        return range(min_size, max_size + 1)

    def _find_sharing(self, prefix: Iterable[str]) -> set[frozenset[str]]:
        """Return the kept sets with one of these terms in their prefix."""
        sharing: set[frozenset[str]] = set()
        for term in prefix:
            sharing.update(self._kept.get(term, ()))
        return sharing


def _select_prefix(terms: frozenset[str], min_shared: int) -> list[str]:
    """Return the first terms of a set, one of which each near-duplicate has in its own prefix.

    Fewer than `min_shared` terms come after the prefix, so they cannot be all that are shared.

    Args:
        terms: Terms of the set.
        min_shared: Min number of terms that a near-duplicate shares with the set.
    """
    # Long terms first: they are rare, so few sets share them.
    ordered = sorted(sorted(terms), key=len, reverse=True)
    return ordered[: len(terms) - min_shared + 1]


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets that are not both empty."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)
