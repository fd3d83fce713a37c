"""The command that stores a corpus and builds its index: here, or in Elasticsearch."""

from __future__ import annotations

import asyncio
from typing import Any

from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_result
from touche_llm.cli.progress import CommandProgress
from touche_llm.cli.stages import until_interrupted
from touche_llm.errors import UsageError
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import CacheConfig
from touche_llm.pipeline.corpora import LocalCorpus, open_local_corpus
from touche_llm.pipeline.dense_corpus import DenseCorpus
from touche_llm.retrieval.dense import DenseSettings, find_dense_problem
from touche_llm.retrieval.elasticsearch.load import load_corpus
from touche_llm.retrieval.elasticsearch.settings import ElasticsearchSettings
from touche_llm.retrieval.settings import RetrieverConfig
from touche_llm.tasks import DEFAULT_TASK, find_dataset_task, get_task
from touche_llm.tasks.base import Task


@s.takes_settings(
    *("task", "dataset", "corpus", "index", "skip_bad_lines", "retriever", "elasticsearch", "dense"),
    without=("retriever.query",),
    max_listed=14,
)
def index(given: s.Given, values: s.SetOption = None, output: FormatOption = Format.TABLE) -> None:
    """Store a corpus and build its BM25 index. Does nothing if both exist and are up to date.

    With `--retriever dense` or `hybrid` a model embeds the documents, with `--retriever elasticsearch` they are loaded
    into an index there; what was stopped resumes.
    """
    inputs = s.read_inputs(given)
    dataset, corpus = inputs.dataset, inputs.documents
    if corpus is None:
        raise UsageError("index: missing --corpus or --dataset; see touche-llm index --help")
    task = get_task(given.get("task") or (find_dataset_task(dataset) if dataset else DEFAULT_TASK))
    settings, skip = s.validate(RetrieverConfig, given, "retriever"), given.get("skip_bad_lines", False)
    if settings.name == "elasticsearch":
        if "index" in given or given.get("retriever.method", "lucene") != "lucene":
            raise UsageError("--retriever elasticsearch: stores the index itself and scores as --bm25-method lucene")
        if dataset is not None:
            raise UsageError("--dataset: cannot be loaded into Elasticsearch; give its file as --corpus")
        _load_elasticsearch(task, settings, given, values or [], output)
        return
    if settings.name in ("chatnoir", "okapi"):
        raise UsageError(f"--retriever {settings.name}: needs no index; give bm25, dense, hybrid or elasticsearch")
    if any(name.startswith("elasticsearch.") for name in given):
        raise UsageError("--elasticsearch, --elasticsearch-index: only with --retriever elasticsearch")
    dense = _read_dense(settings, task, given, values or [])
    progress = CommandProgress()
    with open_local_corpus(
        corpus, inputs.index, task, skip_bad_lines=skip, warn=progress.warn, retriever=settings
    ) as opened:
        if settings.name != "dense":
            opened.open_first_stages()
        if dense is not None:
            _embed(opened, dense, progress)
        store = opened.store
        documents, sentences = len(store), len(store.parts)
        parts = f" and their {sentences:,} sentences" if sentences else ""
        sentence = f"{documents:,} documents of {corpus}{parts} are indexed in {store.folder}"
        row = {"corpus": corpus, "documents": documents, "sentences": sentences or None, "folder": store.folder}
        print_result(output, sentence, row)


def _read_dense(retriever: RetrieverConfig, task: Task, given: s.Given, values: list[str]) -> DenseSettings | None:
    """Return the settings of the vectors; None for a retriever without vectors, which has no such options."""
    if not retriever.is_dense:
        if values or any(name.startswith("dense.") for name in given):
            raise UsageError(
                "--embeddings-url, --embeddings-model, --embeddings-preset, --set: only with vectors, as "
                "--retriever dense or hybrid, or --set with elasticsearch"
            )
        return None
    if problem := find_dense_problem(task):
        raise UsageError(problem)
    return s.validate(DenseSettings, given | _read_assigned(values, "dense"), "dense")


def _embed(corpus: LocalCorpus, settings: DenseSettings, progress: CommandProgress) -> None:
    """Embed the documents of a corpus that have no vector."""
    work = DenseCorpus(corpus, settings, CacheConfig(mode=CacheMode.OFF), progress).embed()
    until_interrupted(work, lambda: "the vectors so far are stored; the same command resumes")


def _read_assigned(values: list[str], section: str) -> dict[str, Any]:
    """Return the values of `--set`; raise UsageError for a setting of another section."""
    assigned = s.set_values(values, "index")
    for name in assigned:
        if name.partition(".")[0] != section:
            raise UsageError(f"--set {name:.80}: not used here; only settings under `{section}` are")
    return assigned


def _load_elasticsearch(
    task: Task, retriever: RetrieverConfig, given: s.Given, values: list[str], output: Format
) -> None:
    """Load a corpus into Elasticsearch; `values` are those of `--set`, for the section `elasticsearch`."""
    if task.reads_arguments:
        what = "arguments of args.me" if task.sentence_question is None else "pairs of sentences"
        raise UsageError(f"--retriever elasticsearch: {task.name} ranks {what}; use bm25")
    settings = s.validate(ElasticsearchSettings, given | _read_assigned(values, "elasticsearch"), "elasticsearch")
    corpus = given["corpus"]
    load = load_corpus(
        corpus,
        task.read_corpus,
        settings,
        k1=retriever.k1,
        b=retriever.b,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=CommandProgress().warn,
    )
    documents = asyncio.run(load).documents
    sentence = f"{documents:,} documents of {corpus} are in {settings.url}, index {settings.index}"
    row = {"corpus": corpus, "documents": documents, "url": settings.url, "index": settings.index}
    print_result(output, sentence, row)
