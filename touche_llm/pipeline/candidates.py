"""Corpus, topics and first-stage candidates of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from touche_llm.config import Config, QueryField, index_folder
from touche_llm.corpus.store import DocumentStore, TextTable, ensure_store
from touche_llm.data.records import Candidate, Queries, Topic
from touche_llm.data.topics import read_topics
from touche_llm.data.trec_runs import read_candidates
from touche_llm.errors import DataError, UsageError, Warn, shorten
from touche_llm.judging.pointwise import Documents
from touche_llm.judging.sentence_pairs import PairDocuments
from touche_llm.ranking.expansion import fuse_queries
from touche_llm.retrieval.base import FirstStage
from touche_llm.retrieval.bm25 import Bm25Settings, ensure_index, open_index
from touche_llm.retrieval.chatnoir.cache import ChatNoirDocuments
from touche_llm.retrieval.elasticsearch.search import ElasticIndex
from touche_llm.retrieval.okapi import OkapiIndex
from touche_llm.retrieval.sentences import retrieve_sentences, select_distinct
from touche_llm.tasks.base import Task
from touche_llm.text.analysis import Analyzer


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of a run.

    Attributes:
        candidates: Units that the first stage retrieves: documents or, if pairs are made, sentences.
        documents: Units that a run of the task ranks.
        store: The corpus on disk; None if a search engine holds it.
        description: Description for the metadata.
    """

    candidates: Documents
    documents: Documents
    store: DocumentStore | None
    description: Mapping[str, str | int]

    @property
    def name(self) -> str:
        """Return the name of the corpus in messages."""
        return str(self.description.get("file") or self.description["search engine"])

    async def fetch(self, document_ids: Iterable[str]) -> None:
        """Fetch candidates from a search engine so that later stages do not wait; others are on disk."""
        if isinstance(self.candidates, ElasticIndex):
            await self.candidates.fetch(document_ids)


@contextmanager
def open_corpus(config: Config, task: Task, warn: Warn) -> Iterator[Corpus]:
    """Open the corpus of a configuration; store it first unless the store is up to date."""
    if config.chatnoir is not None:
        with ChatNoirDocuments(config.chatnoir) as found:
            place = {"search engine": config.chatnoir.base_url, "index": config.chatnoir.index}
            yield Corpus(found, found, None, place)
    elif config.elasticsearch is not None:
        k1, b = config.retriever.k1, config.retriever.b
        with ElasticIndex(config.elasticsearch, k1=k1, b=b, warn=warn) as index:
            yield Corpus(index, index, None, index.description)
    else:
        with open_local_corpus(config.corpus, config.index, task, config.skip_bad_lines, warn) as corpus:
            yield corpus


@contextmanager
def open_local_corpus(
    file: Path | None, index: Path | None, task: Task, skip_bad_lines: bool, warn: Warn
) -> Iterator[Corpus]:
    """Open a corpus file, stored first unless the store is up to date, or an index without its file."""
    if file is not None:
        folder = index or index_folder(file)
        store = ensure_store(file, folder, task.read_corpus, skip_bad_lines=skip_bad_lines, warn=warn)
    else:
        assert index is not None
        store = DocumentStore(index)
    with store:
        manifest = store.manifest
        if (task.sentence_question is not None) is not bool(manifest.parts):
            kind = "sentences of arguments" if manifest.parts else "documents without sentences"
            raise DataError(
                f"{store.folder}: holds {kind} of {manifest.corpus}, not a corpus of the task {task.name}; "
                "give the corpus or the index of this task"
            )
        description: dict[str, str | int] = {
            "file": manifest.corpus,
            "sha256": manifest.sha256,
            "documents": manifest.documents,
            "bad lines": manifest.bad_lines,
        }
        if task.sentence_question is None:
            yield Corpus(store, store, store, description)
        else:
            yield Corpus(store.parts, PairDocuments(store.parts), store, description | {"sentences": manifest.parts})


def build_index(
    task: Task, corpus: Path, folder: Path | None, settings: Bm25Settings, skip_bad_lines: bool, warn: Warn
) -> DocumentStore:
    """Store and index a corpus unless store and index are up to date."""
    folder = folder or index_folder(corpus)
    store = ensure_store(corpus, folder, task.read_corpus, skip_bad_lines=skip_bad_lines, warn=warn)
    try:
        for units in _list_units(store, task):
            ensure_index(units, settings, warn)
    except BaseException:
        store.close()
        raise
    return store


def choose_topics(config: Config) -> list[Topic]:
    """Return the topics that the configuration selects, in the order of their file."""
    topics = read_topics(config.topics)
    if config.topic:
        unknown = sorted(set(config.topic) - {topic.id for topic in topics})
        if unknown:
            raise UsageError(f"{config.topics}: no topic {', '.join(unknown)}")
        topics = [topic for topic in topics if topic.id in config.topic]
    return topics[: config.limit_topics]


