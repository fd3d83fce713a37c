"""Vectors of documents in a memory-mapped file, and exact search by blocks of matrix products."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from touche_llm.corpus.store import report_damage
from touche_llm.errors import UsageError

# Bytes of the rows that are multiplied at a time, as float32, and of all scores that are held at a time.
_BLOCK_BYTES, _SCORE_BYTES = 64 * 2**20, 256 * 2**20
# Max difference between 1 and the length of a stored unit vector, whose values are rounded to 11 bits. A row of zeros,
# or of which a killed process wrote a part, has another length.
_ROUNDING = 0.01


class VectorFile:
    """Unit vectors by row in float16, as a `.npy` file; a row of zeros has no vector yet.

    A killed process loses no row that it stored, since the system writes the mapped pages.
    """

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        """Open the file to read it.

        Raises:
            DataError: The file is missing, truncated, or not an array of float16 of this shape.
        """
        self.path = path
        with report_damage(path.parent, "vectors"):
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
            _check_header(self._array, shape)

    @classmethod
    def create(cls, path: Path, shape: tuple[int, int]) -> None:
        """Write a file of zeros, without reserving the space on disk."""
        np.lib.format.open_memmap(path, "w+", np.dtype("<f2"), shape).flush()

    @property
    def dimensions(self) -> int:
        """Length of the vectors."""
        return int(self._array.shape[1])

    def __len__(self) -> int:
        return len(self._array)

    def find_missing(self) -> NDArray[np.int64]:
        """Return the rows without a vector, ascending."""
        missing = [start + np.flatnonzero(_is_empty(block)) for start, block in self._read_blocks()]
        return np.concatenate([np.empty(0, dtype=np.int64), *missing])

    def score(self, queries: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all rows for each query, of shape (rows,): (1 + cosine)/2, from 0 to 1.

        Memory is bounded: only so many queries are multiplied at a time that their scores take 256 MiB, or one.

        Args:
            queries: Vectors of any length other than 0, of shape (queries, dimensions).
        """
        units = scale_to_unit(queries)
        group = max(_SCORE_BYTES // (4 * max(len(self), 1)), 1)
        for first in range(0, len(units), group):
            columns = np.ascontiguousarray(units[first : first + group].T)
            scores = np.empty((columns.shape[1], len(self)), dtype=np.float32)
            for start, block in self._read_blocks():
                scores[:, start : start + len(block)] = (block @ columns).T
            # In place, since the scores take most of the memory.
            np.clip(np.divide(np.add(scores, 1, out=scores), 2, out=scores), 0, 1, out=scores)
            yield from scores

    def _read_blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield blocks of rows as float32, with their first rows; the array of a block is used again for the next."""
        size = max(_BLOCK_BYTES // (4 * self.dimensions), 1)
        buffer = np.empty((min(size, len(self)), self.dimensions), dtype=np.float32)
        with self.path.open("rb") as stream:
            for start in range(0, len(self), size):
                self._read_ahead(stream.fileno(), start + size, size)
                rows = self._array[start : start + size]
                buffer[: len(rows)] = rows
                yield start, buffer[: len(rows)]

    def _read_ahead(self, number: int, start: int, rows: int) -> None:
        """Let the system read rows from disk while others are multiplied, which halves the time of a cold start."""
        if hasattr(os, "posix_fadvise"):
            width = self._array.itemsize * self.dimensions
            place = self._array.offset + start * width
            os.posix_fadvise(number, place, rows * width, os.POSIX_FADV_WILLNEED)


class VectorWriter:
    """Writer of vectors; see `open_writer`."""

    def __init__(self, array: np.memmap[Any, Any]) -> None:
        self._array = array

    def store(self, rows: Sequence[int], vectors: NDArray[np.float32]) -> None:
        """Store the vectors of rows, scaled to unit length; `vectors` has the shape (rows, dimensions)."""
        self._array[list(rows)] = scale_to_unit(vectors).astype(np.float16)


@contextmanager
def open_writer(path: Path, shape: tuple[int, int]) -> Iterator[VectorWriter]:
    """Open a file of vectors to write it, with a lock until the block ends, when all is on disk.

    Raises:
        DataError: As `VectorFile`.
        UsageError: Another process writes there.
    """
    with path.open("rb") as locked:
        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{path}: another process embeds these documents; wait until it ends") from error
        with report_damage(path.parent, "vectors"):
            array = np.load(path, mmap_mode="r+", allow_pickle=False)
            _check_header(array, shape)
        try:
            yield VectorWriter(array)
        finally:
            array.flush()


def scale_to_unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors scaled to length 1, of the same shape."""
    scaled: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def _is_empty(block: NDArray[np.float32]) -> NDArray[np.bool_]:
    squares = np.einsum("ij,ij->i", block, block)
    found: NDArray[np.bool_] = ~(np.abs(np.sqrt(squares) - 1) <= _ROUNDING)  # also if it is NaN
    return found


def _check_header(array: NDArray[Any], shape: tuple[int, int]) -> None:
    if array.dtype != np.dtype("<f2") or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype} of shape {array.shape}, not float16 of shape {shape}")
