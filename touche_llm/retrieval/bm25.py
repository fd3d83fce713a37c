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
from contextlib import contextmanager
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
        starts = self._index.scores["indptr"]
        scores_of_terms = self._index.scores["data"]
        terms = self._index.get_tokens_ids(self._analyzer.analyze(query))
        # With `robertson`, terms in more than half of the documents score 0, and they have the
        # longest postings.
        scoring_terms = [term for term in terms if scores_of_terms[starts[term]] > 0]
        if not scoring_terms:
            return np.zeros(len(self.table), dtype=np.float32)

        scores: NDArray[np.float32] = self._index.get_scores_from_ids(scoring_terms)
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
    problem = _find_problem(folder, settings, table)
    if problem is not None and warn is None:
        raise DataError(
            f"{folder}: {problem}; run `touche-llm index` with these settings, or use those of the index"
        )
    if problem is not None and warn is not None:
        warn(f"{folder}: {problem}; indexing {len(table):,} {table.noun}")
        _build(table, settings, folder)

    with report_damage(folder, "BM25 index"):
        index = bm25s.BM25.load(folder, mmap=True)
        # Slicing a numpy.memmap takes ten times as long as slicing an array over the same memory.
        for name in ("data", "indices", "indptr"):
            index.scores[name] = np.asarray(index.scores[name])
        return Bm25Index(table, index)


def _find_problem(folder: Path, settings: Bm25Settings, table: TextTable) -> str | None:
    """Return why an index cannot be used for a table with these settings; None if it can."""
    path = folder / "manifest.json"
    if not path.exists():
        return "no BM25 index"

    manifest = read_record(path, Bm25Manifest, "an index manifest")
    needed = _make_manifest(table, settings)
    if manifest.corpus_sha256 != needed.corpus_sha256:
        return "the corpus changed since it was indexed"

    indexed_values = _flatten_manifest(manifest)
    differences: list[str] = []
    for name, value in _flatten_manifest(needed).items():
        if indexed_values[name] != value:
            differences.append(f"{name} {indexed_values[name]}, not {value}")
    return f"the index has {'; '.join(differences)}" if differences else None


def _flatten_manifest(manifest: Bm25Manifest) -> dict[str, Any]:
    """Return the values of a manifest, with those of its settings among them."""
    return {**manifest.model_dump(exclude={"settings"}), **manifest.settings.model_dump()}


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
    """Build the index of a table in the form of bm25s, and replace that in the folder at the end.

    Raises:
        DataError: The table has no word.
    """
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
    blocks: list[Block], term_count: int, settings: Bm25Settings
) -> dict[str, NDArray[Any]]:
    """Compute the sparse score matrix, with the same bits as `bm25s.BM25.index`.

    bm25s needs the postings as Python lists, 5 GB for a million passages.

    Returns:
        Matrix in compressed columns, one for each term: the scores (`data`) and rows (`indices`) of
        all terms one after the other, and the place where each term starts (`indptr`).
    """
    rows_of_term = np.zeros(term_count, dtype=np.int64)
    for block in blocks:
        rows_of_term[block.terms] += block.rows_of_term
    starts = np.concatenate([[0], np.cumsum(rows_of_term)])

    lengths = np.concatenate([block.lengths for block in blocks])
    idf = _compute_idf(rows_of_term, len(lengths), settings.method)
    # Length normalisation: the part of the denominator that all terms of a row share.
    norm = settings.k1 * ((1 - settings.b) + settings.b * lengths / lengths.mean())

    indices = np.empty(starts[-1], dtype=np.int32)
    data = np.empty(starts[-1], dtype=np.float32)
    # Place of the next posting of each term.
    next_places = starts[:-1].copy()
    for block in blocks:
        places = _locate_postings(block, next_places)
        next_places[block.terms] += block.rows_of_term

        indices[places] = block.rows
        idf_of_posting = np.repeat(idf[block.terms], block.rows_of_term)
        data[places] = idf_of_posting * _weigh_frequencies(block, norm, settings)
    return {"data": data, "indices": indices, "indptr": starts}


