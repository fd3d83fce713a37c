"""From a configuration to candidates: where the documents are, and which of them each topic gets."""

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
from touche_llm.errors import DataError, UsageError, shorten
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

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of a run.

    Attributes:
        candidates: what the first stage finds: documents or, where pairs are made, sentences.
        documents: what a run of the task ranks.
        store: the corpus on disk; None where a search engine holds it.
        description: what the metadata says of it.
    """

    candidates: Documents
    documents: Documents
    store: DocumentStore | None
    description: Mapping[str, str | int]

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.description.get("file") or self.description["search engine"])

    async def fetch(self, document_ids: Iterable[str]) -> None:
        """Fetch candidates that a search engine holds, so that nothing waits for it later; others are on disk."""
        if isinstance(self.candidates, ElasticIndex):
            await self.candidates.fetch(document_ids)


@contextmanager
def open_corpus(config: Config, task: Task, notify: Notify) -> Iterator[Corpus]:
    """The documents of a configuration; a corpus is stored first unless that is done and up to date."""
    if config.chatnoir is not None:
        with ChatNoirDocuments(config.chatnoir) as found:
            place = {"search engine": config.chatnoir.base_url, "index": config.chatnoir.index}
            yield Corpus(found, found, None, place)
    elif config.elasticsearch is not None:
        k1, b = config.retriever.k1, config.retriever.b
        with ElasticIndex(config.elasticsearch, k1=k1, b=b, notify=notify) as index:
            yield Corpus(index, index, None, index.description)
    else:
        with open_local_corpus(config.corpus, config.index, task, config.skip_bad_lines, notify) as corpus:
            yield corpus


@contextmanager
def open_local_corpus(
    file: Path | None, index: Path | None, task: Task, skip_bad_lines: bool, notify: Notify
) -> Iterator[Corpus]:
    """The documents of a corpus file, stored first unless that is done and up to date, or of an index alone."""
    if file is not None:
        folder = index or index_folder(file)
        store = ensure_store(file, folder, task.read_corpus, skip_bad_lines=skip_bad_lines, notify=notify)
    else:
        assert index is not None
        store = DocumentStore(index)
    with store:
        manifest = store.manifest
        if (task.sentence_question is not None) is not bool(manifest.parts):
            kind = "sentences of arguments" if manifest.parts else "documents without sentences"
            raise DataError(f"{store.folder}: holds {kind} of {manifest.corpus}, not a corpus of the task {task.name}")
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
    task: Task, corpus: Path, folder: Path | None, settings: Bm25Settings, skip_bad_lines: bool, notify: Notify
) -> DocumentStore:
    """Store and index a corpus, unless that is done and up to date."""
    folder = folder or index_folder(corpus)
    store = ensure_store(corpus, folder, task.read_corpus, skip_bad_lines=skip_bad_lines, notify=notify)
    try:
        for units in _indexed(store, task):
            ensure_index(units, settings, notify)
    except BaseException:
        store.close()
        raise
    return store


def choose_topics(config: Config) -> list[Topic]:
    """The topics of the file that the configuration asks for, in the order of the file."""
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
    notify: Notify,
    done: Callable[[], None],
) -> list[list[Candidate]]:
    """The candidates of each topic: from the index, from a search engine, or from a run that another tool wrote.

    Where there are other `queries` for a topic, it is searched for with each of them too, and the rankings are fused.

    Raises:
        DataError: none for any topic, or a run of other topics or documents.
    """
    if config.candidates is not None:
        return await _from_run(config, topics, corpus, done)
    candidates = await _search(config, task, topics, config.retriever.query, corpus, notify, done)
    depth = config.first_stage_depth
    other = {each.topic_id: each.queries for each in queries}
    asked = [replace(topic, title=query) for topic in topics for query in other.get(topic.id, ())]
    if asked:
        found = iter(await _search(config, task, asked, ("title",), corpus, notify, lambda: None))
        rankings = [
            [own, *(next(found) for _ in other.get(topic.id, ()))]
            for topic, own in zip(topics, candidates, strict=True)
        ]
        candidates = [fuse_queries(each, config.expansion) if len(each) > 1 else each[0] for each in rankings]
        if config.sentences is not None:
            assert corpus.store is not None
            analyzer = Analyzer()
            # Each query's own ranking has none, but near-duplicates can come from two of them.
            candidates = [select_distinct(each, corpus.store.parts, config.sentences, analyzer) for each in candidates]
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
    notify: Notify,
    done: Callable[[], None],
) -> list[list[Candidate]]:
    """The candidates of each topic for the query made of these fields."""
    if config.chatnoir is not None:
        # Only here and where an engine is opened, since the libraries of HTTP take a while to load.
        from touche_llm.retrieval.chatnoir.client import retrieve_chatnoir

        return await retrieve_chatnoir(topics, config.chatnoir, fields, config.depth, notify, done)
    if isinstance(corpus.candidates, ElasticIndex):
        return await corpus.candidates.retrieve(topics, fields=fields, depth=config.depth, done=done)
    assert corpus.store is not None
    candidates = []
    for ranking in _retrieve(config, task, topics, fields, corpus.store, notify):
        candidates.append(ranking)
        done()
    return candidates


def check_run_topics(path: Path, found: Iterable[str], config: Config) -> None:
    """Raise DataError where a run names topics that the topics file does not."""
    known = {topic.id for topic in read_topics(config.topics)}
    unknown = [topic for topic in found if topic not in known]
    if unknown:
        raise DataError(f"{path}: {len(unknown)} of its topics are not in {config.topics}: {shorten(unknown)}")


def check_candidates(path: Path, candidates: Iterable[list[Candidate]], documents: Documents, corpus: str) -> None:
    """Raise DataError where a run names documents that are not there; `corpus` is what the message calls them."""
    unknown = documents.find_unknown(each.document_id for ranking in candidates for each in ranking)
    if unknown:
        raise DataError(f"{path}: {len(unknown)} of its documents are not in the corpus {corpus}: {shorten(unknown)}")


async def _from_run(
    config: Config, topics: list[Topic], corpus: Corpus, done: Callable[[], None]
) -> list[list[Candidate]]:
    assert config.candidates is not None
    # Of sentences more may be judged than `depth`, where that gives too few pairs.
    found = read_candidates(config.candidates, config.first_stage_depth)
    check_run_topics(config.candidates, found, config)
    chosen = [found.get(topic.id, []) for topic in topics]
    if not any(chosen):
        raise DataError(
            f"{config.candidates}: none of the chosen topics is in it: {shorten([each.id for each in topics])}"
        )
    await corpus.fetch(each.document_id for ranking in chosen for each in ranking)
    check_candidates(config.candidates, chosen, corpus.candidates, corpus.name)
    for _ in topics:
        done()
    return chosen


def _indexed(store: DocumentStore, task: Task) -> list[TextTable]:
    return [store] if task.sentence_question is None else [store, store.parts]


def _retrieve(
    config: Config,
    task: Task,
    topics: list[Topic],
    fields: tuple[QueryField, ...],
    store: DocumentStore,
    notify: Notify,
) -> Iterator[list[Candidate]]:
    retriever = config.retriever

    def first_stage(units: TextTable) -> FirstStage:
        if retriever.name == "okapi":
            return OkapiIndex(units, k1=retriever.k1, b=retriever.b)
        if config.corpus is None:
            return open_index(units, retriever.bm25)
        return ensure_index(units, retriever.bm25, notify)

    stages = [first_stage(units) for units in _indexed(store, task)]
    if config.sentences is None:
        return stages[0].retrieve(topics, fields=fields, depth=config.depth)
    return retrieve_sentences(topics, stages[0], stages[1], store.parts, config.sentences, fields)
