"""The real topics and corpora beside the checkout, where they are at hand, or the project's samples."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from tests.vllm.server import ROOT
from touche_llm.cli.demo import SAMPLES
from touche_llm.corpus.args_me import read_arguments
from touche_llm.tira import Input, recognise

REAL = ROOT.parent / "shared" / "data"


def input_of(task: str, folder: Path) -> tuple[Input, bool]:
    """The input of a task, and whether it is the real one; what has to be made is written to `folder`."""
    if not REAL.is_dir():
        return recognise(SAMPLES / task), False
    if recognise(REAL / task).corpus is None:
        arguments = recognise(REAL / "sentence_pairs").corpus
        assert arguments is not None
        write_debates(arguments, REAL / task / "topics.xml", folder / "debates")
        return recognise(folder / "debates"), True
    return recognise(REAL / task), True


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
