"""The command that stores a corpus and builds its index: here, or in Elasticsearch."""

from __future__ import annotations

import asyncio

from touche_llm.cli import setting_options as s
from touche_llm.cli.output import Format, FormatOption, print_result
from touche_llm.cli.progress import CommandProgress
from touche_llm.errors import UsageError
from touche_llm.pipeline.corpora import open_local_corpus
from touche_llm.retrieval.elasticsearch.load import load_corpus
from touche_llm.retrieval.elasticsearch.settings import ElasticsearchSettings
from touche_llm.retrieval.settings import RetrieverConfig
from touche_llm.tasks import DEFAULT_TASK, find_dataset_task, get_task
from touche_llm.tasks.base import Task


@s.takes_settings(
    "task", "dataset", "corpus", "index", "skip_bad_lines", "retriever", "elasticsearch", without=("retriever.query",)
)
def index(given: s.Given, values: s.SetOption = None, output: FormatOption = Format.TABLE) -> None:
    """Store a corpus and build its BM25 index. Does nothing if both exist and are up to date.

    With `--retriever elasticsearch` the corpus is loaded into an index there; a load that was stopped resumes.
    """
    dataset, _, file, folder = s.read_inputs(given)
    corpus = dataset or file
    if corpus is None:
        raise UsageError("index: missing --corpus or --dataset; see touche-llm index --help")
    task = get_task(given.get("task") or (find_dataset_task(dataset) if dataset else DEFAULT_TASK))
    retriever = given.get("retriever.name", "bm25")
    is_elastic = any(name.startswith("elasticsearch.") for name in given)
    if retriever == "elasticsearch":
        if "index" in given or given.get("retriever.method", "lucene") != "lucene":
            raise UsageError("--retriever elasticsearch: stores the index itself and scores as --bm25-method lucene")
        if dataset is not None:
            raise UsageError("--dataset: cannot be loaded into Elasticsearch; give its file as --corpus")
        _load_elasticsearch(task, given, values or [], output)
        return
    if retriever != "bm25":
        raise UsageError(f"--retriever {retriever}: needs no index; give bm25 or elasticsearch")
    if is_elastic or values:
        raise UsageError("--elasticsearch, --elasticsearch-index, --set: only with --retriever elasticsearch")
    settings, skip = s.validate(RetrieverConfig, given, "retriever"), given.get("skip_bad_lines", False)
    warn = CommandProgress().warn
    with open_local_corpus(corpus, folder, task, skip_bad_lines=skip, warn=warn, retriever=settings) as opened:
        opened.open_first_stages()
        store = opened.store
        documents, sentences = len(store), len(store.parts)
        parts = f" and their {sentences:,} sentences" if sentences else ""
        sentence = f"{documents:,} documents of {corpus}{parts} are indexed in {store.folder}"
        row = {"corpus": corpus, "documents": documents, "sentences": sentences or None, "folder": store.folder}
        print_result(output, sentence, row)


def _load_elasticsearch(task: Task, given: s.Given, values: list[str], output: Format) -> None:
    """Load a corpus into Elasticsearch; `values` are those of `--set`, for the section `elasticsearch`."""
    if task.reads_arguments:
        what = "arguments of args.me" if task.sentence_question is None else "pairs of sentences"
        raise UsageError(f"--retriever elasticsearch: {task.name} ranks {what}; use bm25")
    assigned = s.set_values(values, "index")
    for name in assigned:
        if name.partition(".")[0] != "elasticsearch":
            raise UsageError(f"--set {name:.80}: not used here; only settings under `elasticsearch` are")
    bm25 = s.validate(RetrieverConfig, given, "retriever").bm25
    settings = s.validate(ElasticsearchSettings, given | assigned, "elasticsearch")
    corpus = given["corpus"]
    load = load_corpus(
        corpus,
        task.read_corpus,
        settings,
        k1=bm25.k1,
        b=bm25.b,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=CommandProgress().warn,
    )
    documents = asyncio.run(load).documents
    sentence = f"{documents:,} documents of {corpus} are in {settings.url}, index {settings.index}"
    row = {"corpus": corpus, "documents": documents, "url": settings.url, "index": settings.index}
    print_result(output, sentence, row)
