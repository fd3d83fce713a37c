"""BM25 indexes: that of rank-bm25 in memory, and one on disk with bm25s, built on all cores."""

from __future__ import annotations

import math
import os
import signal
import sys
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context, parent_process, resource_tracker
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import DocumentStore, TextTable, report_damage
from touche_llm.data.files import read_record, replace_folder, write_records
from touche_llm.data.records import Model
from touche_llm.errors import DataError, Warn
from touche_llm.retrieval.corpus import FirstStage
from touche_llm.retrieval.registry import Retriever, StageInputs, register
from touche_llm.retrieval.settings import Bm25Settings
from touche_llm.text.analysis import ANALYSIS, Analyzer, make_stemmer, tokenize


class OkapiIndex(FirstStage):
    """`rank_bm25.BM25Okapi` index of documents or of their parts.

    Terms in more than half of the documents get the idf floor of that class, a quarter of the mean
    idf.
    """

    def __init__(self, table: TextTable, *, k1: float, b: float) -> None:
        """Index all texts; raises DataError if they contain no word."""
        from rank_bm25 import BM25Okapi

        super().__init__(table)
        self._analyzer = Analyzer()
        terms = [self._analyzer.analyze(text) for text in table.read_texts()]
        if not any(terms):
            raise DataError(f"{table.manifest.corpus}: no word to index")
        self._index = BM25Okapi(terms, k1=k1, b=b)

    def score(self, query: str) -> NDArray[np.float64]:
        """Score all rows; see FirstStage."""
        return np.asarray(self._index.get_scores(self._analyzer.analyze(query)), dtype=np.float64)


FORMAT = 1
# Patterns of the files of an index; a folder with other files is never replaced.
_FILES = ("manifest.json", "*.index.json", "*.index.npy")


class Bm25Manifest(Model):
    """Source and settings of a BM25 index."""

    format: int
    settings: Bm25Settings
    analysis: str
    bm25s: str
    corpus_sha256: str
    documents: int


class Bm25Index(FirstStage):
    """Memory-mapped BM25 index of documents or of their parts."""

    def __init__(self, table: TextTable, index: Any) -> None:
        """Use `open_index` instead."""
        super().__init__(table)
        self._index = index
        self._analyzer = Analyzer()

    def score(self, query: str) -> NDArray[np.float32]:
        """Score all rows; see FirstStage."""
        ends, data = self._index.scores["indptr"], self._index.scores["data"]
        terms = self._index.get_tokens_ids(self._analyzer.analyze(query))
        # With `robertson`, terms in more than half of the documents score 0, and they have the
        # longest postings.
        terms = [term for term in terms if data[ends[term]] > 0]
        if not terms:
            return np.zeros(len(self.table), dtype=np.float32)
        scores: NDArray[np.float32] = self._index.get_scores_from_ids(terms)
        return scores


def get_index_folder(table: TextTable) -> Path:
    """Return the folder of the BM25 index of documents or parts."""
    return table.folder / f"bm25-{table.name}"


def open_index(table: TextTable, settings: Bm25Settings, warn: Warn | None = None) -> Bm25Index:
    """Open the BM25 index of documents or parts.

    With `warn` it is built first, with a notice, if it is missing, stale or has other settings;
    after an interruption the old index remains.

    Raises:
        DataError: The index is missing, stale or has other settings, and `warn` is None.
    """
    import bm25s

    folder = get_index_folder(table)
    stale = "no BM25 index"
    if (folder / "manifest.json").exists():
        stale = _why_stale(
            read_record(folder / "manifest.json", Bm25Manifest, "an index manifest"),
            settings,
            table,
        )
    if stale and warn is None:
        raise DataError(
            f"{folder}: {stale}; run `touche-llm index` with these settings, or use those of the index"
        )
    if stale and warn is not None:
        warn(f"{folder}: {stale}; indexing {len(table):,} {table.noun}")
        _build(table, settings, folder)
    with report_damage(folder, "BM25 index"):
        index = bm25s.BM25.load(folder, mmap=True)
        # Slicing a numpy.memmap takes ten times as long as slicing an array over the same memory.
        index.scores |= {
            name: np.asarray(index.scores[name]) for name in ("data", "indices", "indptr")
        }
        return Bm25Index(table, index)


def _why_stale(manifest: Bm25Manifest, settings: Bm25Settings, table: TextTable) -> str:
    wanted = _make_manifest(table, settings)
    if manifest.corpus_sha256 != wanted.corpus_sha256:
        return "the corpus changed since it was indexed"
    old, new = (
        {**each.model_dump(exclude={"settings"}), **each.settings.model_dump()}
        for each in (manifest, wanted)
    )
    differing = [f"{name} {old[name]}, not {new[name]}" for name in new if old[name] != new[name]]
    return f"the index has {'; '.join(differing)}" if differing else ""


