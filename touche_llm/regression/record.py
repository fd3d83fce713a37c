"""Recording of a finished run: exactly what a replay needs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from touche_llm.config import Config
from touche_llm.data.files import open_atomic, replace_folder
from touche_llm.data.topics import write_topics
from touche_llm.data.trec_runs import read_run
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.settings import CacheConfig
from touche_llm.pipeline.candidates import Candidates
from touche_llm.pipeline.context import RunContext
from touche_llm.pipeline.corpora import LocalCorpus
from touche_llm.pipeline.progress import SilentProgress
from touche_llm.pipeline.run_directory import RunDirectory
from touche_llm.pipeline.task_copy import copy_task
from touche_llm.prompts.purposes import purposes_of
from touche_llm.regression.differences import compare_rankings, list_missing
from touche_llm.regression.format_diff import format_differences
from touche_llm.regression.replay import ReplayResult, replay
from touche_llm.regression.snapshot import (
    CASSETTE,
    PROMPTS,
    QUERIES,
    SNAPSHOT_FILES,
    TOPICS,
    Manifest,
    RequestSnapshot,
    Snapshot,
    corpus_file,
    open_snapshot,
    run_settings,
)
from touche_llm.regression.writing import (
    copy_template,
    write_arguments,
    write_cassette,
    write_config,
    write_documents,
    write_qrels,
    write_whole_arguments,
)
from touche_llm.tasks.published import describe_restriction


@dataclass(frozen=True, slots=True)
class Recording:
    """Counts of what was recorded; `size` is in bytes, `answers` counts cassette entries.

    `note` is about texts that may not be redistributed; empty if there are none.
    """

    files: int
    size: int
    topics: int
    documents: int
    answers: int
    note: str


def load_finished_run(run: Path) -> Config:
    """Load the configuration of a finished run.

    Raises:
        DataError: The folder holds no finished run, or its answers were not kept.
    """
    directory = RunDirectory(run)
    for file in (directory.config_file, directory.run_file):
        if not file.is_file():
            raise DataError(f"{file}: no such file; give the folder of a finished run")
    directory.check_finished("rank")
    config = directory.read_config()
    if config.cache.mode is CacheMode.OFF or not config.cache.file.is_file():
        raise DataError(
            f"{config.cache.file}: no answers of {run}; if the file moved, name it in {directory.config_file} "
            "(`cache.file`), relative to that folder"
        )
    return config


async def record(config: Config, run: Path, target: Path, qrels: Qrels | None) -> Recording:
    """Record a run in a folder that appears, or replaces an older one, once its replay gives the same run.

    The same run gives the same bytes. The first stage is stored and never run again, and the judgments of its topics
    are stored with it.

    Raises:
        DataError: The replay gives another run, or an answer is missing.
    """
    directory = RunDirectory(run)
    with (
        replace_folder(target, SNAPSHOT_FILES) as folder,
        tempfile.TemporaryDirectory() as name,
        RunContext(config, SilentProgress()) as context,
    ):
        work, topics = Path(name), context.topics
        documents = await _write_documents(context, directory, folder)
        note = describe_restriction(documents)
        # Paths of templates are relative to the final folder.
        write_config(config, target, folder, note)
        copy_task(context.task, folder)
        write_topics(topics, folder / TOPICS)
        if qrels is not None:
            write_qrels(qrels, [topic.id for topic in topics], folder)
        shutil.copyfile(directory.run_file, folder / directory.run_file.name)
        prompts = context.load_prompts(*(purpose for purpose in purposes_of(context.task) if purpose != QUERIES))
        for purpose, prompt in prompts.items():
            copy_template(prompt, folder / PROMPTS / purpose)
        templates = {purpose: prompt.path.name for purpose, prompt in prompts.items()}
        manifest = Manifest(settings=run_settings(config), templates=templates)
        manifest.write(folder)
        (folder / CASSETTE).touch()
        snapshot = open_snapshot(folder)
        source = CacheConfig(file=config.cache.file, mode=CacheMode.REPLAY)
        source_config = snapshot.config().model_copy(update={"prompts": config.prompts, "cache": source})
        replayed = await _replay_equal(source_config, snapshot, work / "first", directory, target)
        answers = write_cassette(replayed, source.file, work / "entries.sqlite", folder / CASSETTE)
        examples: dict[str, RequestSnapshot] = {}
        for key, request in replayed.requests.items():
            examples.setdefault(key.purpose, RequestSnapshot.of(request))
        manifest.model_copy(update={"examples": examples}).write(folder)
        # The recorded run must replay without its sources.
        snapshot = open_snapshot(folder)
        await _replay_equal(
            snapshot.with_recorded_templates(snapshot.config()), snapshot, work / "second", directory, target
        )
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        return Recording(len(files), size, len(topics), len(documents), answers, note)


async def _write_documents(context: RunContext, directory: RunDirectory, folder: Path) -> set[str]:
    """Write the first stage and its documents; return the ids of the documents."""
    candidates = _read_first_stage(context, directory)
    candidates.write(RunDirectory(folder).first_stage_file(context.task), tag=context.config.tag)
    corpus = context.corpus
    await replace(candidates, corpus=corpus).check()
    documents = {candidate.document_id for ranking in candidates.list_rankings() for candidate in ranking}
    with open_atomic(folder / corpus_file(context.task)) as stream:
        if isinstance(corpus, LocalCorpus) and context.task.sentence_question is not None:
            write_arguments(documents, corpus.store, stream)
        elif context.task.reads_arguments:
            write_whole_arguments(sorted(documents), corpus.documents, stream)
        else:
            write_documents(sorted(documents), corpus.documents, context.task.document_keys, stream)
    return documents


def _read_first_stage(context: RunContext, directory: RunDirectory) -> Candidates:
    """Read the candidates of the run's topics; of sentences, only those that were judged."""
    found = directory.read_first_stage(context)
    question = context.task.sentence_question
    if question is None:
        return found
    judged = {(judgment.topic_id, judgment.document_id) for judgment in directory.read_sentences(question)}
    rankings = {
        topic_id: [candidate for candidate in ranking if (topic_id, candidate.document_id) in judged]
        for topic_id, ranking in found.rankings.items()
    }
    return replace(found, rankings=rankings)


