"""Texts to postings: which term occurs in which row how often, tokenised in all cores."""

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
from touche_llm.text.analysis import WordStemmer, tokenize

# So much of the database makes one block: some 30,000 passages, which take some seconds and 200 MB to tokenise.
BLOCK_BYTES = 32 * 2**20
# Above this the process that puts the blocks together is the slowest.
MOST_PROCESSES = 16
# More different words than this are taken where words recur ten times on average; text of this size has fifty.
MOST_WORDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Block:
    """The postings of some rows that follow each other.

    Attributes:
        terms: the numbers of the terms that occur.
        rows_of_term: in how many of the rows each does.
        rows: of the first of these terms, then of the second and so on; each term's ascending. Row 0 is the first of
            the corpus.
        frequencies: how often the term occurs in that row.
        lengths: number of terms of each row of the block, with repetitions.
    """

    terms: NDArray[np.int64]
    rows_of_term: NDArray[np.int64]
    rows: NDArray[np.int32]
    frequencies: NDArray[np.unsignedinteger[Any]]
    lengths: NDArray[np.int32]


def read_postings(units: TextTable) -> tuple[dict[str, int], list[Block]]:
    """The postings of all units: the numbers of their terms from 0, and blocks in row order.

    Terms are numbered by the alphabet, so that nothing depends on the number of cores. A corpus of one block is done in
    this process, others in one process for each core.

    Raises:
        DataError: one of these processes was killed, or too many words occur only once or twice: it is no text.
    """
    if not len(units):
        return {}, []
    size = max(1, BLOCK_BYTES * len(units) // units.database_bytes)
    starts = range(0, len(units), size)
    count = min(len(starts), count_cores(), MOST_PROCESSES)
    sent = _in_processes(units, starts, count) if len(starts) > 1 else iter([_Tokeniser(units).block(0, size)])
    # Numbered by arrival at first. Of each process: the numbers here of its terms.
    arrived: dict[str, int] = {}
    here = [np.empty(0, dtype=np.int64) for _ in range(count)]
    blocks = []
    for place, (new_terms, block) in enumerate(sent):
        numbers = [arrived.setdefault(term, len(arrived)) for term in new_terms]
        here[place % count] = np.concatenate([here[place % count], np.array(numbers, dtype=np.int64)])
        blocks.append(replace(block, terms=here[place % count][block.terms]))
    ordered = sorted(arrived)
    final = np.empty(len(ordered), dtype=np.int64)
    final[[arrived[term] for term in ordered]] = np.arange(len(ordered))
    return (
        {term: number for number, term in enumerate(ordered)},
        [replace(block, terms=final[block.terms]) for block in blocks],
    )


def count_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# The terms that the process had not met before, and a block with the numbers that the process gave its terms.
_Sent = tuple[list[str], Block]


def _in_processes(units: TextTable, starts: range, count: int) -> Iterator[_Sent]:
    context = get_context("spawn")
    pipes, processes = [], []
    # The first start would do this, and let Ctrl-C through again.
    resource_tracker.ensure_running()
    try:
        for place in range(count):
            pipe, other = context.Pipe(duplex=False)
            arguments = (other, units.folder, units.table, starts[place::count], starts.step)
            process = context.Process(target=_work, args=arguments, daemon=True)
            pipes.append(pipe)
            with _without_interrupts():
                process.start()
                processes.append(process)
            # Only the process holds this end now, so that its death shows as the end of the stream.
            other.close()
        for place in range(len(starts)):
            # Each process waits until its block is taken, so that no more than one of each is on its way.
            received = pipes[place % count].recv()
            if isinstance(received, Exception):
                raise received
            yield received
    except EOFError:
        raise DataError(
            f"{units.folder}: a process that tokenises ended too early: too little memory, or called from a script "
            'without `if __name__ == "__main__":`; see what stands above, and try again'
        ) from None
    finally:
        for process in processes:
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Keep Ctrl-C back, here until the end and in processes started meanwhile always, from their first moment on.

    It goes to all processes of a terminal; the one that reads the blocks ends the others.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, folder: Path, table: str, starts: range, size: int) -> None:
    """Send the blocks that begin at `starts`; ends with the process that reads them."""
    try:
        with DocumentStore(folder) as store:
            tokeniser = _Tokeniser(store if table == store.table else store.parts)
            for start in starts:
                pipe.send(tokeniser.block(start, start + size))
    except BrokenPipeError:
        pass
    except Exception as error:
        pipe.send(error)


class _Tokeniser:
    """Makes blocks of rows of one corpus. Terms keep their numbers from block to block."""

    def __init__(self, units: TextTable) -> None:
        self._units = units
        self._numbers = _Numbers()
        self._tokens = 0

    def block(self, start: int, stop: int) -> _Sent:
        numbers = array("i")
        known = len(self._numbers.of_term)
        sizes = []
        for text in self._units.read_texts(start, stop):
            before = len(numbers)
            numbers.extend(map(self._numbers.__getitem__, tokenize(text)))
            sizes.append(len(numbers) - before)
            self._tokens += sizes[-1]
            if len(self._numbers) > max(MOST_WORDS, self._tokens // 10):
                raise DataError(
                    f"{self._units.manifest.corpus}: more than {MOST_WORDS:,} different words among the first "
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


class _Numbers(dict[str, int]):
    """The number of each word's term, from 0 in the order in which terms first occur; -1 of a stop word."""

    def __init__(self) -> None:
        super().__init__()
        self._stems = WordStemmer()
        self.of_term: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = self._stems.stem(word)
        number = self[word] = -1 if term is None else self.of_term.setdefault(term, len(self.of_term))
        return number
