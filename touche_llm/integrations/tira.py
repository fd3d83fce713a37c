"""Detection of the task and the files of a TIRA input folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from touche_llm.data.topics import read_topics
from touche_llm.errors import UsageError
from touche_llm.tasks import TASKS
from touche_llm.tasks.definition import TiraTopics
from touche_llm.tasks.task import Task

_TOPICS = ("topics.xml", "queries.jsonl", "queries.xml")
# A first stage with its documents, and collections of any task that ranks documents.
_RERANK = ("rerank.jsonl.gz", "rerank.jsonl")
_COLLECTIONS = ("documents.jsonl.gz", "documents.jsonl", "corpus.jsonl.gz", "corpus.jsonl")


@dataclass(frozen=True, slots=True)
class TiraInput:
    """The files of an input folder.

    Attributes:
        task: The detected task.
        topics: File of topics.
        corpus: File of documents, or None.
        candidates: First stage with its documents, which is then also `corpus`; or None.
    """

    task: Task
    topics: Path
    corpus: Path | None
    candidates: Path | None


def detect_input(folder: Path) -> TiraInput:
    """Detect the task of an input folder from its files.

    The file name of an official corpus identifies the task; an uncompressed corpus is preferred to a compressed one.
    Otherwise it is the task whose `corpus.tira` fits the topics, which name objects or none. A `rerank.jsonl` holds the
    first stage and its documents and is preferred to a corpus.

    Raises:
        UsageError: The folder or its topics are missing, the corpora are of two tasks, or the first stage ranks
            documents while the corpus is for sentences.
        DataError: The topics cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    topics = _first(folder, _TOPICS)
    if topics is None:
        names = sorted(path.name for path in folder.iterdir())
        files = f"the folder has {', '.join(names[:20])}" if names else "the folder is empty"
        raise UsageError(f"{folder}: no topics ({', '.join(_TOPICS)}); {files}")
    named = [
        (task, folder / name) for task in TASKS.values() for name in task.corpus.files if (folder / name).is_file()
    ]
    if len({task.name for task, _ in named}) > 1:
        raise UsageError(f"{folder}: corpora of several tasks: {', '.join(path.name for _, path in named)}")
    rerank = _first(folder, _RERANK)
    if named:
        task, corpus = named[0]
        if rerank is not None and task.sentence_question is not None:
            raise UsageError(f"{folder}: {rerank.name} ranks documents, and {corpus.name} is for ranking sentences")
        return TiraInput(task, topics, rerank or corpus, rerank)
    has_objects = any(topic.objects is not None for topic in read_topics(topics))
    kind: TiraTopics = "objects" if has_objects else "no_objects"
    task = next(task for task in TASKS.values() if task.corpus.tira == kind)
    return TiraInput(task, topics, rerank or _first(folder, _COLLECTIONS), rerank)


def list_corpus_names() -> list[str]:
    """Return the file names under which a corpus is found."""
    return [*(name for task in TASKS.values() for name in task.corpus.files), *_COLLECTIONS, *_RERANK]


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)
