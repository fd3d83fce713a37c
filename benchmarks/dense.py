"""Seconds and memory of exact search over random vectors, as many as the passages of 2022.

    python -m benchmarks.dense [--documents 868655] [--dimensions 1024] [--topics 50] [--depth 1000]

The file of vectors (1.8 GB at the real size) is written to a temporary folder, dropped from the page cache, and
searched by a process that was just started. Its own memory is the most that it held of anonymous pages, sampled twenty
times a second (Linux); the mapped pages of the file are the system's cache. For two topics the candidates are compared
with those of the same vectors in float64.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, show
from benchmarks.first_stage import forget
from benchmarks.processes import read_status, run_alone
from benchmarks.sizes import at_least
from benchmarks.synthetic import PASSAGES
from touche_llm.data.records import Candidate, Topic
from touche_llm.retrieval.base import select_candidates
from touche_llm.retrieval.dense import VectorFile, open_writer

_DIMENSIONS, _BLOCK, _COMPARED = 1024, 8192, 2
# Two scores in float32 that differ by less are the same.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Searched:
    """What searching took: seconds, and GiB of its own; the first candidates of each topic, with their scores."""

    seconds: float
    own: float
    rankings: list[list[Candidate]]


def write(path: Path, shape: tuple[int, int]) -> float:
    """Write random vectors; return the seconds that the program's writer took, without drawing them."""
    VectorFile.create(path, shape)
    chance, seconds = np.random.default_rng(0), 0.0
    with open_writer(path, shape) as writer:
        for start in range(0, shape[0], _BLOCK):
            rows = range(start, min(start + _BLOCK, shape[0]))
            vectors = chance.standard_normal((len(rows), shape[1]), dtype=np.float32)
            started = time.perf_counter()
            writer.store(rows, vectors)
            seconds += time.perf_counter() - started
    return seconds


def draw_queries(count: int, dimensions: int) -> NDArray[np.float32]:
    """Draw the vectors of the queries."""
    return np.random.default_rng(1).standard_normal((count, dimensions), dtype=np.float32)


def search(path: Path, shape: tuple[int, int], topics: int, depth: int) -> Searched:
    """Open the file and find the candidates of all topics, as the program does."""
    ended, most = threading.Event(), [0]

    def sample() -> None:
        while not ended.wait(0.05):
            most.append(read_status(Path("/proc/self/status"))["RssAnon"])

    sampler = threading.Thread(target=sample)
    sampler.start()
    queries, started = draw_queries(topics, shape[1]), time.perf_counter()
    rankings = [
        select_candidates(Topic(str(number), ""), scores, lambda rows: list(map(str, rows)), depth)
        for number, scores in enumerate(VectorFile(path, shape).score(queries))
    ]
    seconds = time.perf_counter() - started
    ended.set()
    sampler.join()
    return Searched(seconds, max(most) / 2**20, rankings)


def count_equal(path: Path, shape: tuple[int, int], topics: int, found: list[list[Candidate]]) -> int:
    """Return the number of topics whose candidates are the best by scores in float64, but for equal scores."""
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    queries = draw_queries(topics, shape[1])[: len(found)].astype(np.float64)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    blocks = [vectors[start : start + _BLOCK].astype(np.float64) @ queries.T for start in range(0, shape[0], _BLOCK)]
    exact = (1 + np.concatenate(blocks)) / 2
    equal = 0
    for column, ranking in enumerate(found):
        scores = exact[[int(candidate.document_id) for candidate in ranking], column]
        best = np.sort(exact[:, column])[::-1][: len(ranking)]
        equal += bool(np.abs(scores - best).max() < _TOLERANCE)
    return equal


def measure(path: Path, shape: tuple[int, int], topics: int, depth: int) -> Iterator[Figure]:
    """Yield all figures."""
    seconds, _ = run_alone(write, path, shape)
    yield Figure("store the vectors", f"{seconds:.1f} s, {path.stat().st_size / 1e6:,.0f} MB")
    forget(path.parent)
    cold, _ = run_alone(search, path, shape, topics, depth)
    what = f"{topics} topics, {depth:,} each"
    yield Figure(f"{what}, no page of the file in the cache", f"{cold.seconds:.2f} s")
    warm, _ = run_alone(search, path, shape, topics, depth)
    yield Figure(f"{what}, all pages in the cache", f"{warm.seconds:.2f} s")
    own = max(cold.own, warm.own)
    yield Figure("memory of its own", f"{own:.2f} GiB")
    compared = warm.rankings[:_COMPARED]
    equal, _ = run_alone(count_equal, path, shape, topics, compared)
    yield Figure("candidates equal to those of float64", f"{equal} of {len(compared)}")


def main() -> None:
    """Write the vectors and search them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=at_least(1), default=PASSAGES)
    parser.add_argument("--dimensions", type=at_least(1), default=_DIMENSIONS)
    parser.add_argument("--topics", type=at_least(1), default=50)
    parser.add_argument("--depth", type=at_least(1), default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        shape = (options.documents, options.dimensions)
        figures = list(measure(Path(name) / "vectors.npy", shape, options.topics, options.depth))
    show(f"Dense retrieval, {shape[0]:,} vectors of {shape[1]:,} dimensions", figures)


if __name__ == "__main__":
    main()
