"""The first stage for sentences: their own score joined with that of the argument they are from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from touche_llm.corpus.store import Parts
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics import build_query
from touche_llm.retrieval.base import FirstStage, select_best_rows, select_candidates
from touche_llm.text.analysis import Analyzer

_ENDINGS = (".com", ".org", ".net", ".edu", ".gov", ".htm", ".html", ".pdf")
_PUNCTUATION = ".,;:!?()[]{}<>\"'“”‘’"
_WORD = re.compile(r"[^\W\d_]{2,}")
# So many times the pool is looked through: what is left out is mostly repeated sentences.
_LOOK_THROUGH = 4


class SentenceSettings(BaseModel):
    """How sentences are found. `pool` is the number kept for each topic, `arguments` that of the best arguments.

    A sentence's score is `1 - argument_share` of its own BM25 score plus `argument_share` of its argument's, each
    divided by the topic's highest. Sentences of fewer than `least_words` words cannot stand alone, and those of more
    than `most_chars` characters are none. One whose terms have a Jaccard similarity of `duplicate` or more with those
    of a better sentence is left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    """The best sentences of each topic: those that match themselves, and all of the best arguments.

    Args:
        topics: the topics.
        arguments: first stage over the documents of the corpus.
        sentences: first stage over their parts.
        parts: the sentences.
        settings: what is taken, and how scores are joined.
        fields: of the topic, make the query.
    """
    analyzer = Analyzer()
    parents = parts.load_parents()
    for topic in topics:
        query = build_query(topic, fields)
        rows, scores = join_scores(arguments.scores(query), sentences.scores(query), parents, settings)
        ranking = select_candidates(topic, scores, _ids_among(rows, parts), settings.pool * _LOOK_THROUGH)
        yield select_distinct(ranking, parts, settings, analyzer)


def select_distinct(
    ranking: list[Candidate], parts: Parts, settings: SentenceSettings, analyzer: Analyzer
) -> list[Candidate]:
    """The sentences of a topic that can stand alone and are no near-duplicates of better ones, at most the pool."""
    seen = DuplicateFilter(settings.duplicate)
    chosen: list[Candidate] = []
    for each, text in zip(ranking, parts.get_texts([each.document_id for each in ranking]), strict=True):
        if is_self_contained(text, settings) and seen.add(frozenset(analyzer.analyze(text))):
            chosen.append(Candidate(each.topic_id, each.document_id, len(chosen) + 1, each.score))
            if len(chosen) == settings.pool:
                break
    return chosen


def _ids_among(rows: NDArray[np.int64], parts: Parts) -> Callable[[list[int]], list[str]]:
    return lambda places: parts.get_ids(rows[places].tolist())


def join_scores(
    arguments: NDArray[np.floating[Any]],
    sentences: NDArray[np.floating[Any]],
    parents: NDArray[np.int64],
    settings: SentenceSettings,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows of the sentences that match or are of a good argument, ascending, and their joined scores, 0 to 1.

    Args:
        arguments: one score an argument.
        sentences: one score a sentence.
        parents: for each sentence the row of its argument, ascending.
        settings: only the `arguments` best arguments count, ties with the last of them included.
    """
    best = select_best_rows(arguments, settings.arguments)
    of_argument = np.zeros(len(arguments), dtype=np.float64)
    of_argument[best] = arguments[best].astype(np.float64) / max(float(arguments.max(initial=0.0)), 1e-12)
    scored = sentences > 0
    firsts, ends = np.searchsorted(parents, best), np.searchsorted(parents, best, side="right")
    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        scored[first:end] = True
    rows = np.flatnonzero(scored)
    of_sentence = sentences[rows].astype(np.float64) / max(float(sentences.max(initial=0.0)), 1e-12)
    share = settings.argument_share
    return rows, (1.0 - share) * of_sentence + share * of_argument[parents[rows]]


def is_self_contained(text: str, settings: SentenceSettings) -> bool:
    """Whether a sentence has enough words (of two letters or more, links left out) and is not overlong."""
    if len(text) > settings.most_chars:
        return False
    words = (token for token in text.split() if _WORD.search(token) and not _is_link(token))
    # Most sentences have so many words in their beginning.
    return len(list(islice(words, settings.least_words))) == settings.least_words


def _is_link(token: str) -> bool:
    if "." not in token and "/" not in token:
        return False
    name = token.casefold().strip(_PUNCTUATION)
    return "/" in name or name.startswith("www.") or name.endswith(_ENDINGS)


class DuplicateFilter:
    """The sets of terms seen so far, and whether the next one is nearly one of them.

    Two sets are near-duplicates when their Jaccard similarity is at least `threshold`. Only sets that can be are
    compared: with similarity t, the smaller has at least t times the size of the larger, and both share a term among
    the first |s| - ceil(t |s|) + 1 in any common order (Chaudhuri et al., ICDE 2006; Bayardo et al., WWW 2007).
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        # By a term of the prefix.
        self._kept: dict[str, list[frozenset[str]]] = defaultdict(list)

    def add(self, terms: frozenset[str]) -> bool:
        """Keep a set unless it is empty or a near-duplicate of one that was kept; returns whether it was kept."""
        if not terms:
            return False
        # Long terms first: they are rare, so that few sets share them.
        ordered = sorted(sorted(terms), key=len, reverse=True)
        # Rounded a little less eagerly: 0.8 * 5 must not become 5 by a rounding error of the machine.
        least = ceil(self._threshold * len(terms) - 1e-9)
        most = int(len(terms) / self._threshold + 1e-9)
        prefix = ordered[: len(terms) - least + 1]
        near = {other for term in prefix for other in self._kept.get(term, ()) if least <= len(other) <= most}
        if any(jaccard(terms, other) >= self._threshold for other in near):
            return False
        for term in prefix:
            self._kept[term].append(terms)
        return True


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Shared terms over all terms of two sets that are not both empty."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)
