"""Postings from texts, tokenized on all cores."""

from __future__ import annotations

import os
import signal
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
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
# A corpus may have more distinct words if each occurs ten times on average; in text of this size it is fifty times.
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
    sent = _tokenize_in_processes(table, starts, count) if len(starts) > 1 else iter([_Tokenizer(table).block(0, size)])
    # Numbers of terms in order of arrival, and for each process the mapping from its own numbers to them.
    arrival_numbers: dict[str, int] = {}
    mapping = [np.empty(0, dtype=np.int64) for _ in range(count)]
    blocks = []
    for place, (new_terms, block) in enumerate(sent):
        numbers = [arrival_numbers.setdefault(term, len(arrival_numbers)) for term in new_terms]
        mapping[place % count] = np.concatenate([mapping[place % count], np.array(numbers, dtype=np.int64)])
        blocks.append(replace(block, terms=mapping[place % count][block.terms]))
    ordered = sorted(arrival_numbers)
    final = np.empty(len(ordered), dtype=np.int64)
    final[[arrival_numbers[term] for term in ordered]] = np.arange(len(ordered))
    return (
        {term: number for number, term in enumerate(ordered)},
        [replace(block, terms=final[block.terms]) for block in blocks],
    )


def count_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Terms that are new to the process, and a block with the numbers of the process.
_NumberedBlock = tuple[list[str], Block]


def _tokenize_in_processes(table: TextTable, starts: range, count: int) -> Iterator[_NumberedBlock]:
    context = get_context("spawn")
    pipes, processes = [], []
    # Otherwise the first start of a process does this and unblocks Ctrl-C.
    resource_tracker.ensure_running()
    try:
        for place in range(count):
            pipe, other = context.Pipe(duplex=False)
            arguments = (other, table.folder, table.name, starts[place::count], starts.step)
            process = context.Process(target=_work, args=arguments, daemon=True)
            pipes.append(pipe)
            with _without_interrupts():
                process.start()
                processes.append(process)
            # Only the process holds this end now, so its death closes the stream.
            other.close()
        for place in range(len(starts)):
            # Each process waits until its block is received, so at most one per process is in memory.
            received = pipes[place % count].recv()
            if isinstance(received, Exception):
                raise received
            yield received
    except EOFError:
        raise DataError(
            f"{table.folder}: a tokenizing process died: too little memory, or called from a script without "
            '`if __name__ == "__main__":`; see the output above, and try again'
        ) from None
    finally:
        for process in processes:
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block Ctrl-C in this block, and permanently in the processes that it starts.

    A terminal sends it to all processes; the one that collects the blocks ends the others.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, folder: Path, name: str, starts: range, size: int) -> None:
    """Send the blocks that begin at `starts`, until the receiving process ends."""
    try:
        with DocumentStore(folder) as store:
            tokenizer = _Tokenizer(store if name == store.name else store.parts)
            for start in starts:
                pipe.send(tokenizer.block(start, start + size))
    except BrokenPipeError:
        pass
    except Exception as error:
        pipe.send(error)


class _Tokenizer:
    """Tokenizer of rows into blocks; terms keep their numbers from block to block."""

    def __init__(self, table: TextTable) -> None:
        self._table = table
        self._numbers = _TermNumbers()
        self._tokens = 0

    def block(self, start: int, stop: int) -> _NumberedBlock:
        numbers = array("i")
        known = len(self._numbers.of_term)
        sizes = []
        for text in self._table.read_texts(start, stop):
            before = len(numbers)
            numbers.extend(map(self._numbers.__getitem__, tokenize(text)))
            sizes.append(len(numbers) - before)
            self._tokens += sizes[-1]
            if len(self._numbers) > max(MAX_WORDS, self._tokens // 10):
                raise DataError(
                    f"{self._table.manifest.corpus}: more than {MAX_WORDS:,} distinct words among the first "
                    f"{self._tokens:,} words; is this text?"
                )
        count = len(sizes)
        of_word = np.frombuffer(numbers, dtype=np.int32)
        row_of_word = np.repeat(np.arange(count), sizes)[of_word >= 0]
        keys, frequencies = np.unique(of_word[of_word >= 0].astype(np.int64) * count + row_of_word, return_counts=True)
        terms, rows = np.divmod(keys, count)
        firsts = np.flatnonzero(np.diff(terms, prepend=-1))
        block = Block(
            terms[firsts],
            np.diff(firsts, append=len(terms)),
            (rows + start).astype(np.int32),
            frequencies.astype(np.min_scalar_type(int(frequencies.max(initial=0)))),
            np.bincount(row_of_word, minlength=count).astype(np.int32),
        )
        return list(islice(self._numbers.of_term, known, None)), block


class _TermNumbers(dict[str, int]):
    """Cache of term numbers by word, from 0 in order of first occurrence; -1 for stop words."""

    def __init__(self) -> None:
        super().__init__()
        self._stem = make_stemmer()
        self.of_term: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = self._stem(word)
        number = self[word] = -1 if term is None else self.of_term.setdefault(term, len(self.of_term))
        return number
