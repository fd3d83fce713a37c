from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.expect import raises_at
from touche_llm.corpus.json_lines import CorpusFile, read_passages
from touche_llm.corpus.store import DocumentStore, ensure_store
from touche_llm.errors import DataError
from touche_llm.retrieval import bm25
from touche_llm.retrieval.bm25 import get_index_folder, open_index
from touche_llm.retrieval.settings import Bm25Settings
from touche_llm.text.analysis import Analyzer

TEXTS = [f"common word{n % 7} word{n % 7} of the rare{n}" for n in range(200)] + [
    "the of",
    "common",
]


def store_of(folder: Path, texts: list[str]) -> DocumentStore:
    folder.mkdir(exist_ok=True)
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        "".join(
            json.dumps({"id": f"d{n}", "contents": text}) + "\n" for n, text in enumerate(texts)
        )
    )
    return ensure_store(CorpusFile(corpus, read_passages), folder / "index", warn=lambda _: None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    with store_of(tmp_path, TEXTS) as opened:
        yield opened


@pytest.fixture
def small_blocks(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25, "BLOCK_BYTES", store.database_bytes // 5)


def index_files(store: DocumentStore) -> dict[str, bytes]:
    open_index(store, Bm25Settings(), lambda _: None)
    return {path.name: path.read_bytes() for path in get_index_folder(store).iterdir()}


@pytest.mark.usefixtures("small_blocks")
def test_the_index_is_the_same_to_the_byte_in_several_processes(
    store: DocumentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "count_cores", lambda: 2)
    in_parts = index_files(store)
    monkeypatch.setattr(bm25, "BLOCK_BYTES", 2**40)
    with store_of(tmp_path / "whole", TEXTS) as whole:
        assert index_files(whole) == in_parts


word = st.sampled_from([f"w{n}" for n in range(12)] + ["the"])


@settings(deadline=None, max_examples=20)
@given(
    texts=st.lists(st.lists(word, min_size=1, max_size=15).map(" ".join), min_size=1, max_size=20),
    method=st.sampled_from(get_args(Bm25Settings.model_fields["method"].annotation)),
    k1=st.floats(0.1, 3.0),
    b=st.floats(0.0, 1.0),
)
def test_scores_are_those_that_bm25s_computes(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], method: Any, k1: float, b: float
) -> None:
    analysed = [Analyzer().analyze(text) for text in texts]
    vocabulary = {
        term: number
        for number, term in enumerate(sorted({term for each in analysed for term in each}))
    }
    rows = [[vocabulary[term] for term in each] for each in analysed]
    with store_of(tmp_path_factory.mktemp("generated"), texts) as store:
        if not vocabulary:
            with pytest.raises(DataError):
                open_index(store, Bm25Settings(), lambda _: None)
            return
        ours = open_index(store, Bm25Settings(method=method, k1=k1, b=b), lambda _: None)._index
    theirs = bm25s.BM25(method=method, k1=k1, b=b)
    theirs.index((rows, vocabulary), show_progress=False)
    assert {term: number for term, number in theirs.vocab_dict.items() if term} == ours.vocab_dict
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(ours.scores[name], theirs.scores[name])
        assert ours.scores[name].dtype == theirs.scores[name].dtype


def test_a_term_in_more_than_half_of_the_documents_is_passed_over(store: DocumentStore) -> None:
    index = open_index(store, Bm25Settings(), lambda _: None)
    assert not index.score("common").any()
    assert np.array_equal(index.score("common rare7"), index.score("rare7"))


def ends_at_once(*_: Any) -> None:
    os._exit(9)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_a_process_that_is_killed_is_an_error_and_no_index(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "_tokenize", ends_at_once)
    with raises_at(DataError, store.folder, "__main__"):
        open_index(store, Bm25Settings(), lambda _: None)
    with raises_at(DataError, store.folder / "bm25-documents"):
        open_index(store, Bm25Settings())


# Slow enough to be interrupted, and it says when the first block has come.
INDEXING = """
import sys, time
from touche_llm.__main__ import main
from touche_llm.retrieval import bm25

blocks = bm25._tokenize_in_processes

def slowly(*arguments):
    for block in blocks(*arguments):
        print("block", flush=True)
        time.sleep(0.2)
        yield block

bm25.BLOCK_BYTES = 4096
bm25._tokenize_in_processes = slowly
sys.argv = ["touche-llm", "index", "--corpus", sys.argv[1], "--index", sys.argv[2], "--k1", "0.9"]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_indexing_leaves_the_old_index_and_no_process(
    store: DocumentStore, ending: int
) -> None:
    before = index_files(store)
    arguments = [sys.executable, "-c", INDEXING, store.manifest.corpus, str(store.folder)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"block\n"
        # Ctrl-C reaches all processes of the terminal, a kill the one that is named.
        (os.killpg if ending == signal.SIGINT else os.kill)(process.pid, ending)
        code = process.wait(timeout=30)
        # Other processes may still write there.
        said = process.stderr.read()
    assert code == (130 if ending == signal.SIGINT else -ending)
    assert said.count(b"\n") == (2 if ending == signal.SIGINT else 1), said
    deadline = time.monotonic() + 30
    while group_lives(process.pid):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.05)
    assert index_files(store) == before


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
