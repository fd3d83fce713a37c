"""First stage: candidates of topics from a corpus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from touche_llm.api.corpora import LocalCorpus
from touche_llm.api.progress import Progress
from touche_llm.data.records import Candidate, Objects, Queries, Topic
from touche_llm.errors import shorten
from touche_llm.judging.outcomes import Outcomes
from touche_llm.judging.queries import QueryExpander, find_queries
from touche_llm.ranking.fusion import fuse_candidates
from touche_llm.retrieval.candidates import Candidates, NoCandidates, normalise_rankings
from touche_llm.retrieval.corpus import Corpus
from touche_llm.retrieval.sentences import select_distinct
from touche_llm.retrieval.settings import ExpansionSettings, QueryField
from touche_llm.text.analysis import Analyzer


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

    Args:
        topics: Topics to search for.
        corpus: Corpus to search.
        progress: Shows the progress and warnings.
        depth: Max documents per topic; if pairs are made, the number of sentences that are judged
            at a time.
        fields: Fields of a topic that make the query.
        expander: Expansion of queries; None for the topics' own queries alone.

    Raises:
        EngineError: The engine that expands queries failed.
        NoCandidates: Nothing was found for any topic.
        ReplayMiss: The cache of a replay lacks queries.
    """
    expansions: Outcomes[Queries] = Outcomes(results=[], failures=[])
    if expander is not None:
        expansions = await _expand_queries(topics, expander, progress)

    with progress.stage("retrieving", len(topics)) as done:
        rankings = await corpus.search(topics, fields, depth, done)
    if expander is not None and expansions.results:
        rankings = await _add_expansions(
            topics,
            rankings,
            expansions.results,
            corpus,
            depth,
            expander.settings,
        )
        rankings = _cut(rankings, corpus, depth)
    if not any(rankings):
        raise NoCandidates(corpus.empty)

    candidates = Candidates(
        corpus.task,
        topics,
        corpus,
        normalise_rankings(rankings),
        depth,
        queries=expansions.results,
        failures=expansions.failures,
    )
    warn_of_empty(candidates, progress)
    return candidates


async def _expand_queries(
    topics: list[Topic], expander: QueryExpander, progress: Progress
) -> Outcomes[Queries]:
    """Request additional queries for each topic.

    Raises:
        EngineError: The engine failed.
        ReplayMiss: The cache of a replay lacks queries.
    """
    model = expander.builder.model
    with progress.stage("finding queries", len(topics), model.counts) as done:
        outcomes = await find_queries(topics, expander.prompt, expander.builder, done)
    model.raise_on_misses()
    return outcomes


async def _add_expansions(
    topics: list[Topic],
    rankings: list[list[Candidate]],
    expansions: Iterable[Queries],
    corpus: Corpus,
    depth: int,
    settings: ExpansionSettings,
) -> list[list[Candidate]]:
    """Fuse the ranking of each topic with those of its additional queries.

    Args:
        topics: Topics that were searched for.
        rankings: Rankings by the topics' own queries, in the order of the topics.
        expansions: Additional queries of topics.
        corpus: Corpus to search.
        depth: Max documents per query.
        settings: Weight of an additional query, and parameter of the fusion.

    Returns:
        Rankings in the order of the topics.
    """
    queries_by_topic = {expansion.topic_id: expansion.queries for expansion in expansions}
    requests: list[Topic] = []
    for topic in topics:
        queries = queries_by_topic.get(topic.id, ())
        requests += [replace(topic, title=query) for query in queries]
    additional = await corpus.search(requests, ("title",), depth, lambda: None)

    rankings_by_topic: defaultdict[str, list[list[Candidate]]] = defaultdict(list)
    for request, ranking in zip(requests, additional, strict=True):
        rankings_by_topic[request.id].append(ranking)

    fused: list[list[Candidate]] = []
    for topic, ranking in zip(topics, rankings, strict=True):
        others = rankings_by_topic[topic.id]
        if others:
            weights = [1.0, *(settings.weight for _ in others)]
            ranking = fuse_candidates([ranking, *others], weights, settings.k)
        fused.append(ranking)
    return fused


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
