"""First stage for sentences, which combines their scores with those of their arguments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
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

    They are among the matching sentences and all sentences of the best arguments.

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
    """Return the sentences that match or are part of a best argument, with the scores of both.

    Args:
        arguments: Scores of the arguments, of shape (arguments,).
        sentences: Scores of the sentences, of shape (sentences,).
        parents: Row of the argument of each sentence, ascending, of shape (sentences,).
        settings: Number of best arguments (ties at the cutoff are included) and weight of their
            scores.
    """
    # Only a best argument adds its score to those of its sentences.
    best_arguments = select_best_rows(arguments, settings.arguments)
    argument_scores = np.zeros(len(arguments), dtype=np.float64)
    argument_scores[best_arguments] = _scale(arguments[best_arguments], arguments)

    is_found = sentences > 0
    first_sentences = np.searchsorted(parents, best_arguments)
    ends = np.searchsorted(parents, best_arguments, side="right")
    for first, end in zip(first_sentences.tolist(), ends.tolist(), strict=True):
        is_found[first:end] = True

    rows = np.flatnonzero(is_found)
    scores_of_sentences = _scale(sentences[rows], sentences)
    scores_of_arguments = argument_scores[parents[rows]]
    share = settings.argument_share
    scores = (1.0 - share) * scores_of_sentences + share * scores_of_arguments
    return ScoredRows(rows, scores)


def _scale(
    chosen: NDArray[np.floating[Any]],
    scores: NDArray[np.floating[Any]],
) -> NDArray[np.float64]:
    """Return some of the scores, divided by the maximum of all."""
    highest = float(scores.max(initial=0.0))
    scaled: NDArray[np.float64] = chosen.astype(np.float64) / max(highest, _MIN_DIVISOR)
    return scaled


def is_self_contained(text: str, settings: SentenceSettings) -> bool:
    """Return whether a sentence can be understood alone: neither too few words nor too long.

    A word has two letters or more, and is no link.
    """
    if len(text) > settings.most_chars:
        return False

    # Lazily: most sentences have enough words near their beginning.
    words = (token for token in text.split() if _WORD.search(token) and not _is_link(token))
    first_words = list(islice(words, settings.least_words))
    return len(first_words) == settings.least_words


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
        """Keep a set of terms, and return True, unless it is empty or resembles a kept set."""
        if not terms:
            return False

        # Sets of other sizes cannot resemble it. The tolerance keeps rounding errors from making
        # ceil(0.8 * 5) equal to 5.
        min_size = ceil(self._threshold * len(terms) - 1e-9)
        max_size = int(len(terms) / self._threshold + 1e-9)
        # Long terms first: they are rare, so few sets share them.
        ordered = sorted(sorted(terms), key=len, reverse=True)
        prefix = ordered[: len(terms) - min_size + 1]

        for kept in self._find_sharing(prefix):
            has_near_size = min_size <= len(kept) <= max_size
            if has_near_size and jaccard(terms, kept) >= self._threshold:
                return False

        for term in prefix:
            self._kept[term].append(terms)
        return True

    def _find_sharing(self, prefix: Iterable[str]) -> set[frozenset[str]]:
        """Return the kept sets with one of these terms in their prefix."""
        sharing: set[frozenset[str]] = set()
        for term in prefix:
            sharing.update(self._kept.get(term, ()))
        return sharing


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets that are not both empty."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)
