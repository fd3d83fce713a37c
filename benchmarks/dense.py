"""Seconds and memory of exact search over random vectors, as many as the passages of 2022.

    python -m benchmarks.dense [--documents 868655] [--dimensions 1024] [--topics 50] [--depth 1000]

The file of vectors (1.8 GB at the real size) is written to a temporary folder, dropped from the
page cache, and searched by a process that was just started. Its own memory is the most that it held
of anonymous pages, sampled twenty times a second (Linux); the mapped pages of the file are the
system's cache.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, parse_sizes, show
from benchmarks.first_stage import forget
from benchmarks.processes import read_status, run_alone
from benchmarks.synthetic import PASSAGES
from touche_llm.data.records import Topic
from touche_llm.retrieval.dense import VectorFile
from touche_llm.retrieval.selection import select_candidates

_BLOCK = 8192


def write(path: Path, shape: tuple[int, int]) -> float:
    """Write random vectors.

    Return the seconds that the program's writer took, without drawing them.
    """
    VectorFile.create(path, shape)
    chance, seconds = np.random.default_rng(0), 0.0
    file = VectorFile(path, shape, "r+")
    for start in range(0, shape[0], _BLOCK):
        rows = range(start, min(start + _BLOCK, shape[0]))
        vectors = chance.standard_normal((len(rows), shape[1]), dtype=np.float32)
        started = time.perf_counter()
        file.store(rows, vectors)
        seconds += time.perf_counter() - started
    return seconds


def search(path: Path, shape: tuple[int, int], topics: int, depth: int) -> tuple[float, float]:
    """Open the file and find the candidates of all topics, as the program does.

    Return seconds and GiB of its own.
    """
    ended, most = threading.Event(), [0]

    def sample() -> None:
        while not ended.wait(0.05):
            most.append(read_status(Path("/proc/self/status"))["RssAnon"])

    sampler = threading.Thread(target=sample)
    sampler.start()
    queries = np.random.default_rng(1).standard_normal((topics, shape[1]), dtype=np.float32)
    started = time.perf_counter()
    for number, scores in enumerate(VectorFile(path, shape).score(queries)):
        select_candidates(Topic(str(number), ""), scores, lambda rows: list(map(str, rows)), depth)
    seconds = time.perf_counter() - started
    ended.set()
    sampler.join()
    return seconds, max(most) / 2**20


def measure(path: Path, shape: tuple[int, int], topics: int, depth: int) -> Iterator[Figure]:
    """Yield all figures."""
    seconds, _ = run_alone(write, path, shape)
    yield Figure("store the vectors", f"{seconds:.1f} s, {path.stat().st_size / 1e6:,.0f} MB")
    forget(path.parent)
    (cold, own_cold), _ = run_alone(search, path, shape, topics, depth)
    what = f"{topics} topics, {depth:,} each"
    yield Figure(f"{what}, no page of the file in the cache", f"{cold:.2f} s")
    (warm, own_warm), _ = run_alone(search, path, shape, topics, depth)
    yield Figure(f"{what}, all pages in the cache", f"{warm:.2f} s")
    yield Figure("memory of its own", f"{max(own_cold, own_warm):.2f} GiB")


def main() -> None:
    """Write the vectors and search them."""
    parser = parse_sizes(
        __doc__, documents=(1, PASSAGES), dimensions=(1, 1024), topics=(1, 50), depth=(1, 1000)
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        shape = (options.documents, options.dimensions)
        figures = list(measure(Path(name) / "vectors.npy", shape, options.topics, options.depth))
    show(f"Dense retrieval, {shape[0]:,} vectors of {shape[1]:,} dimensions", figures)


if __name__ == "__main__":
    main()
