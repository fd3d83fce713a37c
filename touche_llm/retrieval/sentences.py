"""First stage for sentences, which combines their scores with those of their arguments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from typing import Any

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
    topics: list[Topic],
    arguments: FirstStage,
    sentences: FirstStage,
    parts: Parts,
    settings: SentenceSettings,
    fields: tuple[str, ...],
) -> Iterator[list[Candidate]]:
    """Yield the best sentences of each topic, from matching sentences and all sentences of the best arguments.

    The first stages score the documents of the corpus (`arguments`) and their parts (`sentences`).
    """
    analyzer = Analyzer()
    parents = parts.load_parents()
    for topic in topics:
        query = build_query(topic, fields)
        rows, scores = join_scores(
            arguments.score(query), sentences.score(query), parents, settings
        )
        ranking = select_candidates(
            topic, scores, _select_ids(rows, parts), settings.pool * _OVERFETCH
        )
        yield select_distinct(ranking, parts, settings, analyzer)


def select_distinct(
    ranking: list[Candidate], parts: Parts, settings: SentenceSettings, analyzer: Analyzer
) -> list[Candidate]:
    """Return at most `pool` self-contained sentences that are no near-duplicates of better ones."""
    seen = DuplicateFilter(settings.duplicate)
    chosen: list[Candidate] = []
    texts = parts.get_texts([candidate.document_id for candidate in ranking])
    for candidate, text in zip(ranking, texts, strict=True):
        if is_self_contained(text, settings) and seen.add(frozenset(analyzer.analyze(text))):
            chosen.append(
                Candidate(
                    candidate.topic_id, candidate.document_id, len(chosen) + 1, candidate.score
                )
            )
            if len(chosen) == settings.pool:
                break
    return chosen


def _select_ids(rows: NDArray[np.int64], parts: Parts) -> Callable[[list[int]], list[str]]:
    return lambda places: parts.get_ids(rows[places].tolist())


def join_scores(
    arguments: NDArray[np.floating[Any]],
    sentences: NDArray[np.floating[Any]],
    parents: NDArray[np.int64],
    settings: SentenceSettings,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows of sentences that match or are part of a best argument, ascending, and their scores in [0, 1].

    Args:
        arguments: Scores of the arguments, of shape (arguments,).
        sentences: Scores of the sentences, of shape (sentences,).
        parents: Row of the argument of each sentence, ascending, of shape (sentences,).
        settings: Number of best arguments (ties at the cutoff are included) and weight of their
            scores.
    """
    best = select_best_rows(arguments, settings.arguments)
    of_argument = np.zeros(len(arguments), dtype=np.float64)
    of_argument[best] = arguments[best].astype(np.float64) / max(
        float(arguments.max(initial=0.0)), 1e-12
    )
    scored = sentences > 0
    firsts, ends = np.searchsorted(parents, best), np.searchsorted(parents, best, side="right")
    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        scored[first:end] = True
    rows = np.flatnonzero(scored)
    of_sentence = sentences[rows].astype(np.float64) / max(float(sentences.max(initial=0.0)), 1e-12)
    share = settings.argument_share
    return rows, (1.0 - share) * of_sentence + share * of_argument[parents[rows]]


def is_self_contained(text: str, settings: SentenceSettings) -> bool:
    """Return whether a sentence has enough words (two letters or more, no links) and is not too long."""
    if len(text) > settings.most_chars:
        return False
    words = (token for token in text.split() if _WORD.search(token) and not _is_link(token))
    # Lazily: most sentences have enough words near their beginning.
    return len(list(islice(words, settings.least_words))) == settings.least_words


def _is_link(token: str) -> bool:
    if "." not in token and "/" not in token:
        return False
    name = token.casefold().strip(_PUNCTUATION)
    return "/" in name or name.startswith("www.") or name.endswith(_ENDINGS)


class DuplicateFilter:
    """Filter that rejects near-duplicates of the sets of terms kept so far.

    Near-duplicates have a Jaccard similarity of at least `threshold`. Prefix and length filtering
    limit the pairs to
    compare: at similarity t, the smaller set has at least t times the size of the larger, and both
        share one of their
    first |s| - ceil(t |s|) + 1 terms in any common order (Chaudhuri et al., ICDE 2006; Bayardo et
    al., WWW 2007).
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        # By a term of the prefix.
        self._kept: dict[str, list[frozenset[str]]] = defaultdict(list)

    def add(self, terms: frozenset[str]) -> bool:
        """Keep a set unless it is empty or a near-duplicate of a kept one.

        Return whether it was kept.
        """
        if not terms:
            return False
        # Long terms first: they are rare, so few sets share them.
        ordered = sorted(sorted(terms), key=len, reverse=True)
        # The tolerance keeps rounding errors from making ceil(0.8 * 5) equal to 5.
        min_size = ceil(self._threshold * len(terms) - 1e-9)
        max_size = int(len(terms) / self._threshold + 1e-9)
        prefix = ordered[: len(terms) - min_size + 1]
        near = {
            other
            for term in prefix
            for other in self._kept.get(term, ())
            if min_size <= len(other) <= max_size
        }
        if any(jaccard(terms, other) >= self._threshold for other in near):
            return False
        for term in prefix:
            self._kept[term].append(terms)
        return True


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets that are not both empty."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)
