"""`touche-llm index --retriever elasticsearch`: a corpus into Elasticsearch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from touche_llm.cli.options import checked, set_values
from touche_llm.cli.output import Format, print_rows
from touche_llm.data.setting_problems import describe_problem
from touche_llm.errors import UsageError
from touche_llm.pipeline.progress import ConsoleProgress
from touche_llm.retrieval.bm25 import Bm25Settings
from touche_llm.retrieval.elasticsearch.load import load_corpus
from touche_llm.retrieval.elasticsearch.settings import ElasticsearchSettings
from touche_llm.tasks import DEFAULT_TASK, get_task


def load_elasticsearch(
    corpus: Path, task: str | None, given: Mapping[str, Any], values: list[str], skip_bad_lines: bool, output: Format
) -> None:
    """Load a corpus and say what is there.

    Args:
        corpus: the file.
        task: whose reader reads it.
        given: `url`, `index`, `k1` and `b`; None where the default is wanted.
        values: of `--set`.
        skip_bad_lines: leave them out.
        output: the form of what is said.

    Raises:
        UsageError: the task has no documents that are ranked themselves, or a value makes no sense.
    """
    known = get_task(task or DEFAULT_TASK)
    if known.sentence_question is not None:
        raise UsageError(f"--retriever elasticsearch: {known.name} ranks pairs of sentences, for which there is bm25")
    bm25 = checked(Bm25Settings, {name: given[name] for name in ("k1", "b") if given[name] is not None})
    settings = _settings({name: given[name] for name in ("url", "index") if given[name] is not None}, values)
    load = load_corpus(
        corpus,
        known.read_corpus,
        settings,
        k1=bm25.k1,
        b=bm25.b,
        skip_bad_lines=skip_bad_lines,
        warn=ConsoleProgress().warn,
    )
    manifest = asyncio.run(load)
    if output is Format.TABLE:
        print(f"{manifest.documents:,} documents of {corpus} are in {settings.url}, index {settings.index}")
    else:
        row = {"corpus": corpus, "documents": manifest.documents, "url": settings.url, "index": settings.index}
        print_rows(output, [row])


def _settings(given: dict[str, Any], values: list[str]) -> ElasticsearchSettings:
    for name, value in set_values(values, "index").items():
        section, _, key = name.partition(".")
        if section != "elasticsearch":
            raise UsageError(f"--set {name:.80}: only the names under `elasticsearch` can be set here")
        given[key] = value
    try:
        return ElasticsearchSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"options: elasticsearch.{place}: {describe_problem(first)}") from None
