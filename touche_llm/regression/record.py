"""Recording of a finished run: exactly what a replay needs."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import orjson
from pydantic import BaseModel

from touche_llm.api.corpora import LocalCorpus
from touche_llm.api.progress import SilentProgress
from touche_llm.config.configuration import Config
from touche_llm.config.files import CONFIG, load_config
from touche_llm.config.own_folders import record_configuration
from touche_llm.config.task_copies import copy_task
from touche_llm.corpus.args_me import HEADER
from touche_llm.corpus.json_lines import DocumentKeys
from touche_llm.corpus.store import DocumentStore
from touche_llm.data.files import copy_file_of, open_atomic, open_private_folder, replace_folder
from touche_llm.data.records import Candidate, Document
from touche_llm.data.topics.reading import write_topics
from touche_llm.engines.cached_info import name_kind, store_engine_info
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import DataError
from touche_llm.kinds.known import get_kind
from touche_llm.llm.answer import OUTCOMES
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.settings import CacheConfig
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import purposes_of
from touche_llm.regression.check import ReplayResult, compare_replay, list_texts, replay
from touche_llm.regression.result import format_result
from touche_llm.regression.snapshot import (
    CASSETTE,
    DECISIVE,
    PROMPTS,
    QUERIES,
    SNAPSHOT_FILES,
    TOPICS,
    Manifest,
    Snapshot,
    corpus_file,
    open_snapshot,
)
from touche_llm.retrieval.candidates import Candidates
from touche_llm.retrieval.corpus import Corpus
from touche_llm.runs.context import RunContext
from touche_llm.runs.directory import RunDirectory
from touche_llm.settings.yaml_text import to_yaml
from touche_llm.tasks import get_task
from touche_llm.tasks.published import describe_restriction
from touche_llm.tasks.task import Task

# Kinds of the entries that a cassette gets.
_COPIED = (*OUTCOMES, "fit", "score", name_kind("score"))


def copy_template(prompt: Prompt, folder: Path) -> None:
    """Copy a template with the files that it includes and its examples."""
    source = prompt.path.parent
    for name in list_texts(prompt):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file_of(source, source / name, target)


def write_config(config: Config, target: Path, folder: Path, note: str | None = None) -> None:
    """Write the settings that differ from the defaults, so that a replay reveals a changed default.

    Names of people, URLs and paths of this machine are omitted.

    Args:
        config: Configuration of the run.
        target: Folder that paths of templates are relative to.
        folder: Folder of the file.
        note: Note on the recorded documents, which is the first line, as a comment.
    """
    content = to_yaml(_list_recorded_values(config, target))
    if note is not None:
        comment = f"# {corpus_file(get_task(config.task))} {note}.\n"
        content = comment.encode() + content
    record_configuration(folder / CONFIG, content)
    with open_atomic(folder / CONFIG) as stream:
        stream.write(content)


def _list_recorded_values(config: Config, target: Path) -> dict[str, Any]:
    """Return the values that are recorded of a configuration, by section.

    Args:
        config: Configuration of the run.
        target: Folder that paths of templates are relative to.
    """
    task = get_task(config.task)
    paths = {"topics": TOPICS, "corpus": corpus_file(task)}
    # With the objective of the run, since the default weights depend on it.
    defaults = load_config(None, {"task": config.task, "objective": config.objective, **paths})

    values: dict[str, Any] = {
        "task": task.name if task.is_own else os.path.relpath(task.folder, target),
        **paths,
        **_select_non_defaults(_omit_places(config), defaults, (*DECISIVE, "expansion")),
    }
    if config.objective != Config.model_fields["objective"].default:
        values["objective"] = config.objective
    prompts = _select_prompts(config, target)
    if prompts:
        values["prompts"] = prompts
    values["cache"] = {"file": CASSETTE, "mode": CacheMode.REPLAY.value}
    return values


def _omit_places(config: Config) -> Config:
    """Return a configuration without URLs and paths of its models."""
    engine = EngineConfig.model_validate(
        {
            "model": config.engine.model_name,
            "revision": config.engine.revision,
            "context": config.engine.context,
        }
    )
    cross_encoder = config.ranking.cross_encoder.model_copy(update={"url": None})
    ranking = config.ranking.model_copy(update={"cross_encoder": cross_encoder})
    return config.model_copy(update={"engine": engine, "ranking": ranking})


def _select_prompts(config: Config, target: Path) -> dict[str, Any]:
    """Return the prompts that differ from the defaults, with paths relative to the target folder."""
    fields = type(config.prompts).model_fields
    prompts: dict[str, Any] = {}
    for name, value in config.prompts.model_dump(mode="json").items():
        if value is None or value == fields[name].default:
            continue
        is_path = name == "folder" or value.endswith(".jinja")
        prompts[name] = os.path.relpath(value, target) if is_path else value
    return prompts


def _select_non_defaults(
    values: BaseModel, defaults: BaseModel, names: Iterable[str]
) -> dict[str, Any]:
    """Return the values that differ from the defaults, section by section."""
    dumped = values.model_dump(mode="json")
    selected: dict[str, Any] = {}
    for name in names:
        value = getattr(values, name)
        default = getattr(defaults, name)
        if isinstance(value, BaseModel) and isinstance(default, BaseModel):
            section = _select_non_defaults(value, default, type(value).model_fields)
            if section:
                selected[name] = section
        elif value != default:
            selected[name] = dumped[name]
    return selected


def write_arguments(sentences: set[str], store: DocumentStore, stream: IO[bytes]) -> None:
    """Write the arguments of some sentences, with only these sentences, in corpus order.

    Args:
        sentences: Ids of the sentences.
        store: Store of the arguments and their sentences.
        stream: Table of args.me to write.
    """
    # Ids by row of the sentence, by row of its argument.
    ids_by_argument: dict[int, dict[int, str]] = {}
    for sentence_id in sentences:
        place = store.parts.locate(sentence_id)
        ids_by_argument.setdefault(place.document, {})[place.row] = sentence_id

    argument_rows = sorted(ids_by_argument)
    arguments: list[_ArgumentRow] = []
    for row, argument_id in zip(argument_rows, store.get_ids(argument_rows), strict=True):
        ids_by_row = ids_by_argument[row]
        argument = _ArgumentRow(
            document=replace(store.get(argument_id), text=""),
            sentences=[_make_sentence(store, ids_by_row[place]) for place in sorted(ids_by_row)],
        )
        arguments.append(argument)
    _write_table(arguments, stream)


@dataclass(frozen=True, slots=True)
class _ArgumentRow:
    """A row of args.me's table.

    Attributes:
        document: Argument.
        sentences: Its sentences, as the table has them.
    """

    document: Document
    sentences: list[dict[str, str]]


def _make_sentence(store: DocumentStore, sentence_id: str) -> dict[str, str]:
    """Return a sentence as args.me's table has it."""
    return {"sent_id": sentence_id, "sent_text": store.parts.get(sentence_id).text}


