"""First stage: retrieves candidates for each topic."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from touche_llm.config import Config
from touche_llm.data.files import write_records
from touche_llm.data.records import Failure, Queries
from touche_llm.data.trec_runs import write_candidates
from touche_llm.errors import shorten
from touche_llm.llm.model import ModelClient
from touche_llm.pipeline.candidates import choose_topics, find_candidates, open_corpus
from touche_llm.pipeline.common import (
    count_by_kind,
    describe_model_use,
    first_stage_file,
    load_prompts,
    make_request_builder,
    report_known_failures,
)
from touche_llm.pipeline.made_from import INPUTS, hash_inputs
from touche_llm.pipeline.metadata import DEPTH, begin_stage, record_stage
from touche_llm.pipeline.progress import Progress
from touche_llm.pipeline.run_files import QUERIES, QUERY_FAILURES
from touche_llm.ranking.expansion import find_queries
from touche_llm.tasks import get_task


async def retrieve_stage(
    config: Config, folder: Path, progress: Progress, model: ModelClient | None = None
) -> list[Failure]:
    """Write the candidates of each chosen topic, retrieved or read from a run file of another tool.

    Args:
        config: Configuration of the run.
        folder: Folder of the run.
        progress: Receives warnings and the progress of each stage.
        model: Required if queries are expanded.

    Returns:
        Failures of query expansion; their topics are searched for with the original query only.
    """
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    task = get_task(config.task)
    topics, inputs = choose_topics(config), hash_inputs(config)
    queries: list[Queries] = []
    failures: list[Failure] = []
    asked: dict[str, Any] = {}
    if config.expansion.use:
        assert model is not None
        prompts = load_prompts(config, task, "queries", warn=progress.warn)
        before = replace(model.counts)
        with progress.stage("finding queries", len(topics), model.counts) as done:
            queries, failures = await find_queries(
                topics, prompts["queries"], make_request_builder(config, model), done
            )
        model.raise_on_misses()
        report_known_failures(progress, model, before)
        asked = describe_model_use(model, prompts, before) | {"failures": count_by_kind(failures)}
    with open_corpus(config, task, progress.warn) as corpus:
        opened = time.monotonic()
        with progress.stage("retrieving", len(topics)) as done:
            candidates = await find_candidates(config, task, topics, queries, corpus, progress.warn, done)
    empty = [topic.id for topic, ranking in zip(topics, candidates, strict=True) if not ranking]
    if empty:
        progress.warn(
            f"no candidate for {len(empty)} of {len(topics)} topics: {shorten(empty)} (with BM25: the corpus has no "
            "word of the query, or each word is in more than half of the documents)"
        )
    begin_stage(folder, config, "retrieve")
    write_candidates(folder / first_stage_file(task), candidates, config.tag)
    if config.expansion.use:
        write_records(folder / QUERIES, queries)
        write_records(folder / QUERY_FAILURES, failures)
    record_stage(
        folder,
        config,
        "retrieve",
        {
            "topics": len(topics),
            DEPTH: config.first_stage_depth,
            "candidates": sum(map(len, candidates)),
            "topics without candidates": empty,
            "corpus": dict(corpus.description),
            INPUTS: inputs,
            **asked,
            "seconds to store the corpus or open it": round(opened - started, 3),
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    return failures
