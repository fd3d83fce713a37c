"""What lies in an input folder of TIRA, and which task it is for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from touche_llm.data.topics import read_topics
from touche_llm.errors import UsageError
from touche_llm.tasks import TASKS
from touche_llm.tasks.base import Task

_TOPICS = ("topics.xml", "queries.jsonl", "queries.xml")
# A first stage with its documents; and collections that any task over documents can have.
_RERANK = ("rerank.jsonl.gz", "rerank.jsonl")
_COLLECTIONS = ("documents.jsonl.gz", "documents.jsonl", "corpus.jsonl.gz", "corpus.jsonl")


@dataclass(frozen=True, slots=True)
class Input:
    """The files of an input folder.

    `corpus` is None where there is none; `candidates` is the first stage where one is given, the corpus itself then.
    """

    task: Task
    topics: Path
    corpus: Path | None
    candidates: Path | None


def recognise(folder: Path) -> Input:
    """Which task the files of a folder are for.

    A corpus under the name that a task's organisers gave it tells the task; of one that is there packed and unpacked,
    the unpacked one is taken. With any other collection of documents, and with none, topics that name two objects
    belong to the task that compares them. A `rerank.jsonl` holds the first stage and its documents, and is taken
    instead of a corpus.

    Raises:
        UsageError: no such folder, no topics, corpora of two tasks, or a first stage of another kind.
        DataError: the topics cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    topics = _first(folder, _TOPICS)
    if topics is None:
        raise UsageError(f"{folder}: no topics ({', '.join(_TOPICS)}); {_there(folder)}")
    named = [
        (task, folder / name) for task in TASKS.values() for name in task.corpus_files if (folder / name).is_file()
    ]
    if len({task.name for task, _ in named}) > 1:
        raise UsageError(f"{folder}: corpora of several tasks: {', '.join(path.name for _, path in named)}")
    rerank = _first(folder, _RERANK)
    if named:
        task, corpus = named[0]
        if rerank is not None and task.sentence_question is not None:
            raise UsageError(f"{folder}: {rerank.name} ranks documents, and {corpus.name} is for ranking sentences")
        return Input(task, topics, rerank or corpus, rerank)
    compared = any(topic.objects is not None for topic in read_topics(topics))
    task = next(
        task
        for task in TASKS.values()
        if task.sentence_question is None and (task.objects_answer is not None) is compared
    )
    return Input(task, topics, rerank or _first(folder, _COLLECTIONS), rerank)


def corpus_names() -> list[str]:
    """The names under which a corpus is looked for."""
    return [*(name for task in TASKS.values() for name in task.corpus_files), *_COLLECTIONS, *_RERANK]


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _there(folder: Path) -> str:
    found = sorted(path.name for path in folder.iterdir())
    return f"there are {', '.join(found[:20])}" if found else "it is empty"