def _write_table(arguments: Iterable[_ArgumentRow], stream: IO[bytes]) -> None:
    """Write arguments as args.me's table, whose cells hold lists in the syntax of Python."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for argument in arguments:
        document = argument.document
        premise = {"text": document.text, "stance": document.side, "annotations": list[str]()}
        sentences = repr(argument.sentences)
        writer.writerow([document.id, document.title, repr([premise]), "", sentences])
    # The caller closes the stream.
    text.detach()


def write_cassette(replayed: ReplayResult, source: Path, work: Path, cassette: Path) -> int:
    """Write a cassette of the cache entries that a replay used; return their number.

    Args:
        replayed: Replay, with the keys that it used and the description of its engine.
        source: Cache of the run.
        work: File for a cache with these entries alone.
        cassette: File to write.
    """
    with Cache(source, CacheMode.REPLAY) as cache, Cache(work) as chosen:
        store_engine_info(replayed.facts, chosen)
        for kind in _COPIED:
            for key in replayed.used_keys:
                for entry in cache.find(kind, key=key):
                    chosen.put(entry)
        return chosen.export_cassette(cassette).entries


@dataclass(frozen=True, slots=True)
class Recording:
    """Counts of what was recorded; `size` is in bytes, `answers` counts cassette entries.

    `note` is about texts that may not be redistributed; None if there are none.
    """

    size: int
    topics: int
    documents: int
    answers: int
    note: str | None


async def record(config: Config, run: Path, target: Path) -> Recording:
    """Record a run in a folder that appears, or replaces an older one, once its replay gives the same run.

    The same run gives the same bytes. The first stage is stored and never run again.
    """
    directory = RunDirectory(run)
    with (
        replace_folder(target, SNAPSHOT_FILES) as folder,
        open_private_folder() as work,
        RunContext(config, SilentProgress()) as context,
    ):
        documents = await _write_documents(context, directory, folder)
        note = describe_restriction(documents)
        # Paths of templates are relative to the final folder.
        write_config(config, target, folder, note)
        copy_task(context.task, folder)
        write_topics(context.topics, folder / TOPICS)
        shutil.copyfile(directory.run_file, folder / directory.run_file.name)
        templates = _copy_templates(context, folder)
        Manifest(templates=templates).write(folder)
        answers = await _write_answers(config, folder, work, target)

        return Recording(
            size=_measure_size(folder),
            topics=len(context.topics),
            documents=len(documents),
            answers=answers,
            note=note,
        )


def _copy_templates(context: RunContext, folder: Path) -> dict[str, str]:
    """Copy the templates that a run needs after its first stage.

    Returns:
        Names of the template files, by purpose.
    """
    purposes = [purpose for purpose in purposes_of(context.task) if purpose != QUERIES]
    names: dict[str, str] = {}
    for purpose, prompt in context.load_prompts(*purposes).items():
        copy_template(prompt, folder / PROMPTS / purpose)
        names[purpose] = prompt.path.name
    return names


async def _write_answers(config: Config, folder: Path, work: Path, target: Path) -> int:
    """Write the answers of a run, once a replay of the recorded files with them gives the same run.

    Args:
        config: Configuration of the run.
        folder: Folder with the other recorded files.
        work: Empty folder for the replay.
        target: Folder that error messages name.

    Returns:
        Number of cassette entries.
    """
    cassette = folder / CASSETTE
    # A recorded folder has a cassette; this replay reads the answers of the run instead.
    cassette.touch()
    snapshot = open_snapshot(folder)
    recorded_config = snapshot.with_recorded_templates(snapshot.config())
    answers = CacheConfig(file=config.cache.file, mode=CacheMode.REPLAY)
    replay_config = recorded_config.model_copy(update={"cache": answers})

    replayed = await _replay_equal(replay_config, snapshot, work, target)
    return write_cassette(replayed, answers.file, work / "entries.sqlite", cassette)


def _measure_size(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def _write_documents(context: RunContext, directory: RunDirectory, folder: Path) -> set[str]:
    """Write the first stage and its documents; return the ids of the documents."""
    candidates = _read_first_stage(context, directory)
    candidates.write(RunDirectory(folder).first_stage_file(context.task), tag=context.config.tag)
    corpus = context.corpus
    await replace(candidates, corpus=corpus).check()

    document_ids: set[str] = set()
    for ranking in candidates.list_rankings():
        document_ids.update(candidate.document_id for candidate in ranking)
    with open_atomic(folder / corpus_file(context.task)) as stream:
        _write_corpus(document_ids, corpus, context.task, stream)
    return document_ids


def _write_corpus(document_ids: set[str], corpus: Corpus, task: Task, stream: IO[bytes]) -> None:
    """Write documents in the form of the task's corpus."""
    if isinstance(corpus, LocalCorpus) and get_kind(task).makes_documents:
        write_arguments(document_ids, corpus.store, stream)
        return

    documents = (corpus.documents.get(document_id) for document_id in sorted(document_ids))
    if task.reads_arguments:
        _write_table((_ArgumentRow(document, sentences=[]) for document in documents), stream)
        return
    for document in documents:
        line = _make_line(document, task.document_keys)
        stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def _make_line(document: Document, keys: DocumentKeys) -> dict[str, str]:
    """Return a document as a line of a corpus, with its whole text in the first text key."""
    line = {keys.id[0]: document.id}
    for names in keys.text:
        line[names[0]] = ""
    line[keys.text[0][0]] = document.text
    return line


def _read_first_stage(context: RunContext, directory: RunDirectory) -> Candidates:
    """Read the candidates of the run's topics; of sentences, only those that were judged."""
    candidates = directory.read_first_stage(context)
    if not get_kind(context.task).makes_documents:
        return candidates

    judged: set[tuple[str, str]] = set()
    for judgment in directory.read_sentences(context.task):
        judged.add((judgment.topic_id, judgment.document_id))

    rankings: dict[str, list[Candidate]] = {}
    for topic_id, ranking in candidates.rankings.items():
        kept = [item for item in ranking if (topic_id, item.document_id) in judged]
        rankings[topic_id] = kept
    return replace(candidates, rankings=rankings)


async def _replay_equal(
    config: Config, snapshot: Snapshot, work: Path, target: Path
) -> ReplayResult:
    """Replay a run that is being recorded; raise DataError if the replay gives another run."""
    replayed = await replay(config, snapshot.first_stage, work, target)

    result = compare_replay(snapshot, replayed)
    if not result.is_same:
        raise DataError(
            f"{target}: not recorded: with {config.cache.file} and the current program and templates, the replay gives "
            "another run; repeat the run, which sends only requests without an answer, then record it\n"
            + format_result(target.name, result)
        )
    return replayed