def _make_manifest(table: TextTable, settings: Bm25Settings) -> Bm25Manifest:
    import bm25s

    return Bm25Manifest(
        format=FORMAT,
        settings=settings,
        analysis=ANALYSIS,
        bm25s=bm25s.__version__,
        corpus_sha256=table.manifest.sha256,
        documents=len(table),
    )


def _build(table: TextTable, settings: Bm25Settings, folder: Path) -> None:
    import bm25s

    vocabulary, blocks = read_postings(table)
    if not vocabulary:
        raise DataError(f"{table.manifest.corpus}: no word to index")
    index = bm25s.BM25(method=settings.method, k1=settings.k1, b=settings.b)
    index.vocab_dict = vocabulary
    index.nonoccurrence_array = None
    index.scores = {**_compute_scores(blocks, len(vocabulary), settings), "num_docs": len(table)}
    with replace_folder(folder, _FILES) as building:
        index.save(building, show_progress=False)
        write_records(building / "manifest.json", [_make_manifest(table, settings)])


def _compute_scores(
    blocks: list[Block], terms: int, settings: Bm25Settings
) -> dict[str, NDArray[Any]]:
    """Compute the sparse score matrix, a column per term, with the same bits as `bm25s.BM25.index`.

    bm25s needs the postings as Python lists, 5 GB for a million passages.
    """
    frequency = np.zeros(terms, dtype=np.int64)
    for block in blocks:
        frequency[block.terms] += block.rows_of_term
    lengths = np.concatenate([block.lengths for block in blocks])
    # Length normalisation: the part of the denominator that all terms of a row share.
    norm = settings.k1 * ((1 - settings.b) + settings.b * lengths / lengths.mean())
    idf = _compute_idf(frequency, len(lengths), settings.method)
    ends = np.concatenate([[0], np.cumsum(frequency)])
    indices = np.empty(ends[-1], dtype=np.int32)
    data = np.empty(ends[-1], dtype=np.float32)
    filled = ends[:-1].copy()
    for block in blocks:
        size = block.rows_of_term
        before = np.cumsum(size) - size
        places = np.repeat(filled[block.terms] - before, size) + np.arange(len(block.rows))
        often = block.frequencies.astype(np.float32)
        weight = (often * (settings.k1 + 1) if settings.method == "atire" else often) / (
            norm[block.rows] + often
        )
        indices[places] = block.rows
        data[places] = np.repeat(idf[block.terms], size) * weight
        filled[block.terms] += size
    return {"data": data, "indices": indices, "indptr": ends}


def _compute_idf(frequency: NDArray[np.int64], rows: int, method: str) -> NDArray[np.float32]:
    """Return the idf by Kamphuis et al., Which BM25 do you mean?, ECIR 2020.

    Robertson's is floored at 0.
    """
    if method == "atire":
        odds = rows / frequency
    else:
        odds = (rows - frequency + 0.5) / (frequency + 0.5)
        odds = np.maximum(odds, 1.0) if method == "robertson" else 1 + odds
    # numpy's logarithm can differ from that of bm25s in the last bit.
    return np.fromiter(map(math.log, odds.tolist()), dtype=np.float32, count=len(odds))


# Bytes of the database per block: some 30,000 passages, which take a few seconds and 200 MB to
# tokenize.
BLOCK_BYTES = 32 * 2**20
# With more processes, the one that collects the blocks is the bottleneck.
MAX_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Block:
    """Postings of consecutive rows.

    Attributes:
        terms: Numbers of the terms in the block, of shape (terms,).
        rows_of_term: Number of rows with each term, of shape (terms,).
        rows: Rows of the first term, then of the second and so on, ascending for each term, of
            shape (postings,). Row 0 is the first of the corpus.
        frequencies: Frequency of the term in each of these rows, of shape (postings,).
        lengths: Number of terms of each row of the block, with repetitions, of shape (rows,).
    """

    terms: NDArray[np.int64]
    rows_of_term: NDArray[np.int64]
    rows: NDArray[np.int32]
    frequencies: NDArray[np.unsignedinteger[Any]]
    lengths: NDArray[np.int32]


