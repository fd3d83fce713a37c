"""First stage: candidates of topics from a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from touche_llm.api.corpora import LocalCorpus
from touche_llm.api.progress import Progress
from touche_llm.data.records import Candidate, Failure, Objects, Queries, Topic
from touche_llm.errors import shorten
from touche_llm.ranking.fusion import fuse_candidates
from touche_llm.retrieval.corpus import Corpus
from touche_llm.retrieval.sentences import select_distinct
from touche_llm.retrieval.settings import QueryField
from touche_llm.text.analysis import Analyzer

if TYPE_CHECKING:
    pass
from touche_llm.judging.queries import QueryExpander, find_queries
from touche_llm.retrieval.candidates import Candidates, NoCandidates, normalise_rankings


def add_objects(topics: list[Topic], found: Iterable[Objects]) -> list[Topic]:
    """Return the topics with the objects that the model found for those that name none."""
    objects = {record.topic_id: record.objects for record in found}
    return [replace(topic, objects=topic.objects or objects.get(topic.id)) for topic in topics]


async def retrieve(
    topics: list[Topic],
    corpus: Corpus,
    progress: Progress,
    *,
    depth: int = 100,
    fields: tuple[QueryField, ...] = ("title",),
    expander: QueryExpander | None = None,
) -> Candidates:
    """Retrieve the candidates of each topic.

    At most `depth` documents per topic are found; if pairs are made, that many sentences are judged
    at a time.
    """
    queries: Sequence[Queries] = ()
    failures: Sequence[Failure] = ()
    if expander is not None:
        model = expander.builder.model
        with progress.stage("finding queries", len(topics), model.counts) as done:
            outcomes = await find_queries(topics, expander.prompt, expander.builder, done)
        queries = outcomes.results
        failures = outcomes.failures
        model.raise_on_misses()
    with progress.stage("retrieving", len(topics)) as done:
        rankings = await corpus.search(topics, fields, depth, done)
    if expander is not None and queries:
        other = {expanded.topic_id: expanded.queries for expanded in queries}
        additional = [
            replace(topic, title=query) for topic in topics for query in other.get(topic.id, ())
        ]
        further = iter(await corpus.search(additional, ("title",), depth, lambda: None))
        for place, topic in enumerate(topics):
            if others := [next(further) for _ in other.get(topic.id, ())]:
                weights = [1.0, *(expander.settings.weight for _ in others)]
                rankings[place] = fuse_candidates(
                    [rankings[place], *others], weights, expander.settings.k
                )
        rankings = _cut(rankings, corpus, depth)
    if not any(rankings):
        raise NoCandidates(corpus.empty)
    found = normalise_rankings(rankings)
    candidates = Candidates(
        corpus.task, topics, corpus, found, depth, queries=queries, failures=failures
    )
    warn_of_empty(candidates, progress)
    return candidates


def warn_of_empty(candidates: Candidates, progress: Progress) -> None:
    """Warn of topics without candidates."""
    empty = list_empty(candidates)
    if empty:
        progress.warn(
            f"no candidate for {len(empty)} of {len(candidates.topics)} topics: {shorten(empty)} (with BM25: the "
            "corpus has no word of the query, or each word is in more than half of the documents)"
        )


def list_empty(candidates: Candidates) -> list[str]:
    """Return the ids of the topics without candidates."""
    return [topic.id for topic in candidates.topics if not candidates.rankings.get(topic.id)]


def _cut(rankings: list[list[Candidate]], corpus: Corpus, depth: int) -> list[list[Candidate]]:
    """Return fused rankings, cut to the depth or, if pairs are made, to distinct sentences."""
    if isinstance(corpus, LocalCorpus) and corpus.sentences is not None:
        # The ranking of one query has no near-duplicates, but two queries can find the same text.
        analyzer = Analyzer()
        return [
            select_distinct(ranking, corpus.store.parts, corpus.sentences, analyzer)
            for ranking in rankings
        ]
    return [ranking[:depth] for ranking in rankings]
