"""The ids of rows on disk, in two arrays that are memory-mapped: a thousand of them in half a millisecond."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from touche_llm.errors import DataError


class IdWriter:
    """The ids of rows 0, 1, 2 and so on, to be written."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def extend(self, ids: Iterable[str]) -> None:
        """Add the ids of the next rows."""
        for each in ids:
            self._text += each.encode()
            self._ends.append(len(self._text))

    def write(self, folder: Path, table: str) -> None:
        """Write them to two files of the folder, named for the table that has the rows."""
        np.save(_text(folder, table), np.frombuffer(self._text, dtype=np.uint8))
        np.save(_ends(folder, table), np.frombuffer(self._ends, dtype=np.int64))


class IdReader:
    """The ids that an IdWriter wrote."""

    def __init__(self, folder: Path, table: str) -> None:
        """Open the files; raises OSError, EOFError or ValueError where they are not there or damaged."""
        self._text = memoryview(np.load(_text(folder, table), mmap_mode="r", allow_pickle=False))
        self._ends = np.load(_ends(folder, table), mmap_mode="r", allow_pickle=False)
        self._folder = folder
        if len(self._ends) == 0 or self._ends[0] != 0 or self._ends[-1] != len(self._text):
            raise ValueError(f"{_text(folder, table).name} and {_ends(folder, table).name} do not fit together")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def of(self, rows: list[int]) -> list[str]:
        """IdReader of the given rows, in the order given; raises DataError where the files are damaged there."""
        places = np.asarray(rows, dtype=np.int64)
        starts, ends = self._ends[places], self._ends[places + 1]
        inside = (starts >= 0) & (starts <= ends) & (ends <= len(self._text))
        try:
            if not inside.all():
                raise ValueError(f"row {places[~inside][0]} has no id")
            return [self._text[s:e].tobytes().decode() for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]
        except ValueError as error:
            raise DataError(f"{self._folder}: damaged index ({error}); delete the folder and index again") from error


def _text(folder: Path, table: str) -> Path:
    return folder / f"{table}.ids.npy"


def _ends(folder: Path, table: str) -> Path:
    return folder / f"{table}.id_ends.npy"