async def _replay_equal(
    config: Config, snapshot: Snapshot, work: Path, directory: RunDirectory, target: Path
) -> ReplayResult:
    """Replay a run that is being recorded; raise DataError if the replay gives another run."""
    work.mkdir()
    replayed = await replay(config, snapshot.first_stage, work, target)
    differences = list_missing(target.name, replayed)
    if unreplied := _list_unreplied(directory) & {(missing.topic, missing.document) for missing in differences}:
        raise DataError(
            f"{target}: not recorded: the server gave no reply to {len(unreplied):,} requests of {directory}; run "
            f"`touche-llm run --config {directory.config_file} --out {directory}` again, which sends only these "
            f"requests, then record the run\n{format_differences(target.name, differences)}"
        )
    run = replayed.directory.run_file
    if not differences and run.read_bytes() != snapshot.run.read_bytes():
        differences = compare_rankings(target.name, read_run(snapshot.run), read_run(run))
    if differences:
        raise DataError(
            f"{target}: not recorded: with {config.cache.file} and the current program and templates, the replay gives "
            f"another run; repeat the run, then record it\n{format_differences(target.name, differences)}"
        )
    return replayed


def _list_unreplied(directory: RunDirectory) -> set[tuple[str | None, str | None]]:
    """Return topic and document of the requests of a run that ended without a reply."""
    failures = [failure for of_file in directory.read_failures().values() for failure in of_file]
    # An error reply of the server is stored, so its answer is not missing.
    return {
        (failure.topic_id, failure.document_id)
        for failure in failures
        if failure.attempts and failure.attempts[-1].kind in ("server_error", "timeout")
    }
