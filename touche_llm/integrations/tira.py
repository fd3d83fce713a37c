"""Detection of the task and the files of a TIRA input folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from touche_llm.data.topics.reading import read_topics
from touche_llm.errors import UsageError
from touche_llm.tasks import TASKS
from touche_llm.tasks.task import Task

_TOPICS = ("topics.xml", "queries.jsonl", "queries.xml")
# A first stage with its documents, and collections of any task that ranks documents.
_RERANK = ("rerank.jsonl.gz", "rerank.jsonl")
_COLLECTIONS = ("documents.jsonl.gz", "documents.jsonl", "corpus.jsonl.gz", "corpus.jsonl")


class TiraInput(NamedTuple):
    """The task and the files of an input folder.

    `candidates` is a first stage, then also the corpus.
    """

    task: Task
    topics: Path
    corpus: Path | None
    candidates: Path | None


def detect_input(folder: Path) -> TiraInput:
    """Detect the task of an input folder from its files.

    The file name of an official corpus identifies the task; an uncompressed corpus is preferred to
    a compressed one. Otherwise it is the task whose `corpus.tira` fits the topics, which name
    objects or none. A `rerank.jsonl` holds the first stage and its documents and is preferred to a
    corpus.

    Raises:
        UsageError: The folder has no topics.
        DataError: The topics cannot be read.
    """
    topics = _first(folder, _TOPICS)
    if topics is None:
        raise UsageError(f"{folder}: no such folder, or no topics in it ({', '.join(_TOPICS)})")

    rerank = _first(folder, _RERANK)
    for task in TASKS.values():
        corpus = _first(folder, task.corpus.files)
        if corpus is not None:
            return TiraInput(task, topics, rerank or corpus, rerank)

    collection = _first(folder, _COLLECTIONS)
    return TiraInput(_find_task(topics), topics, rerank or collection, rerank)


def _find_task(topics: Path) -> Task:
    """Return the task for topics that name objects to compare, or for topics that do not."""
    has_objects = any(topic.objects is not None for topic in read_topics(topics))
    kind = "objects" if has_objects else "no_objects"
    return next(task for task in TASKS.values() if task.corpus.tira == kind)


def _first(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)
