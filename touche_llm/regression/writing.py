"""Writers for the files of a recorded run; the same run gives the same bytes."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import orjson
from pydantic import BaseModel

from touche_llm.config import Config
from touche_llm.corpus.args_me import HEADER
from touche_llm.corpus.json_lines import DocumentKeys
from touche_llm.corpus.store import DocumentStore
from touche_llm.data.files import open_atomic
from touche_llm.data.json_records import JsonRecord
from touche_llm.data.records import Document
from touche_llm.data.yaml_text import to_yaml
from touche_llm.errors import DataError, shorten
from touche_llm.evaluation.qrels import STANCE, Qrels, qrels_file
from touche_llm.judging.pointwise import Documents
from touche_llm.llm.answers import OUTCOMES
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.engines.base import EngineInfo
from touche_llm.llm.pooling import Score
from touche_llm.llm.settings import EngineConfig
from touche_llm.llm.truncation import Truncation
from touche_llm.pipeline.config_file import load_config
from touche_llm.pipeline.engines import name_kind, store_engine_info
from touche_llm.pipeline.run_files import CONFIG
from touche_llm.prompts.prompt import Prompt, examples_path
from touche_llm.regression.replay import ReplayResult
from touche_llm.regression.snapshot import CASSETTE, DECISIVE, TOPICS, corpus_file
from touche_llm.tasks import get_task

# Types of the entries that a cassette gets, by kind.
_COPIED: Mapping[str, type[JsonRecord]] = {
    **OUTCOMES,
    "fit": Truncation,
    "score": Score,
    name_kind("score"): EngineInfo,
}


def copy_template(prompt: Prompt, folder: Path) -> None:
    """Copy a template with the files that it includes and its examples."""
    names = [prompt.path.name, *prompt.files.texts]
    if (examples := examples_path(prompt.path)).exists():
        names.append(examples.name)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(prompt.path.parent / name, folder / name)


def write_config(config: Config, target: Path, folder: Path, note: str = "") -> None:
    """Write the settings that differ from the defaults, so that a replay reveals a changed default.

    A note on the recorded documents is the first line, as a comment.

    Names of people, URLs and paths of this machine are omitted; paths of templates are relative to the target folder.
    """
    task = get_task(config.task)
    places = {"topics": TOPICS, "corpus": corpus_file(task)}
    defaults = load_config(None, {"task": config.task, "objective": config.objective, **places})
    known = {"model": config.engine.model_name, "revision": config.engine.revision, "context": config.engine.context}
    cross_encoder = config.ranking.cross_encoder.model_copy(update={"url": None})
    ranking = config.ranking.model_copy(update={"cross_encoder": cross_encoder})
    config = config.model_copy(update={"engine": EngineConfig.model_validate(known), "ranking": ranking})
    values = {
        "task": task.name if task.is_own else os.path.relpath(task.folder, target),
        **places,
        **_select_non_defaults(config, defaults, (*DECISIVE, "expansion")),
    }
    prompts = {
        name: os.path.relpath(value, target) if name == "folder" or value.endswith(".jinja") else value
        for name, value in config.prompts.model_dump(mode="json").items()
        if value is not None and value != type(config.prompts).model_fields[name].default
    }
    if prompts:
        values["prompts"] = prompts
    values["cache"] = {"file": CASSETTE, "mode": CacheMode.REPLAY.value}
    with open_atomic(folder / CONFIG) as stream:
        if note:
            stream.write(f"# {corpus_file(task)} {note}.\n".encode())
        stream.write(to_yaml(values))


def _select_non_defaults(values: BaseModel, defaults: BaseModel, names: Iterable[str]) -> dict[str, Any]:
    """Return the values that differ from the defaults, section by section."""
    dumped = values.model_dump(mode="json")
    found: dict[str, Any] = {}
    for name in names:
        value, default = getattr(values, name), getattr(defaults, name)
        if isinstance(value, BaseModel) and isinstance(default, BaseModel):
            if section := _select_non_defaults(value, default, type(value).model_fields):
                found[name] = section
        elif value != default:
            found[name] = dumped[name]
    return found


def write_documents(ids: list[str], documents: Documents, keys: DocumentKeys, stream: IO[bytes]) -> None:
    """Write documents with their complete texts, in lines that a reader of these keys understands."""
    for document_id in ids:
        line = {keys.id[0]: document_id, **dict.fromkeys(keys.text[1:] if keys.is_joined else (), "")}
        line[keys.text[0]] = documents.get(document_id).text
        stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def write_arguments(sentences: set[str], store: DocumentStore, stream: IO[bytes]) -> None:
    """Write the arguments of some sentences, with only these sentences, in corpus order."""
    places: dict[int, list[tuple[int, str]]] = {}
    for sentence in sentences:
        argument, place = store.parts.locate(sentence)
        places.setdefault(argument, []).append((place, sentence))
    rows = sorted(places)
    arguments = [
        (
            replace(store.get(argument_id), text=""),
            [{"sent_id": name, "sent_text": store.parts.get(name).text} for _, name in sorted(places[row])],
        )
        for row, argument_id in zip(rows, store.get_ids(rows), strict=True)
    ]
    _write_table(arguments, stream)


def write_whole_arguments(ids: list[str], documents: Documents, stream: IO[bytes]) -> None:
    """Write arguments without their sentences."""
    _write_table(((documents.get(document_id), []) for document_id in ids), stream)


def _write_table(arguments: Iterable[tuple[Document, list[dict[str, str]]]], stream: IO[bytes]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for argument, sentences in arguments:
        premises = [{"text": argument.text, "stance": argument.side, "annotations": list[str]()}]
        writer.writerow([argument.id, argument.title, repr(premises), "", repr(sentences)])
    # The caller closes the stream.
    text.detach()


def write_qrels(qrels: Qrels, topics: list[str], folder: Path) -> None:
    """Write the judgments of these topics, one file per aspect; raise DataError if an aspect has none."""
    judged: dict[str, Mapping[str, Mapping[str, float | str]]] = {**qrels.grades}
    if qrels.stances:
        judged[STANCE] = qrels.stances
    for aspect, of_aspect in judged.items():
        if not of_aspect.keys() & set(topics):
            raise DataError(
                f"the {aspect} qrels judge none of the run's topics: {shorten(topics)}; give those of these topics"
            )
        with open_atomic(folder / qrels_file(aspect)) as stream:
            for topic in topics:
                for document, value in of_aspect.get(topic, {}).items():
                    text = value if isinstance(value, str) else f"{value:g}"
                    stream.write(f"{topic} 0 {document} {text}\n".encode())


def write_cassette(replayed: ReplayResult, source: Path, work: Path, cassette: Path) -> int:
    """Write the entries that a replay read and the facts about its engine; return their number."""
    with Cache(source, CacheMode.REPLAY) as cache, Cache(work) as chosen:
        store_engine_info(replayed.facts, chosen)
        for kind, model in _COPIED.items():
            for key in replayed.used_keys:
                for entry in cache.find(kind, key=key):
                    chosen.put(entry, model)
        return chosen.export_cassette(cassette)
