"""The file of vectors: what is stored, searched, resumed and refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from touche_llm.errors import DataError
from touche_llm.retrieval import dense
from touche_llm.retrieval.dense import VectorFile

SHAPE = (1000, 24)


@pytest.fixture
def random_vectors() -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


def write(path: Path, values: NDArray[np.float32]) -> VectorFile:
    VectorFile.create(path, SHAPE)
    VectorFile(path, SHAPE, "r+").store(range(SHAPE[0]), values)
    return VectorFile(path, SHAPE)


def cosines(queries: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = [each.astype(np.float64) for each in (queries, values)]
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in wide]
    found: NDArray[np.float64] = units[0] @ units[1].T
    return found


@pytest.mark.parametrize(
    ("block_bytes", "score_bytes"), [(64 * 2**20, 256 * 2**20), (24 * 4 * 7, 4 * 1000 * 2), (1, 1)]
)
def test_scores_are_cosines_whatever_the_size_of_the_blocks(
    tmp_path: Path,
    random_vectors: NDArray[np.float32],
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    score_bytes: int,
) -> None:
    monkeypatch.setattr(dense, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(dense, "_SCORE_BYTES", score_bytes)
    file = write(tmp_path / "vectors.npy", random_vectors * 1000)
    queries = np.concatenate([random_vectors[:5] * 3, -random_vectors[:1]])
    found = np.stack(list(file.score(queries)))
    assert np.abs(found - (1 + cosines(queries, random_vectors)) / 2).max() < 5e-4
    # Nothing beyond the ends, since candidates have scores above 0.
    assert found.min() >= 0 and found.max() <= 1
    assert found.argmax(axis=1)[:5].tolist() == [0, 1, 2, 3, 4]
    assert file.find_missing().tolist() == []


def test_rows_without_a_vector_are_found_and_those_of_which_a_part_was_written(
    tmp_path: Path, random_vectors: NDArray[np.float32]
) -> None:
    path = tmp_path / "vectors.npy"
    VectorFile.create(path, SHAPE)
    writer = VectorFile(path, SHAPE, "r+")
    writer.store(range(10, 990), random_vectors[10:990])
    # As after a kill within the row.
    writer._array[500, 12:] = 0
    writer._array[501, 3] = np.nan
    assert VectorFile(path, SHAPE).find_missing().tolist() == [
        *range(10),
        500,
        501,
        *range(990, 1000),
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-2]),
        lambda path: np.save(path, np.zeros(SHAPE[::-1], dtype=np.float16).T),
        # To read it would run whatever code it names.
        lambda path: path.write_bytes(pickle.dumps(np.load(path))),
        Path.unlink,
    ],
)
def test_another_file_is_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = tmp_path / "vectors.npy"
    VectorFile.create(path, SHAPE)
    damage(path)
    with pytest.raises(DataError, match="damaged vectors"):
        VectorFile(path, SHAPE)
