"""Recording of a finished run: exactly what a replay needs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from touche_llm.config import CacheConfig, Config, load_config
from touche_llm.data.files import open_atomic, replace_folder
from touche_llm.data.records import Topic
from touche_llm.data.trec_runs import read_run, write_candidates
from touche_llm.errors import DataError
from touche_llm.evaluation.qrels import Qrels
from touche_llm.llm.cache import CacheMode
from touche_llm.pipeline.candidates import check_candidates, choose_topics, open_corpus
from touche_llm.pipeline.common import first_stage_file, load_prompts
from touche_llm.pipeline.run_files import CONFIG, RUN
from touche_llm.pipeline.run_folder import check_finished, read_failures
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
    read_first_stage,
    write_arguments,
    write_cassette,
    write_config,
    write_documents,
    write_qrels,
    write_topics,
)
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task


class MissingReplies(DataError):
    """A run cannot be recorded because the server left requests without a reply.

    Attributes:
        places: Topic and document of each such request.
    """

    def __init__(self, message: str, places: Collection[tuple[str | None, str | None]]) -> None:
        super().__init__(message)
        self.places = frozenset(places)


@dataclass(frozen=True, slots=True)
class Recording:
    """Counts of what was recorded; `size` is in bytes, `answers` counts cassette entries."""

    files: int
    size: int
    topics: int
    documents: int
    answers: int


def load_finished_run(run: Path) -> Config:
    """Load the configuration of a finished run.

    Raises:
        DataError: The folder holds no finished run, or its answers were not kept.
    """
    for name in (CONFIG, RUN):
        if not (run / name).is_file():
            raise DataError(f"{run / name}: no such file; give the folder of a finished run")
    check_finished(run, "rank")
    config = load_config(run / CONFIG, {})
    if config.cache.mode is CacheMode.OFF or not config.cache.file.is_file():
        raise DataError(
            f"{config.cache.file}: no answers of {run}; paths in its {CONFIG} are relative to the current folder, so "
            "repeat the command in the folder where the run was made"
        )
    return config


async def record(config: Config, run: Path, target: Path, qrels: Qrels | None) -> Recording:
    """Record a run in a folder that appears, or replaces an older one, once its replay gives the same run.

    The same run gives the same bytes. The first stage is stored and never run again.

    Args:
        config: Configuration of the run.
        run: Folder of the run.
        target: Folder to create or replace.
        qrels: Judgments to store with it; those of the run's topics are kept.

    Raises:
        MissingReplies: Answers are missing because the server gave no reply to these requests.
        DataError: The replay gives another run, or an answer is missing for another reason.
    """
    task = get_task(config.task)
    topics = choose_topics(config)
    with replace_folder(target, SNAPSHOT_FILES) as folder, tempfile.TemporaryDirectory() as name:
        work = Path(name)
        # Paths of templates are relative to the final folder.
        write_config(config, target, folder)
        write_topics(topics, folder / TOPICS)
        documents = _write_documents(config, run, task, topics, folder)
        if qrels is not None:
            write_qrels(qrels, [topic.id for topic in topics], folder)
        shutil.copyfile(run / RUN, folder / RUN)
        prompts = load_prompts(config, task, *(purpose for purpose in purposes_of(task) if purpose != QUERIES))
        for purpose, prompt in prompts.items():
            copy_template(prompt, folder / PROMPTS / purpose)
        templates = {purpose: prompt.path.name for purpose, prompt in prompts.items()}
        manifest = Manifest(settings=run_settings(config), templates=templates)
        manifest.write(folder)
        (folder / CASSETTE).touch()
        snapshot = open_snapshot(folder)
        source = CacheConfig(file=config.cache.file, mode=CacheMode.REPLAY)
        source_config = snapshot.config().model_copy(update={"prompts": config.prompts, "cache": source})
        replayed = await _replay_equal(source_config, snapshot, work / "first", run, target)
        answers = write_cassette(replayed, source.file, work / "entries.sqlite", folder / CASSETTE)
        examples: dict[str, RequestSnapshot] = {}
        for key, request in replayed.requests.items():
            examples.setdefault(key.purpose, RequestSnapshot.of(request))
        manifest.model_copy(update={"examples": examples}).write(folder)
        # The recorded run must replay without its sources.
        snapshot = open_snapshot(folder)
        await _replay_equal(snapshot.with_recorded_templates(snapshot.config()), snapshot, work / "second", run, target)
        files = [path for path in folder.rglob("*") if path.is_file()]
        return Recording(len(files), sum(path.stat().st_size for path in files), len(topics), documents, answers)


def _write_documents(config: Config, run: Path, task: Task, topics: list[Topic], folder: Path) -> int:
    """Write the first stage and its documents; return the number of documents."""
    first = read_first_stage(config, run, task, topics)
    write_candidates(folder / first_stage_file(task), first, config.tag)
    documents = {candidate.document_id for ranking in first for candidate in ranking}
    with open_corpus(config, task, lambda message: None) as corpus:
        check_candidates(run / first_stage_file(task), first, corpus.candidates, corpus.name)
        with open_atomic(folder / corpus_file(task)) as stream:
            if task.sentence_question is None:
                write_documents(sorted(documents), corpus.documents, stream)
            else:
                assert corpus.store is not None
                write_arguments(documents, corpus.store, stream)
    return len(documents)


async def _replay_equal(config: Config, snapshot: Snapshot, work: Path, run: Path, target: Path) -> ReplayResult:
    """Replay a run that is being recorded; raise DataError if the replay gives another run."""
    work.mkdir()
    replayed = await replay(config, snapshot.first_stage, work, target)
    differences = list_missing(target.name, replayed)
    if unreplied := _list_unreplied(run) & {(missing.topic, missing.document) for missing in differences}:
        raise MissingReplies(
            f"{target}: not recorded: the server gave no reply to {len(unreplied):,} requests of {run}; run "
            f"`touche-llm run --config {run / CONFIG} --out {run}` again, which sends only these requests, then record "
            f"the run\n{format_differences(target.name, differences)}",
            unreplied,
        )
    if not differences and replayed.run.read_bytes() != snapshot.run.read_bytes():
        differences = compare_rankings(target.name, read_run(snapshot.run), read_run(replayed.run))
    if differences:
        raise DataError(
            f"{target}: not recorded: with {config.cache.file} and the current program and templates, the replay gives "
            f"another run; repeat the run, then record it\n{format_differences(target.name, differences)}"
        )
    return replayed


def _list_unreplied(run: Path) -> set[tuple[str | None, str | None]]:
    """Return topic and document of the requests of a run that ended without a reply."""
    failures = [failure for of_file in read_failures(run).values() for failure in of_file]
    # An error reply of the server is stored, so its answer is not missing.
    return {
        (failure.topic_id, failure.document_id)
        for failure in failures
        if failure.attempts and failure.attempts[-1].kind in ("server_error", "timeout")
    }
