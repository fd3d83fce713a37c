"""First stage: retrieves candidates for each topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from touche_llm.data.records import Candidate, Failure, Queries, Topic
from touche_llm.errors import DataError, shorten
from touche_llm.judging.pointwise import RequestBuilder
from touche_llm.pipeline.candidates import Candidates, normalise_rankings
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.corpora import Corpus, LocalCorpus
from touche_llm.pipeline.progress import Progress
from touche_llm.prompts.prompt import Prompt
from touche_llm.ranking.expansion import ExpansionSettings, find_queries, fuse_queries
from touche_llm.retrieval.sentences import select_distinct
from touche_llm.retrieval.settings import QueryField
from touche_llm.text.analysis import Analyzer


@dataclass(frozen=True, slots=True)
class QueryExpander:
    """Expansion of queries by the model: settings, prompt and builder of the requests."""

    settings: ExpansionSettings
    prompt: Prompt
    builder: RequestBuilder


class NoCandidates(DataError):
    """First stage that finds nothing to judge, or makes no pairs of what it finds."""


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

    At most `depth` documents per topic are found; if pairs are made, that many sentences are judged at a time.

    Raises:
        NoCandidates: No topic has a candidate.
        ReplayMiss: The cache of a replay lacks an answer.
    """
    queries: Sequence[Queries] = ()
    failures: Sequence[Failure] = ()
    if expander is not None:
        model = expander.builder.model
        with progress.stage("finding queries", len(topics), model.counts) as done:
            queries, failures = await find_queries(topics, expander.prompt, expander.builder, done)
        model.raise_on_misses()
    with progress.stage("retrieving", len(topics)) as done:
        rankings = await corpus.search(topics, fields, depth, done)
    if expander is not None and queries:
        rankings = await _add_queries(topics, rankings, queries, corpus, depth, expander.settings)
    if not any(rankings):
        raise NoCandidates(corpus.explain_empty())
    found = normalise_rankings(rankings)
    candidates = Candidates(corpus.task, topics, corpus, found, depth, queries=queries, failures=failures)
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


async def _add_queries(
    topics: list[Topic],
    rankings: list[list[Candidate]],
    queries: Sequence[Queries],
    corpus: Corpus,
    depth: int,
    settings: ExpansionSettings,
) -> list[list[Candidate]]:
    """Search for the additional queries too, and fuse the rankings of each topic."""
    other = {expanded.topic_id: expanded.queries for expanded in queries}
    additional = [replace(topic, title=query) for topic in topics for query in other.get(topic.id, ())]
    found = iter(await corpus.search(additional, ("title",), depth, lambda: None))
    fused = []
    for topic, own in zip(topics, rankings, strict=True):
        of_topic = [own, *(next(found) for _ in other.get(topic.id, ()))]
        fused.append(fuse_queries(of_topic, settings) if len(of_topic) > 1 else own)
    if isinstance(corpus, LocalCorpus) and corpus.sentences is not None:
        # The ranking of one query has no near-duplicates, but two queries can find the same text.
        analyzer = Analyzer()
        return [select_distinct(ranking, corpus.store.parts, corpus.sentences, analyzer) for ranking in fused]
    return [ranking[:depth] for ranking in fused]


async def retrieve_candidates(context: RunContext) -> Candidates:
    """Retrieve the candidates of a run, or read them from the run file of another tool; see `retrieve`.

    Raises:
        DataError: As `retrieve`, or the run file is of other topics or documents.
    """
    config = context.config
    if config.candidates is not None:
        candidates = await _read_candidates(context)
        with context.progress.stage("reading candidates", 1) as done:
            done()
        warn_of_empty(candidates, context.progress)
        return candidates
    expander = None
    if config.expansion.use:
        expander = QueryExpander(config.expansion, context.load_prompts("queries")["queries"], context.builder)
    return await retrieve(
        context.topics,
        context.corpus,
        context.progress,
        depth=config.depth,
        fields=config.retriever.query,
        expander=expander,
    )


async def _read_candidates(context: RunContext) -> Candidates:
    config = context.config
    assert config.candidates is not None
    # More sentences than `depth` may be judged if they give too few pairs.
    found = context.read_candidates(config.candidates, config.first_stage_depth)
    if not any(found.rankings.values()):
        ids = [topic.id for topic in context.topics]
        raise DataError(f"{config.candidates}: no candidates for any chosen topic: {shorten(ids)}")
    candidates = replace(found, corpus=context.corpus, rankings=normalise_rankings(found.rankings.values()))
    await candidates.check()
    return candidates
