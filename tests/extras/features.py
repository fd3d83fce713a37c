"""The feature of each extra, used in an environment that has this extra alone: python -m tests.extras.features EXTRA.

Nothing here needs pytest, and the package is the installed one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import touche_llm as tl
from touche_llm.cli.demo import SAMPLES

SAMPLE = SAMPLES / "comparative"


def touche(*arguments: object) -> str:
    """Call the installed program; return what it prints."""
    program = Path(sys.executable).with_name("touche-llm")
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def alone() -> None:
    """The program without extras: the demo runs, and a page of it is written."""
    touche("demo", "--out", "alone", "--task", "comparative")
    touche("report", "alone/comparative")
    page = Path("alone/comparative/report.html").read_text()
    assert page.count("<svg") >= 3, page.count("<svg")


def chatnoir() -> None:
    from tests.fake_chatnoir import KEY, FakeChatNoir, fetch, results, search

    os.environ["CHATNOIR_API_KEY"] = KEY
    hits = asyncio.run(search(FakeChatNoir(results(20)), Path()))
    assert len(hits) == 10
    text = asyncio.run(fetch(FakeChatNoir(results(1)), Path()))
    assert "Text of" in str(text)


def elasticsearch() -> None:
    from tests.fake_elasticsearch import FakeElasticsearch

    corpus, topics = SAMPLE / "passages.jsonl", SAMPLE / "topics.xml"
    with FakeElasticsearch().running() as server:
        there = (
            "--task",
            "comparative",
            "--retriever",
            "elasticsearch",
            "--elasticsearch",
            server.url,
        )
        touche("index", *there, "--corpus", corpus)
        touche("retrieve", *there, "--topics", topics, "--out", "found", "--depth", 5)
    assert len(Path("found/candidates.run.txt").read_text().splitlines()) == 20


def pyterrier() -> None:
    import pandas as pd

    transformers: Any = import_module("touche_llm.integrations.pyterrier")
    topics = pd.DataFrame(
        {"qid": ["20"], "query": ["Which is better in the morning, tea or coffee?"]}
    )
    with tl.open_corpus(SAMPLE / "passages.jsonl", task="comparative", index="pt-index") as corpus:
        found = transformers.BM25(corpus, depth=5)(topics)
    assert list(found["rank"]) == [0, 1, 2, 3, 4]


def search_dataset(dataset: str, write: str, task: str) -> list[str]:
    """Return the lines of a first stage over files where ir_datasets looks for them before it downloads any."""
    from tests import ir_datasets_home

    home = Path("datasets").absolute()
    getattr(ir_datasets_home, write)(home)
    os.environ["IR_DATASETS_HOME"] = str(home)
    touche(
        "retrieve",
        "--task",
        task,
        "--dataset",
        dataset,
        "--out",
        "found",
        "--depth",
        3,
        "--overwrite",
    )
    return Path("found/candidates.run.txt").read_text().splitlines()


def ir_datasets() -> None:
    assert (
        len(search_dataset("clueweb12/touche-2022-task-2", "write_passages", "comparative")) == 12
    )
    # Arguments of args.me come from JSON, which needs another library.
    assert search_dataset(
        "argsme/2020-04-01/touche-2020-task-1", "write_arguments", "arguments_2020"
    )


def warc() -> None:
    assert search_dataset("clueweb12/touche-2020-task-2", "write_pages", "comparative_2020")


def imports(*names: str) -> Callable[[], None]:
    """Return a check that modules can be imported."""

    def check() -> None:
        for name in names:
            import_module(name)

    return check


FEATURES: Mapping[str, Callable[[], None]] = {
    "": alone,
    "chatnoir": chatnoir,
    "elasticsearch": elasticsearch,
    "pyterrier": pyterrier,
    "ir-datasets": ir_datasets,
    "warc": warc,
    # For work on the project; the targets of the Makefile use them.
    "dev": imports("hypothesis", "mypy", "playwright", "pytest", "tira"),
    "docs": imports("furo", "myst_parser", "sphinx", "sphinx_copybutton"),
    "packaging": imports("build", "check_wheel_contents", "twine"),
}
# Gigabytes of CUDA: `make test-vllm` installs a build for the CPU instead.
APART = {"vllm", "ray"}


def main() -> None:
    """Check the version, the demo, and the feature of the extra."""
    extra = sys.argv[1]
    os.environ.pop("PYTHONPATH", None)
    assert str(SAMPLES).startswith(sys.prefix), f"{SAMPLES} is not in {sys.prefix}"
    assert touche("--version") == f"touche-llm {tl.__version__}\n"
    assert "nDCG@5" in touche("demo", "--out", "demo")
    FEATURES[extra]()
    print(
        f"touche-llm[{extra}]: installed alone, demo and feature work"
        if extra
        else "touche-llm: without extras"
    )


if __name__ == "__main__":
    main()