def read_postings(table: TextTable) -> tuple[dict[str, int], list[Block]]:
    """Return the vocabulary (numbers of terms, from 0) and the postings of all rows, in blocks in row order.

    Terms are numbered alphabetically, so the result does not depend on the number of cores. A
    corpus of one block is tokenized in this process, others in one process per core.

    Raises:
        DataError: A process was killed.
    """
    if not len(table):
        return {}, []
    size = max(1, BLOCK_BYTES * len(table) // table.database_bytes)
    starts = range(0, len(table), size)
    count = min(len(starts), count_cores(), MAX_PROCESSES)
    if len(starts) > 1:
        found = _tokenize_in_processes(table, starts, count)
    else:
        found = iter([_tokenize_rows(table, make_stemmer(), 0, size)])
    # Numbers of terms in order of arrival.
    arrival: dict[str, int] = {}
    blocks = []
    for terms, block in found:
        numbers = np.fromiter(
            (arrival.setdefault(term, len(arrival)) for term in terms), np.int64, len(terms)
        )
        blocks.append(replace(block, terms=numbers))
    ordered = sorted(arrival)
    final = np.empty(len(ordered), dtype=np.int64)
    final[[arrival[term] for term in ordered]] = np.arange(len(ordered))
    return (
        {term: number for number, term in enumerate(ordered)},
        [replace(block, terms=final[block.terms]) for block in blocks],
    )


def count_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Terms of a block in the order of its numbers for them, and the block.
_NamedBlock = tuple[list[str], Block]


def _tokenize_in_processes(table: TextTable, starts: range, count: int) -> Iterator[_NamedBlock]:
    _start_resource_tracker()
    executor = ProcessPoolExecutor(count, get_context("spawn"))
    # A terminal sends Ctrl-C to all processes; those started here never receive it, and end with
    # this one.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        found = executor.map(partial(_tokenize, table.folder, table.name, starts.step), starts)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield from found
    except BrokenProcessPool:
        raise DataError(
            f"{table.folder}: a tokenizing process died: too little memory, or called from a script without "
            '`if __name__ == "__main__":`; see the output above, and try again'
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


def _start_resource_tracker() -> None:
    """Start the process that removes the semaphores of this one after its end.

    Otherwise the first start of a process does this and unblocks Ctrl-C.
    """
    # It takes over the filters of warnings, and warns of the semaphores that an interrupt left.
    sys.warnoptions.append("ignore:resource_tracker")
    resource_tracker.ensure_running()
    sys.warnoptions.pop()


def _tokenize(folder: Path, name: str, size: int, start: int) -> _NamedBlock:
    return _tokenize_rows(*_open_table(folder, name), start, start + size)


@cache
def _open_table(folder: Path, name: str) -> tuple[TextTable, Callable[[str], str | None]]:
    """Return the table and the stemmer of this process, which ends if its parent is killed."""
    Thread(target=_exit_with_parent, daemon=True).start()
    store = DocumentStore(folder)
    return store if name == store.name else store.parts, cache(make_stemmer())


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize_rows(
    table: TextTable, stem: Callable[[str], str | None], start: int, stop: int
) -> _NamedBlock:
    # From 0 in order of first occurrence; a stop word has the number -1.
    numbers: dict[str, int] = {}

    @cache
    def get_number(word: str) -> int:
        term = stem(word)
        return -1 if term is None else numbers.setdefault(term, len(numbers))

    words, sizes = array("i"), []
    for text in table.read_texts(start, stop):
        before = len(words)
        words.extend(map(get_number, tokenize(text)))
        sizes.append(len(words) - before)
    count = len(sizes)
    of_word = np.frombuffer(words, dtype=np.int32)
    row_of_word = np.repeat(np.arange(count), sizes)[of_word >= 0]
    keys, frequencies = np.unique(
        of_word[of_word >= 0].astype(np.int64) * count + row_of_word, return_counts=True
    )
    terms, rows = np.divmod(keys, count)
    block = Block(
        np.arange(len(numbers)),
        np.bincount(terms, minlength=len(numbers)),
        (rows + start).astype(np.int32),
        frequencies.astype(np.min_scalar_type(int(frequencies.max(initial=0)))),
        np.bincount(row_of_word, minlength=count).astype(np.int32),
    )
    return list(numbers), block


def open_stage(inputs: StageInputs) -> Bm25Index:
    """Open the index on disk; build it first if it is missing and may be built."""
    return open_index(inputs.table, inputs.bm25, inputs.warn)


def _open_okapi(inputs: StageInputs) -> OkapiIndex:
    return OkapiIndex(inputs.table, k1=inputs.bm25.k1, b=inputs.bm25.b)


register(
    Retriever(
        name="bm25",
        help="index on disk",
        method="bm25s.BM25",
        open_stage=open_stage,
        has_index=True,
        order=10,
    )
)
register(
    Retriever(
        name="okapi",
        help="rank-bm25",
        method="rank_bm25.BM25Okapi",
        open_stage=_open_okapi,
        order=20,
    )
)