def _locate_postings(block: Block, next_places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each posting of a block in the score matrix, of shape (postings,).

    Args:
        block: Postings, term by term.
        next_places: Place of the next posting of each term, of shape (all terms,).
    """
    first_postings = np.cumsum(block.rows_of_term) - block.rows_of_term
    shifts = next_places[block.terms] - first_postings
    places: NDArray[np.int64] = np.repeat(shifts, block.rows_of_term) + np.arange(len(block.rows))
    return places


def _weigh_frequencies(
    block: Block, norm: NDArray[np.floating[Any]], settings: Bm25Settings
) -> NDArray[np.floating[Any]]:
    """Return the saturated frequency of each posting of a block, of shape (postings,).

    Args:
        block: Postings.
        norm: Length normalisation of each row, of shape (all rows,).
        settings: Variant of BM25, and its `k1`.
    """
    frequencies = block.frequencies.astype(np.float32)
    numerators = frequencies
    if settings.method == "atire":
        numerators = frequencies * (settings.k1 + 1)
    weights: NDArray[np.floating[Any]] = numerators / (norm[block.rows] + frequencies)
    return weights


def _compute_idf(
    rows_of_term: NDArray[np.int64], row_count: int, method: str
) -> NDArray[np.float32]:
    """Return the idf of each term (Kamphuis et al., Which BM25 do you mean?, ECIR 2020).

    That of the variant `robertson` is 0 or more.

    Args:
        rows_of_term: Number of rows with each term.
        row_count: Number of rows.
        method: Variant of BM25.
    """
    if method == "atire":
        odds = row_count / rows_of_term
    else:
        odds = (row_count - rows_of_term + 0.5) / (rows_of_term + 0.5)
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
    """Return the vocabulary and the postings of all rows, in blocks in row order.

    Terms are numbered from 0, alphabetically, so the result does not depend on the number of cores.
    A corpus of one block is tokenized in this process, others in one process per core.

    Raises:
        DataError: A process was killed.
    """
    if len(table) == 0:
        return {}, []

    arrival_numbers: dict[str, int] = {}
    blocks: list[Block] = []
    for terms, block in _tokenize_blocks(table):
        numbers = [arrival_numbers.setdefault(term, len(arrival_numbers)) for term in terms]
        blocks.append(replace(block, terms=np.array(numbers, dtype=np.int64)))

    vocabulary = {term: number for number, term in enumerate(sorted(arrival_numbers))}
    # The final number of each term, by its number in the order of arrival.
    final_numbers = np.array([vocabulary[term] for term in arrival_numbers], dtype=np.int64)
    numbered = [replace(block, terms=final_numbers[block.terms]) for block in blocks]
    return vocabulary, numbered


def _tokenize_blocks(table: TextTable) -> Iterator[_NamedBlock]:
    """Yield the blocks of a table with their terms, in row order; it has at least one row."""
    size = max(1, BLOCK_BYTES * len(table) // table.database_bytes)
    starts = range(0, len(table), size)
    if len(starts) == 1:
        return iter([_tokenize_rows(table, make_stemmer(), 0, size)])

    process_count = min(len(starts), count_cores(), MAX_PROCESSES)
    return _tokenize_in_processes(table, starts, process_count)


def count_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Terms of a block in the order of its numbers for them, and the block.
_NamedBlock = tuple[list[str], Block]
# In place of the number of a term.
_STOP_WORD = -1


def _tokenize_in_processes(
    table: TextTable, starts: range, process_count: int
) -> Iterator[_NamedBlock]:
    """Yield the blocks that begin at these rows, in order, each tokenized by another process.

    Raises:
        DataError: A process was killed.
    """
    _start_resource_tracker()
    executor = ProcessPoolExecutor(process_count, get_context("spawn"))
    try:
        with _blocking_interrupts():
            tokenize_from = partial(_tokenize, table.folder, table.name, starts.step)
            blocks = executor.map(tokenize_from, starts)
        yield from blocks
    except BrokenProcessPool:
        raise DataError(
            f"{table.folder}: a tokenizing process died: too little memory, or called from a script without "
            '`if __name__ == "__main__":`; see the output above, and try again'
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _blocking_interrupts() -> Iterator[None]:
    """Start processes in the block that never receive Ctrl-C; they end with this process.

    A terminal sends it to all processes.
    """
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


def _start_resource_tracker() -> None:
    """Start the process that removes the semaphores of this one after its end.

    Otherwise the first start of a process does this and unblocks Ctrl-C.
    """
    # It takes over the filters of warnings, and warns of the semaphores that an interrupt left.
    sys.warnoptions.append("ignore:resource_tracker")
    resource_tracker.ensure_running()
    sys.warnoptions.pop()


def _tokenize(folder: Path, name: str, size: int, start: int) -> _NamedBlock:
    """Tokenize the rows of a block in another process."""
    table, stem = _open_table(folder, name)
    return _tokenize_rows(table, stem, start, start + size)


@cache
def _open_table(folder: Path, name: str) -> tuple[TextTable, Callable[[str], str | None]]:
    """Return the table and the stemmer of this process, which ends if its parent is killed."""
    Thread(target=_exit_with_parent, daemon=True).start()
    store = DocumentStore(folder)
    table: TextTable = store if name == store.name else store.parts
    return table, cache(make_stemmer())


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize_rows(
    table: TextTable, stem: Callable[[str], str | None], start: int, stop: int
) -> _NamedBlock:
    """Return the postings of rows, and the terms that they number.

    Args:
        table: Table of texts.
        stem: Returns the term of a word; None for a stop word.
        start: First row.
        stop: Row after the last one; may be beyond the end of the table.
    """
    # Numbers of the terms, from 0, in order of first occurrence.
    numbers: dict[str, int] = {}

    @cache
    def get_number(word: str) -> int:
        term = stem(word)
        return _STOP_WORD if term is None else numbers.setdefault(term, len(numbers))

    words = array("i")
    word_counts: list[int] = []
    for text in table.read_texts(start, stop):
        count_before = len(words)
        words.extend(map(get_number, tokenize(text)))
        word_counts.append(len(words) - count_before)
    block = _count_words(np.frombuffer(words, dtype=np.int32), word_counts, len(numbers), start)
    return list(numbers), block


def _count_words(
    words: NDArray[np.int32], word_counts: list[int], term_count: int, start: int
) -> Block:
    """Return the postings of rows.

    Args:
        words: Numbers of the terms of all words, row by row, of shape (words,).
        word_counts: Number of words of each row.
        term_count: Number of distinct terms.
        start: First row.
    """
    row_count = len(word_counts)
    is_term = words != _STOP_WORD
    terms_of_words = words[is_term]
    rows_of_words = np.repeat(np.arange(row_count), word_counts)[is_term]

    # One number for each pair of term and row, in ascending order of terms, then of rows.
    pairs = terms_of_words.astype(np.int64) * row_count + rows_of_words
    distinct_pairs, frequencies = np.unique(pairs, return_counts=True)
    terms, rows = np.divmod(distinct_pairs, row_count)

    smallest_type = np.min_scalar_type(int(frequencies.max(initial=0)))
    return Block(
        terms=np.arange(term_count),
        rows_of_term=np.bincount(terms, minlength=term_count),
        rows=(rows + start).astype(np.int32),
        frequencies=frequencies.astype(smallest_type),
        lengths=np.bincount(rows_of_words, minlength=row_count).astype(np.int32),
    )


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
