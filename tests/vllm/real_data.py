"""The real topics and corpora beside the checkout, if available, or else the project's samples."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.vllm.server import ROOT
from touche_llm.cli.demo import SAMPLES
from touche_llm.corpus.args_me import read_arguments
from touche_llm.integrations.tira import detect_input
from touche_llm.tasks import get_task
from touche_llm.tasks.task import Task

REAL = ROOT.parent / "shared" / "data"


@dataclass(frozen=True)
class TaskInput:
    """The files of a task.

    Attributes:
        task: The task.
        topics: Its topics.
        corpus: Its documents.
        index: Folder for the index of the corpus.
        is_real: Whether these are the real topics and documents, and not the sample's.
    """

    task: Task
    topics: Path
    corpus: Path
    index: Path
    is_real: bool

    @property
    def options(self) -> list[object]:
        """The options that name the files, as most commands take them."""
        files = ["--topics", self.topics, "--corpus", self.corpus, "--index", self.index]
        return ["--task", self.task.name, *files]


def input_of(task: str, folder: Path) -> TaskInput:
    """Return the input of a task; what has to be made for it is written to `folder`."""
    source = (REAL if REAL.is_dir() else SAMPLES) / task
    if not source.is_dir():
        # Whole arguments are also in the table with their sentences.
        found = detect_input(source.parent / "sentence_pairs")
        assert found.corpus is not None
        return TaskInput(
            get_task(task), found.topics, found.corpus, folder / "index", REAL.is_dir()
        )
    if detect_input(source).corpus is None:
        arguments = detect_input(REAL / "sentence_pairs").corpus
        assert arguments is not None
        write_debates(arguments, source / "topics.xml", folder / "debates")
        source = folder / "debates"
    found = detect_input(source)
    assert found.corpus is not None
    return TaskInput(found.task, found.topics, found.corpus, folder / "index", REAL.is_dir())


def write_debates(arguments: Path, topics: Path, folder: Path) -> None:
    """A collection of long documents: each debate of args.me as one page, in the form of a web collection.

    ClueWeb22 cannot be had here; these are real texts for the same topics.
    """
    debates: dict[str, list[str]] = defaultdict(list)
    for _, argument in read_arguments(arguments):
        debates[argument.id.rsplit("-", 1)[0]] += [argument.title, argument.text]
    folder.mkdir(parents=True)
    (folder / "topics.xml").write_bytes(topics.read_bytes())
    with (folder / "documents.jsonl").open("w") as stream:
        for name, texts in debates.items():
            stream.write(json.dumps({"docno": name, "text": "\n\n".join(texts)}) + "\n")
