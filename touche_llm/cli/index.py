"""The command that stores and indexes a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from touche_llm.api.corpora import DenseCorpus, LocalCorpus, open_local_corpus
from touche_llm.cli import options as s
from touche_llm.cli.options import CommandProgress
from touche_llm.cli.output import Format, FormatOption, print_result
from touche_llm.errors import UsageError
from touche_llm.interrupts import run_until_interrupted
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import CacheConfig
from touche_llm.retrieval.first_stages import RETRIEVERS, SECTIONS, RetrieverConfig
from touche_llm.retrieval.registry import EngineInputs
from touche_llm.tasks import DEFAULT_TASK, find_dataset_task, get_task
from touche_llm.tasks.task import Task


def _list_indexed_sections() -> list[str]:
    """Return the names of the sections of first stages that have something to index."""
    sections: list[str] = []
    for retriever in RETRIEVERS.values():
        if retriever.can_index and retriever.section is not None:
            sections.append(retriever.section.name)
    return sections


@s.takes_settings(
    *("task", "dataset", "corpus", "index", "skip_bad_lines", "retriever"),
    *_list_indexed_sections(),
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
    if not given.get("dataset") and given.get("corpus") is None:
        raise UsageError("index: missing --corpus or --dataset; see touche-llm index --help")
    task = _find_task(given)
    retriever = s.read_section(RetrieverConfig, given, "retriever")
    if not retriever.kind.can_index:
        raise UsageError(
            f"--retriever {retriever.name}: needs no index; give {_join_retrievers_with_index()}"
        )

    values = s.set_values(assigned or [], "index")
    _check_sections(retriever, given, values)
    settings = _read_own_settings(retriever, given | values)
    is_search_engine = retriever.kind.load_corpus is not None
    if is_search_engine:
        _check_load(retriever, given)
    problem = retriever.kind.find_problem(task)
    if problem is not None:
        raise UsageError(f"--retriever {retriever.name}: {problem}")

    if is_search_engine:
        _load(retriever, task, settings, given, output)
    else:
        _store(retriever, task, settings, given, output)


def _find_task(given: s.GivenSettings) -> Task:
    """Return the task of a corpus: the given one, that of the dataset, or the default."""
    if given.get("task"):
        return get_task(given["task"])
    if given.get("dataset"):
        return get_task(find_dataset_task(given["dataset"]))
    return get_task(DEFAULT_TASK)


def _join_retrievers_with_index() -> str:
    """Return the names of the retrievers that need an index, as a list in words."""
    *names, last = (retriever.name for retriever in RETRIEVERS.values() if retriever.can_index)
    return f"{', '.join(names)} or {last}"


def _check_sections(
    retriever: RetrieverConfig, given: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Raise UsageError for a setting that the indexing does not use.

    Args:
        retriever: The chosen first stage.
        given: Settings of options, of which only the sections of other retrievers are unused.
        values: Settings of `--set`, of which only the own section of the retriever is used.
    """
    own_section = retriever.kind.section
    own_name = None if own_section is None else own_section.name
    for name in (*given, *values):
        section = name.partition(".")[0]
        if section == own_name:
            continue

        is_assigned = name in values
        if is_assigned or section in SECTIONS:
            flag = "--set " if is_assigned else ""
            raise UsageError(f"{flag}{name}: not used with --retriever {retriever.name}")


def _read_own_settings(retriever: RetrieverConfig, given: Mapping[str, Any]) -> Any:
    """Return the settings that the retriever declares; None if it declares none."""
    section = retriever.kind.section
    if section is None:
        return None
    return s.read_section(section.settings, given, section.name)


def _store(
    retriever: RetrieverConfig,
    task: Task,
    settings: Any,
    given: s.GivenSettings,
    output: Format,
) -> None:
    """Store a corpus on disk with the index, the vectors or both that the retriever needs.

    Args:
        retriever: First stage.
        task: Task of the corpus.
        settings: Settings that the first stage declares.
        given: Settings of the command line.
        output: Form of the output.
    """
    source = given.get("dataset") or given["corpus"]
    progress = CommandProgress()
    with open_local_corpus(
        corpus=source,
        index=given.get("index"),
        task=task,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=progress.warn,
        retriever=retriever,
        retriever_settings=settings,
    ) as corpus:
        if retriever.kind.has_index:
            corpus.open_first_stages()
        if retriever.kind.needs_embeddings:
            no_cache = CacheConfig(mode=CacheMode.OFF)
            work = DenseCorpus(corpus, settings, no_cache, progress).embed()
            run_until_interrupted(work, "the vectors so far are stored; the same command resumes")
        _print_stored(output, corpus, source)


def _print_stored(output: Format, corpus: LocalCorpus, source: Path | str) -> None:
    """Print the numbers of documents and sentences of a stored corpus, and its folder."""
    documents = len(corpus.store)
    sentences = len(corpus.store.parts)
    folder = corpus.store.folder
    parts = f" and their {sentences:,} sentences" if sentences else ""
    row = {
        "corpus": source,
        "documents": documents,
        "sentences": sentences or None,
        "folder": folder,
    }
    sentence = f"{documents:,} documents of {source}{parts} are indexed in {folder}"
    print_result(output, sentence, row)


def _check_load(retriever: RetrieverConfig, given: s.GivenSettings) -> None:
    """Raise UsageError for a setting that a search engine with its own documents does not have."""
    if "index" in given:
        raise UsageError(
            f"--retriever {retriever.name}: stores the index itself; leave out --index"
        )
    only_method = retriever.kind.bm25_method
    if only_method is not None and given.get("retriever.method", only_method) != only_method:
        raise UsageError(f"--retriever {retriever.name}: scores as --bm25-method {only_method}")
    if "dataset" in given:
        raise UsageError(
            f"--dataset: cannot be loaded with --retriever {retriever.name}; give its file as --corpus"
        )


def _load(
    retriever: RetrieverConfig,
    task: Task,
    settings: Any,
    given: s.GivenSettings,
    output: Format,
) -> None:
    """Load a corpus into the search engine of the retriever."""
    load_corpus = retriever.kind.load_corpus
    assert load_corpus is not None
    corpus: Path = given["corpus"]
    inputs = EngineInputs(
        task=task,
        bm25=retriever.bm25,
        settings=settings,
        warn=CommandProgress().warn,
    )
    loaded = run_until_interrupted(
        load_corpus(inputs, corpus, given.get("skip_bad_lines", False)),
        "the documents so far are stored; the same command resumes",
    )
    sentence = f"{loaded.documents:,} documents of {corpus} are in {loaded.place}"
    row = {"corpus": corpus, "documents": loaded.documents, **loaded.columns}
    print_result(output, sentence, row)
