"""`touche-llm index --retriever elasticsearch`: loads a corpus into Elasticsearch."""

from __future__ import annotations

import asyncio
from pathlib import Path

from touche_llm.cli.output import Format, print_rows
from touche_llm.cli.setting_options import Given, set_values, validate
from touche_llm.errors import UsageError
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.retrieval.elasticsearch.load import load_corpus
from touche_llm.retrieval.elasticsearch.settings import ElasticsearchSettings
from touche_llm.retrieval.settings import RetrieverConfig
from touche_llm.tasks.base import Task


def load_elasticsearch(corpus: Path, task: Task, given: Given, values: list[str], output: Format) -> None:
    """Load a corpus into Elasticsearch and print the number of documents.

    Args:
        corpus: File of the corpus.
        task: Task whose reader reads it.
        given: Settings by dotted name.
        values: Values of `--set`, which can be those of the section `elasticsearch`.
        output: Format of the output.

    Raises:
        UsageError: The task ranks pairs of sentences, or a value is invalid.
    """
    if task.sentence_question is not None:
        raise UsageError(f"--retriever elasticsearch: {task.name} ranks pairs of sentences; use bm25")
    assigned = set_values(values, "index")
    for name in assigned:
        if name.partition(".")[0] != "elasticsearch":
            raise UsageError(f"--set {name:.80}: not used here; only settings under `elasticsearch` are")
    bm25 = validate(RetrieverConfig, given, "retriever").bm25
    settings = validate(ElasticsearchSettings, given | assigned, "elasticsearch")
    load = load_corpus(
        corpus,
        task.read_corpus,
        settings,
        k1=bm25.k1,
        b=bm25.b,
        skip_bad_lines=given.get("skip_bad_lines", False),
        warn=ConsoleProgress().warn,
    )
    manifest = asyncio.run(load)
    if output is Format.TABLE:
        print(f"{manifest.documents:,} documents of {corpus} are in {settings.url}, index {settings.index}")
    else:
        row = {"corpus": corpus, "documents": manifest.documents, "url": settings.url, "index": settings.index}
        print_rows(output, [row])
