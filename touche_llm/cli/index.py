"""The command that stores and indexes a corpus."""

from __future__ import annotations

from touche_llm.api.corpora import DenseCorpus, open_local_corpus
from touche_llm.cli import setting_options as s
from touche_llm.cli.interrupts import until_interrupted
from touche_llm.cli.output import Format, FormatOption, print_result
from touche_llm.cli.setting_options import CommandProgress
from touche_llm.errors import UsageError
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import CacheConfig
from touche_llm.retrieval.dense import DenseSettings, find_dense_problem
from touche_llm.retrieval.elasticsearch import ElasticsearchSettings, load_corpus
from touche_llm.retrieval.settings import RetrieverConfig
from touche_llm.tasks import DEFAULT_TASK, find_dataset_task, get_task
from touche_llm.tasks.task import Task


@s.takes_settings(
    *(
        "task",
        "dataset",
        "corpus",
        "index",
        "skip_bad_lines",
        "retriever",
        "elasticsearch",
        "dense",
    ),
    without=("retriever.query",),
)
def index(
    given: s.GivenSettings, assigned: s.SetOption = None, output: FormatOption = Format.TABLE
) -> None:
    """Store a corpus and build its BM25 index. Does nothing if both exist and are up to date.

    With `--retriever dense` or `hybrid` a model embeds the documents, with `--retriever
    elasticsearch` they are loaded into an index there; what was stopped resumes.
    """
    s.check_inputs(given)
    dataset = given.get("dataset")
    corpus = dataset or given.get("corpus")
    if corpus is None:
        raise UsageError("index: missing --corpus or --dataset; see touche-llm index --help")
    task = get_task(given.get("task") or (find_dataset_task(dataset) if dataset else DEFAULT_TASK))
    retriever = s.read_section(RetrieverConfig, given, "retriever")
    if retriever.name in ("chatnoir", "okapi"):
        raise UsageError(
            f"--retriever {retriever.name}: needs no index; give bm25, dense, hybrid or elasticsearch"
        )
    section = (
        "elasticsearch"
        if retriever.name == "elasticsearch"
        else "dense"
        if retriever.is_dense
        else None
    )
    values = s.set_values(assigned or [], "index")
    for name in (*given, *values):
        of = name.partition(".")[0]
        if of != section and (name in values or of in ("elasticsearch", "dense")):
            raise UsageError(
                f"{'--set ' * (name in values)}{name}: not used with --retriever {retriever.name}"
            )
    given |= values
    if section == "elasticsearch":
        _load_elasticsearch(task, retriever, given, output)
        return
    if section == "dense" and (problem := find_dense_problem(task)):
        raise UsageError(problem)
    progress = CommandProgress()
    with open_local_corpus(
        corpus,
        given.get("index"),
        task,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=progress.warn,
        retriever=retriever,
    ) as opened:
        if retriever.name != "dense":
            opened.open_first_stages()
        if section == "dense":
            settings = s.read_section(DenseSettings, given, "dense")
            work = DenseCorpus(opened, settings, CacheConfig(mode=CacheMode.OFF), progress).embed()
            until_interrupted(
                work, lambda: "the vectors so far are stored; the same command resumes"
            )
        store = opened.store
        documents, sentences = len(store), len(store.parts)
        parts = f" and their {sentences:,} sentences" if sentences else ""
        sentence = f"{documents:,} documents of {corpus}{parts} are indexed in {store.folder}"
        row = {
            "corpus": corpus,
            "documents": documents,
            "sentences": sentences or None,
            "folder": store.folder,
        }
        print_result(output, sentence, row)


def _load_elasticsearch(
    task: Task, retriever: RetrieverConfig, given: s.GivenSettings, output: Format
) -> None:
    if "index" in given or given.get("retriever.method", "lucene") != "lucene":
        raise UsageError(
            "--retriever elasticsearch: stores the index itself and scores as --bm25-method lucene"
        )
    if "dataset" in given:
        raise UsageError(
            "--dataset: cannot be loaded into Elasticsearch; give its file as --corpus"
        )
    if task.reads_arguments:
        what = "arguments of args.me" if task.sentence_question is None else "pairs of sentences"
        raise UsageError(f"--retriever elasticsearch: {task.name} ranks {what}; use bm25")
    settings = s.read_section(ElasticsearchSettings, given, "elasticsearch")
    corpus = given["corpus"]
    work = load_corpus(
        corpus,
        task.read_corpus,
        settings,
        k1=retriever.k1,
        b=retriever.b,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=CommandProgress().warn,
    )
    documents = until_interrupted(
        work, lambda: "the documents so far are stored; the same command resumes"
    ).documents
    sentence = f"{documents:,} documents of {corpus} are in {settings.url}, index {settings.index}"
    row = {"corpus": corpus, "documents": documents, "url": settings.url, "index": settings.index}
    print_result(output, sentence, row)
