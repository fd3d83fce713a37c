"""Recording a finished run: small, with everything that a replay needs and nothing else."""

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
from touche_llm.pipeline.common import first_stage_file, prompts_of
from touche_llm.pipeline.run_files import CONFIG, RUN
from touche_llm.pipeline.run_folder import check_finished, read_failures
from touche_llm.prompts.purposes import purposes_of
from touche_llm.regression.differences import missing, moves
from touche_llm.regression.format_diff import told
from touche_llm.regression.replay import Walk, walk
from touche_llm.regression.snapshot import (
    CASSETTE,
    PROMPTS,
    QUERIES,
    RECORDED_FILES,
    TOPICS,
    Example,
    Manifest,
    Recorded,
    corpus_file,
    open_recorded,
    settings_of,
)
from touche_llm.regression.writing import (
    copy_template,
    first_stage_of,
    write_arguments,
    write_cassette,
    write_config,
    write_documents,
    write_qrels,
    write_topics,
)
from touche_llm.tasks import get_task
from touche_llm.tasks.base import Task


class NoReplies(DataError):
    """A run cannot be recorded, since the server left requests without a reply, which nothing can be stored of.

    Attributes:
        places: Topic and document of each such request.
    """

    def __init__(self, message: str, places: Collection[tuple[str | None, str | None]]) -> None:
        super().__init__(message)
        self.places = frozenset(places)


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded: files, bytes, and what the run is made of."""

    files: int
    size: int
    topics: int
    documents: int
    answers: int


def finished_run(run: Path) -> Config:
    """The configuration of a finished run.

    Raises:
        DataError: the folder holds no finished run, or it kept no answers.
    """
    for name in (CONFIG, RUN):
        if not (run / name).is_file():
            raise DataError(f"{run / name}: not there; give the folder of a run that is finished")
    check_finished(run, "rank")
    config = load_config(run / CONFIG, {})
    if config.cache.mode is CacheMode.OFF or not config.cache.file.is_file():
        raise DataError(
            f"{config.cache.file}: the answers of {run} are not there; paths in its {CONFIG} are taken from the "
            "current folder"
        )
    return config


async def record(config: Config, run: Path, target: Path, qrels: Qrels | None) -> Recording:
    """Record a run in a folder, which appears, or takes the place of an older one, only when its replay is the run.

    The same run gives the same bytes. The first stage is kept as it was found and is never run again.

    Args:
        config: of the run.
        run: its folder.
        target: the folder to make.
        qrels: judgments to keep beside it: those of the run's topics.

    Raises:
        NoReplies: answers are missing, since the server gave no reply to these requests.
        DataError: the replay gives another run, or an answer is missing for another reason.
    """
    task = get_task(config.task)
    topics = choose_topics(config)
    with replace_folder(target, RECORDED_FILES) as folder, tempfile.TemporaryDirectory() as name:
        work = Path(name)
        # Templates are named relative to the folder that is to be.
        write_config(config, target, folder)
        write_topics(topics, folder / TOPICS)
        documents = _write_documents(config, run, task, topics, folder)
        if qrels is not None:
            write_qrels(qrels, [topic.id for topic in topics], folder)
        shutil.copyfile(run / RUN, folder / RUN)
        prompts = prompts_of(config, task, *(purpose for purpose in purposes_of(task) if purpose != QUERIES))
        for purpose, prompt in prompts.items():
            copy_template(prompt, folder / PROMPTS / purpose)
        templates = {purpose: prompt.path.name for purpose, prompt in prompts.items()}
        manifest = Manifest(settings=settings_of(config), templates=templates)
        manifest.write(folder)
        (folder / CASSETTE).touch()
        recorded = open_recorded(folder)
        source = CacheConfig(file=config.cache.file, mode=CacheMode.REPLAY)
        asked = recorded.config().model_copy(update={"prompts": config.prompts, "cache": source})
        found = await _replayed(asked, recorded, work / "first", run, target)
        answers = write_cassette(found, source.file, work / "entries.sqlite", folder / CASSETTE)
        examples: dict[str, Example] = {}
        for place, request in found.asked.items():
            examples.setdefault(place.purpose, Example.of(request))
        manifest.model_copy(update={"examples": examples}).write(folder)
        # What was written must do without all that it was made of.
        recorded = open_recorded(folder)
        await _replayed(recorded.as_recorded(recorded.config()), recorded, work / "second", run, target)
        files = [path for path in folder.rglob("*") if path.is_file()]
        return Recording(len(files), sum(path.stat().st_size for path in files), len(topics), documents, answers)


def _write_documents(config: Config, run: Path, task: Task, topics: list[Topic], folder: Path) -> int:
    """Write the first stage and the documents in it; returns how many these are."""
    first = first_stage_of(config, run, task, topics)
    write_candidates(folder / first_stage_file(task), first, config.tag)
    documents = {each.document_id for ranking in first for each in ranking}
    with open_corpus(config, task, lambda message: None) as corpus:
        check_candidates(run / first_stage_file(task), first, corpus.candidates, corpus.name)
        with open_atomic(folder / corpus_file(task)) as stream:
            if task.sentence_question is None:
                write_documents(sorted(documents), corpus.documents, stream)
            else:
                assert corpus.store is not None
                write_arguments(documents, corpus.store, stream)
    return len(documents)


async def _replayed(config: Config, recorded: Recorded, work: Path, run: Path, target: Path) -> Walk:
    """The way of a run that is being recorded; raises DataError where it does not lead to the same run."""
    work.mkdir()
    found = await walk(config, recorded.first_stage, work, target)
    findings = missing(target.name, found)
    if unreplied := _without_reply(run) & {(each.topic, each.document) for each in findings}:
        raise NoReplies(
            f"{target}: not recorded: the server gave no reply to {len(unreplied):,} requests of {run}, so that their "
            f"answers are missing; run `touche-llm run --config {run / CONFIG} --out {run}` again, which sends these "
            f"alone, and record it then\n{told(target.name, findings)}",
            unreplied,
        )
    if not findings and found.run.read_bytes() != recorded.run.read_bytes():
        findings = moves(target.name, read_run(recorded.run), read_run(found.run))
    if findings:
        raise DataError(
            f"{target}: not recorded, since with {config.cache.file}, and with the program and the templates of now, "
            f"the run does not come out again; make it anew\n{told(target.name, findings)}"
        )
    return found


def _without_reply(run: Path) -> set[tuple[str | None, str | None]]:
    """Return topic and document of the requests of a run that ended without a reply."""
    failures = [failure for of_file in read_failures(run).values() for failure in of_file]
    # Of the errors of a server, those that are a reply are stored, and so are not missing.
    return {
        (each.topic_id, each.document_id)
        for each in failures
        if each.attempts and each.attempts[-1].kind in ("server_error", "timeout")
    }