async def find_candidates(
    config: Config,
    task: Task,
    topics: list[Topic],
    queries: list[Queries],
    corpus: Corpus,
    warn: Warn,
    done: Callable[[], None],
) -> list[list[Candidate]]:
    """Find the candidates of each topic in the index, a search engine, or a run file of another tool.

    A topic with expanded `queries` is searched for with each of them too, and the rankings are fused.

    Raises:
        DataError: No topic has a candidate, or the run file is of other topics or documents.
    """
    if config.candidates is not None:
        return await _read_run(config, topics, corpus, done)
    candidates = await _search(config, task, topics, config.retriever.query, corpus, warn, done)
    depth = config.first_stage_depth
    other = {rewritten.topic_id: rewritten.queries for rewritten in queries}
    expanded = [replace(topic, title=query) for topic in topics for query in other.get(topic.id, ())]
    if expanded:
        found = iter(await _search(config, task, expanded, ("title",), corpus, warn, lambda: None))
        rankings = [
            [own, *(next(found) for _ in other.get(topic.id, ()))]
            for topic, own in zip(topics, candidates, strict=True)
        ]
        candidates = [
            fuse_queries(ranking, config.expansion) if len(ranking) > 1 else ranking[0] for ranking in rankings
        ]
        if config.sentences is not None:
            assert corpus.store is not None
            analyzer = Analyzer()
            # The ranking of one query has no near-duplicates, but two queries can find the same text.
            candidates = [
                select_distinct(ranking, corpus.store.parts, config.sentences, analyzer) for ranking in candidates
            ]
        candidates = [ranking[:depth] for ranking in candidates]
    if any(candidates):
        return candidates
    if config.chatnoir is not None:
        raise DataError(f"{config.chatnoir.base_url}: no page for any topic in {config.chatnoir.index}; see --query")
    if config.elasticsearch is not None:
        place = f"{config.elasticsearch.url}, index {config.elasticsearch.index}"
        raise DataError(f"{place}: no document has a word of any topic; see --query")
    short = "; or no sentence can stand alone (sentences.least_words, most_chars)" if config.sentences else ""
    raise DataError(
        "the first stage found nothing for any topic: no word of a query is in the corpus, or each is in more than "
        f"half of its documents and says nothing (--retriever okapi and --bm25-method lucene score those too){short}"
    )


async def _search(
    config: Config,
    task: Task,
    topics: list[Topic],
    fields: tuple[QueryField, ...],
    corpus: Corpus,
    warn: Warn,
    done: Callable[[], None],
) -> list[list[Candidate]]:
    """Retrieve the candidates of each topic with the query made of these fields."""
    if config.chatnoir is not None:
        # Imported here because the HTTP libraries are slow to load.
        from touche_llm.retrieval.chatnoir.client import retrieve_chatnoir

        return await retrieve_chatnoir(topics, config.chatnoir, fields, config.depth, warn, done)
    if isinstance(corpus.candidates, ElasticIndex):
        return await corpus.candidates.retrieve(topics, fields=fields, depth=config.depth, done=done)
    assert corpus.store is not None
    candidates = []
    for ranking in _retrieve(config, task, topics, fields, corpus.store, warn):
        candidates.append(ranking)
        done()
    return candidates


def check_run_topics(path: Path, found: Iterable[str], config: Config) -> None:
    """Raise DataError if a run has topics that are not in the topics file."""
    known = {topic.id for topic in read_topics(config.topics)}
    unknown = [topic for topic in found if topic not in known]
    if unknown:
        raise DataError(f"{path}: {len(unknown)} of its topics are not in {config.topics}: {shorten(unknown)}")


def check_candidates(path: Path, candidates: Iterable[list[Candidate]], documents: Documents, corpus: str) -> None:
    """Raise DataError if a run has documents that are not in the corpus of this name."""
    unknown = documents.find_unknown(candidate.document_id for ranking in candidates for candidate in ranking)
    if unknown:
        raise DataError(f"{path}: {len(unknown)} of its documents are not in the corpus {corpus}: {shorten(unknown)}")


async def _read_run(
    config: Config, topics: list[Topic], corpus: Corpus, done: Callable[[], None]
) -> list[list[Candidate]]:
    assert config.candidates is not None
    # More sentences than `depth` may be judged if they give too few pairs.
    found = read_candidates(config.candidates, config.first_stage_depth)
    check_run_topics(config.candidates, found, config)
    chosen = [found.get(topic.id, []) for topic in topics]
    if not any(chosen):
        raise DataError(
            f"{config.candidates}: no candidates for any chosen topic: {shorten([topic.id for topic in topics])}"
        )
    await corpus.fetch(candidate.document_id for ranking in chosen for candidate in ranking)
    check_candidates(config.candidates, chosen, corpus.candidates, corpus.name)
    for _ in topics:
        done()
    return chosen


def _list_units(store: DocumentStore, task: Task) -> list[TextTable]:
    return [store] if task.sentence_question is None else [store, store.parts]


def _retrieve(
    config: Config,
    task: Task,
    topics: list[Topic],
    fields: tuple[QueryField, ...],
    store: DocumentStore,
    warn: Warn,
) -> Iterator[list[Candidate]]:
    retriever = config.retriever

    def first_stage(units: TextTable) -> FirstStage:
        if retriever.name == "okapi":
            return OkapiIndex(units, k1=retriever.k1, b=retriever.b)
        if config.corpus is None:
            return open_index(units, retriever.bm25)
        return ensure_index(units, retriever.bm25, warn)

    stages = [first_stage(units) for units in _list_units(store, task)]
    if config.sentences is None:
        return stages[0].retrieve(topics, fields=fields, depth=config.depth)
    return retrieve_sentences(topics, stages[0], stages[1], store.parts, config.sentences, fields)
