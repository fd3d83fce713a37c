"""Postings from texts, tokenized on all cores."""

from __future__ import annotations

import os
import signal
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

from touche_llm.corpus.store import DocumentStore, TextTable
from touche_llm.errors import DataError
from touche_llm.text.analysis import make_stemmer, tokenize

# Bytes of the database per block: some 30,000 passages, which take a few seconds and 200 MB to tokenize.
BLOCK_BYTES = 32 * 2**20
# With more processes, the one that collects the blocks is the bottleneck.
MAX_PROCESSES = 16
# A corpus may have more distinct terms if each occurs ten times on average; in text of this size it is fifty times.
MAX_WORDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Block:
    """Postings of consecutive rows.

    Attributes:
        terms: Numbers of the terms in the block, of shape (terms,).
        rows_of_term: Number of rows with each term, of shape (terms,).
        rows: Rows of the first term, then of the second and so on, ascending for each term, of shape (postings,). Row 0
            is the first of the corpus.
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

    Terms are numbered alphabetically, so the result does not depend on the number of cores. A corpus of one block is
    tokenized in this process, others in one process per core.

    Raises:
        DataError: A process was killed, or too many words are rare for a text.
    """
    if not len(table):
        return {}, []
    size = max(1, BLOCK_BYTES * len(table) // table.database_bytes)
    starts = range(0, len(table), size)
    count = min(len(starts), count_cores(), MAX_PROCESSES)
    found = _tokenize_in_processes(table, starts, count) if len(starts) > 1 else [_Tokenizer(table).block(0, size)]
    # Numbers of terms in order of arrival.
    arrival: dict[str, int] = {}
    blocks, words = [], 0
    for terms, block in found:
        numbers = np.fromiter((arrival.setdefault(term, len(arrival)) for term in terms), np.int64, len(terms))
        blocks.append(replace(block, terms=numbers))
        words += int(block.lengths.sum())
        if len(arrival) > max(MAX_WORDS, words // 10):
            raise DataError(
                f"{table.manifest.corpus}: {len(arrival):,} distinct words among the first {words:,} words; is this "
                "text?"
            )
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
    executor = ProcessPoolExecutor(count, get_context("spawn"))
    # Otherwise the first start of a process does this and unblocks Ctrl-C.
    resource_tracker.ensure_running()
    # A terminal sends Ctrl-C to all processes; those started here never receive it, and end with this one.
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


def _tokenize(folder: Path, name: str, size: int, start: int) -> _NamedBlock:
    return _open_tokenizer(folder, name).block(start, start + size)


@cache
def _open_tokenizer(folder: Path, name: str) -> _Tokenizer:
    """Return the tokenizer of this process, which ends if its parent is killed."""
    Thread(target=_exit_with_parent, daemon=True).start()
    store = DocumentStore(folder)
    return _Tokenizer(store if name == store.name else store.parts)


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _Tokenizer:
    """Tokenizer of rows into blocks, which keeps the stems of words."""

    def __init__(self, table: TextTable) -> None:
        self._table, self._stem = table, cache(make_stemmer())

    def block(self, start: int, stop: int) -> _NamedBlock:
        numbers, words, sizes = _TermNumbers(self._stem), array("i"), []
        for text in self._table.read_texts(start, stop):
            before = len(words)
            words.extend(map(numbers.__getitem__, tokenize(text)))
            sizes.append(len(words) - before)
        count = len(sizes)
        of_word = np.frombuffer(words, dtype=np.int32)
        row_of_word = np.repeat(np.arange(count), sizes)[of_word >= 0]
        keys, frequencies = np.unique(of_word[of_word >= 0].astype(np.int64) * count + row_of_word, return_counts=True)
        terms, rows = np.divmod(keys, count)
        block = Block(
            np.arange(len(numbers.of_term)),
            np.bincount(terms, minlength=len(numbers.of_term)),
            (rows + start).astype(np.int32),
            frequencies.astype(np.min_scalar_type(int(frequencies.max(initial=0)))),
            np.bincount(row_of_word, minlength=count).astype(np.int32),
        )
        return list(numbers.of_term), block


class _TermNumbers(dict[str, int]):
    """Cache of term numbers by word, from 0 in order of first occurrence; -1 for stop words."""

    def __init__(self, stem: Callable[[str], str | None]) -> None:
        super().__init__()
        self._stem = stem
        self.of_term: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = self._stem(word)
        number = self[word] = -1 if term is None else self.of_term.setdefault(term, len(self.of_term))
        return number
