"""First stage: candidates of topics from a corpus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from touche_llm.api.progress import Progress
from touche_llm.data.records import Candidate, Objects, Queries, Topic
from touche_llm.errors import shorten
from touche_llm.judging.outcomes import Outcomes
from touche_llm.judging.queries import QueryExpander, find_queries
from touche_llm.ranking.fusion import fuse_candidates
from touche_llm.retrieval.candidates import Candidates, NoCandidates, normalise_rankings
from touche_llm.retrieval.corpus import Corpus
from touche_llm.retrieval.settings import ExpansionSettings, QueryField


def add_objects(topics: list[Topic], found: Iterable[Objects]) -> list[Topic]:
    """Return the topics with the objects that the model found for those that name none."""
    found_objects = {record.topic_id: record.objects for record in found}

    completed: list[Topic] = []
    for topic in topics:
        objects = topic.objects or found_objects.get(topic.id)
        completed.append(replace(topic, objects=objects))
    return completed


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
        progress: Display of the progress.
        depth: Maximum number of documents per topic; of sentences that documents are made of, the
            number judged at a time.
        fields: Fields of a topic that make the query.
        expander: Expander of the queries; None to search with the topics' own queries only.

    Raises:
        NoCandidates: No topic has a candidate.
        EngineError: A server failed.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    expansion: Outcomes[Queries] = Outcomes(results=[], failures=[])
    if expander is not None:
        expansion = await _expand_queries(topics, expander, progress)

    with progress.stage("retrieving", len(topics)) as done:
        rankings = await corpus.search(topics, fields, depth, done)

    # The additional queries are searched too, unless the model wrote none.
    if expander is not None and expansion.results:
        rankings = await _add_rankings(rankings, topics, corpus, depth, expansion, expander)
    if not any(rankings):
        raise NoCandidates(corpus.empty)

    candidates = Candidates(
        task=corpus.task,
        topics=topics,
        corpus=corpus,
        rankings=normalise_rankings(rankings),
        depth=depth,
        queries=expansion.results,
        failures=expansion.failures,
    )
    warn_of_empty(candidates, progress)
    return candidates


async def _expand_queries(
    topics: list[Topic],
    expander: QueryExpander,
    progress: Progress,
) -> Outcomes[Queries]:
    """Return the additional queries that the model writes for the topics."""
    model = expander.requester.client
    with progress.stage("finding queries", len(topics), model.counts) as done:
        outcomes = await find_queries(topics, expander.prompt, expander.requester, done)
    model.raise_on_misses()
    return outcomes


async def _add_rankings(
    rankings: list[list[Candidate]],
    topics: list[Topic],
    corpus: Corpus,
    depth: int,
    expansion: Outcomes[Queries],
    expander: QueryExpander,
) -> list[list[Candidate]]:
    """Search with the additional queries, and fuse their rankings with those of the topics.

    Args:
        rankings: Candidates of each topic by its own query.
        topics: Topics of the rankings.
        corpus: Corpus to search.
        depth: Maximum number of documents per topic.
        expansion: Additional queries, of one topic at least.
        expander: Weight of an additional query, and constant of the fusion.
    """
    variants = _list_variants(topics, expansion.results)
    found = await corpus.search(variants, ("title",), depth, lambda: None)

    # A variant is a topic with another title, so it has the id of the topic.
    additional_rankings: dict[str, list[list[Candidate]]] = defaultdict(list)
    for variant, ranking in zip(variants, found, strict=True):
        additional_rankings[variant.id].append(ranking)

    fused_rankings: list[list[Candidate]] = []
    for topic, ranking in zip(topics, rankings, strict=True):
        fused = _fuse_rankings(ranking, additional_rankings[topic.id], expander.settings)
        fused_rankings.append(corpus.limit(fused, depth))
    return fused_rankings


def _fuse_rankings(
    ranking: list[Candidate],
    additional: list[list[Candidate]],
    settings: ExpansionSettings,
) -> list[Candidate]:
    """Fuse the ranking of a topic's own query, of weight 1, with those of additional queries."""
    if not additional:
        return ranking
    weights = [1.0] + [settings.weight] * len(additional)
    return fuse_candidates([ranking, *additional], weights, settings.k)


def _list_variants(topics: list[Topic], additional: Iterable[Queries]) -> list[Topic]:
    """Return a copy of a topic for each of its additional queries, with the query as its title."""
    queries_by_topic = {record.topic_id: record.queries for record in additional}

    variants: list[Topic] = []
    for topic in topics:
        for query in queries_by_topic.get(topic.id, ()):
            variants.append(replace(topic, title=query))
    return variants


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
