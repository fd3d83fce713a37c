"""The first stage for sentences: their own score joined with that of the argument they are from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from touche_llm.corpus.store import Parts
from touche_llm.records import Candidate, Topic
from touche_llm.retrieval.analysis import Analyser
from touche_llm.retrieval.top import FirstStage, query_text, top_candidates

_LINK = re.compile(r"(?:https?://|www\.)\S+|\S+\.(?:com|org|net|edu|gov|html?)\S*", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
# So many times the pool is looked through: what is left out is mostly repeated sentences.
_LOOK_THROUGH = 4


class SentenceSettings(BaseModel):
    """How sentences are found. `pool` is the number kept for each topic, `arguments` that of the best arguments.

    A sentence's score is `1 - argument_share` of its own BM25 score plus `argument_share` of its argument's, each
    divided by the topic's highest. Sentences of fewer than `least_words` words cannot stand alone. One whose terms have
    a Jaccard similarity of `duplicate` or more with those of a better sentence is left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pool: int = Field(1000, ge=2, le=100_000)
    arguments: int = Field(100, ge=0)
    argument_share: float = Field(0.3, ge=0.0, le=1.0)
    least_words: int = Field(4, ge=1)
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
    analyser = Analyser()
    parents = parts.parents()
    for topic in topics:
        query = query_text(topic, fields)
        scores = joined(arguments.scores(query), sentences.scores(query), parents, settings)
        ranking = top_candidates(topic, scores, parts.ids_of, settings.pool * _LOOK_THROUGH)
        alone = ((each, parts.get(each.document_id).text) for each in ranking)
        kept = [(each, text) for each, text in alone if stands_alone(text, settings.least_words)]
        unique = first_of_duplicates([frozenset(analyser.terms(text)) for _, text in kept], settings.duplicate)
        chosen = [kept[place][0] for place in unique[: settings.pool]]
        yield [Candidate(topic.id, each.document_id, rank, each.score) for rank, each in enumerate(chosen, start=1)]


def joined(
    arguments: NDArray[np.floating[Any]],
    sentences: NDArray[np.floating[Any]],
    parents: NDArray[np.int64],
    settings: SentenceSettings,
) -> NDArray[np.float64]:
    """The joined score of each sentence, between 0 and 1.

    Args:
        arguments: one score an argument.
        sentences: one score a sentence.
        parents: for each sentence the row of its argument.
        settings: only the `arguments` best arguments count, ties with the last of them included.
    """
    arguments = np.asarray(arguments, dtype=np.float64)
    if settings.arguments < len(arguments):
        ordered = np.sort(arguments)[::-1]
        least = ordered[settings.arguments - 1] if settings.arguments else np.inf
        arguments = np.where(arguments >= least, arguments, 0.0)
    of_sentence = np.asarray(sentences, dtype=np.float64) / max(float(sentences.max(initial=0.0)), 1e-12)
    of_argument = (arguments / max(float(arguments.max(initial=0.0)), 1e-12))[parents]
    share = settings.argument_share
    result: NDArray[np.float64] = (1.0 - share) * of_sentence + share * of_argument
    return result


def stands_alone(text: str, least_words: int) -> bool:
    """Whether a sentence has at least `least_words` words (of two or more letters) beside links."""
    return len(_WORD.findall(_LINK.sub(" ", text))) >= least_words


def first_of_duplicates(term_sets: Sequence[frozenset[str]], threshold: float) -> list[int]:
    """The places of the sets that are no near-duplicate of an earlier one that was kept.

    Two sets are near-duplicates when their Jaccard similarity is at least `threshold`. Only sets that share one of
    their rarest terms are compared: with similarity t, two sets share a term among the first |s| - ceil(t |s|) + 1 in
    any common order (prefix filter: Chaudhuri et al., ICDE 2006; Bayardo et al., WWW 2007).
    """
    frequency = Counter(term for terms in term_sets for term in terms)
    kept: list[int] = []
    by_prefix: dict[str, list[int]] = defaultdict(list)
    for place, terms in enumerate(term_sets):
        ordered = sorted(terms, key=lambda term: (frequency[term], term))
        # Rounded up a little less eagerly: 0.8 * 5 must not become 5 by a rounding error of the machine.
        prefix = ordered[: len(ordered) - int(np.ceil(threshold * len(ordered) - 1e-9)) + 1]
        near = {other for term in prefix for other in by_prefix[term]}
        if any(jaccard(terms, term_sets[other]) >= threshold for other in near) or not terms:
            continue
        kept.append(place)
        for term in prefix:
            by_prefix[term].append(place)
    return kept


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Shared terms over all terms of two sets that are not both empty."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)
