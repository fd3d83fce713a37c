"""Seconds, memory and bytes of storing, indexing and searching synthetic corpora of the real sizes.

    python -m benchmarks.first_stage [--passages 868655] [--sentences 6100000] [--topics 50]
    [--depth 1000]

Each measurement runs in processes of its own. Memory of indexing is the peak of the process and
those it started together, mapped files counted once (Linux), sampled five times a second. The peer
is rank-bm25 over the same terms of the same passages; it holds the corpus in memory, 3 GB at the
real size. `benchmarks.synthetic` describes the corpora.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.figures import Figure, parse_sizes, show
from benchmarks.processes import read_stages, read_status, run_alone, run_command
from benchmarks.synthetic import PASSAGES, SENTENCES, write_arguments, write_passages, write_topics
from touche_llm.corpus.json_lines import CorpusFile
from touche_llm.corpus.store import DocumentStore, TextTable, ensure_store
from touche_llm.data.records import Candidate, Topic
from touche_llm.data.topics.reading import read_topics
from touche_llm.retrieval.bm25 import OkapiIndex, open_index
from touche_llm.retrieval.corpus import FirstStage
from touche_llm.retrieval.sentences import SentenceSettings, retrieve_sentences
from touche_llm.retrieval.settings import Bm25Settings
from touche_llm.tasks import get_task

TaskName = Literal["comparative", "sentence_pairs"]

_BY_ID = 1_000
_PEER_SEARCHES = 10


@dataclass(frozen=True)
class Place:
    """A synthetic corpus, its topics and its index."""

    task: TaskName
    folder: Path
    depth: int

    @property
    def corpus(self) -> Path:
        """The file of the corpus."""
        return self.folder / (
            "passages.jsonl.gz" if self.task == "comparative" else "args_processed_04_01.csv"
        )

    @property
    def topics(self) -> Path:
        """The file of the topics."""
        return self.folder / f"topics-{self.task}.xml"

    @property
    def index(self) -> Path:
        """The folder of the index."""
        return self.folder / f"index-{self.task}"

    def units(self, store: DocumentStore) -> list[TextTable]:
        """What is indexed."""
        return [store] if self.task == "comparative" else [store, store.parts]

    def search(self, store: DocumentStore, topics: list[Topic]) -> Iterator[list[Candidate]]:
        """The candidates of each topic, as the program finds them."""
        stages = [open_index(units, Bm25Settings()) for units in self.units(store)]
        if self.task == "comparative":
            return stages[0].retrieve(topics, fields=("title",), depth=self.depth)
        settings = SentenceSettings(pool=self.depth)
        return retrieve_sentences(topics, stages[0], stages[1], store.parts, settings, ("title",))


@dataclass(frozen=True)
class Searched:
    """What searching took, in a process that was just started: seconds, and MiB held afterwards."""

    opening: float
    first_round: float
    second_round: list[float]
    anonymous: float
    mapped: float


def stored(place: Place) -> float:
    """Seconds to store the corpus."""
    started = time.perf_counter()
    ensure_store(
        CorpusFile(place.corpus, get_task(place.task).read_corpus), place.index, warn=lambda _: None
    ).close()
    return time.perf_counter() - started


def indexed(place: Place) -> float:
    """Seconds to tokenise the stored corpus and to index it."""
    started = time.perf_counter()
    with DocumentStore(place.index) as store:
        for units in place.units(store):
            open_index(units, Bm25Settings(), lambda _: None)
    return time.perf_counter() - started


def searched(place: Place) -> Searched:
    """Open the index and search for each topic twice."""
    topics = read_topics(place.topics)
    started = time.perf_counter()
    with DocumentStore(place.index) as store:
        found = place.search(store, topics)
        opened = time.perf_counter()
        # Kept until the end, as the program does.
        rankings = list(found)
        done = time.perf_counter()
        seconds = []
        again = place.search(store, topics)
        for _ in rankings:
            before = time.perf_counter()
            next(again)
            seconds.append(time.perf_counter() - before)
        held = read_status(Path("/proc/self/status"))
    return Searched(
        opened - started, done - opened, seconds, held["RssAnon"] / 2**10, held["RssFile"] / 2**10
    )


def compared(place: Place, count: int) -> tuple[float, float, float]:
    """Search with the index, rank-bm25 and the index again.

    Mean seconds of a query of both, the peer's GiB.
    """
    topics = read_topics(place.topics)[:count]
    with DocumentStore(place.index) as store:
        index = open_index(store, Bm25Settings())
        before = read_status(Path("/proc/self/status"))["VmRSS"]
        peer = OkapiIndex(store, k1=1.5, b=0.75)
        gib = (read_status(Path("/proc/self/status"))["VmRSS"] - before) / 2**20
        # Otherwise each of the two waits now and then until Python has looked through the millions
        # of objects.
        gc.collect()
        gc.freeze()
        _, first, theirs, last = (
            search_seconds(each, topics, place.depth) for each in (index, index, peer, index)
        )
    return (first + last) / 2 / count, theirs / count, gib


def search_seconds(stage: FirstStage, topics: list[Topic], depth: int) -> float:
    """Seconds to search for the topics."""
    started = time.perf_counter()
    list(stage.retrieve(topics, fields=("title",), depth=depth))
    return time.perf_counter() - started


def chosen_ids(place: Place) -> list[str]:
    """Ids of so many of the corpus, drawn at random."""
    with DocumentStore(place.index) as store:
        units = place.units(store)[-1]
        return units.get_ids(random.Random(0).choices(range(len(units)), k=_BY_ID))


def read_by_id(place: Place, ids: list[str]) -> float:
    """Seconds to open the store and read documents by their ids, one after the other."""
    started = time.perf_counter()
    with DocumentStore(place.index) as store:
        read = store.get if place.task == "comparative" else store.parts.get
        for unit_id in ids:
            read(unit_id)
    return time.perf_counter() - started


def command(place: Place) -> tuple[float, float]:
    """Seconds of `touche-llm retrieve` over the index, and those of them before its stage began."""
    out = place.folder / f"run-{place.task}"
    flags = {
        "task": place.task,
        "topics": place.topics,
        "corpus": place.corpus,
        "index": place.index,
        "out": out,
    }
    given = [word for name, value in flags.items() for word in (f"--{name}", value)]
    pool = ["--set", f"sentences.pool={place.depth}"] if place.task == "sentence_pairs" else []
    started = time.perf_counter()
    # The same folder serves searches for other topics.
    run_command("retrieve", *given, "--depth", place.depth, "--overwrite", *pool)
    seconds = time.perf_counter() - started
    return seconds, seconds - read_stages(out)["retrieve"]["seconds"]


def forget(folder: Path) -> None:
    """Drop the files of a folder from the page cache, so that the next process reads them from disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def _megabytes(*paths: Path) -> float:
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measured(place: Place) -> Iterator[Figure]:
    """All figures of a corpus."""
    storing, used = run_alone(stored, place)
    yield Figure("store the corpus", f"{storing:.1f} s ({used})")
    indexing, used_to_index = run_alone(indexed, place)
    yield Figure("tokenise and index", f"{indexing:.1f} s ({used_to_index})")
    total, peak = storing + indexing, max(used.peak, used_to_index.peak)
    yield Figure("both", f"{total:.1f} s")
    yield Figure("peak memory of both", f"{peak:.2f} GiB")
    bm25 = list(place.index.glob("bm25-*"))
    yield Figure(
        "on disk",
        f"{_megabytes(place.index):,.0f} MB, of it {_megabytes(*bm25):,.0f} MB of BM25",
        peer=f"the corpus file has {_megabytes(place.corpus):,.0f} MB",
    )

    # It reads all that searching needs, so that no row but those that say so waits for the disk.
    run_alone(searched, place)
    result, _ = run_alone(searched, place)
    (seconds, before), used = run_alone(command, place)
    count = len(result.second_round)
    yield Figure(
        f"touche-llm retrieve, {count} topics, {place.depth:,} each, index in the page cache",
        f"{seconds:.2f} s ({used.cpu:.2f} s of the cores)",
    )
    yield Figure("  of it Python and its imports", f"{before:.2f} s")
    yield Figure("  open the index, in another process", f"{result.opening:.2f} s")
    yield Figure("  find the candidates, in that process", f"{result.first_round:.2f} s")
    mean = sum(result.second_round) / count
    yield Figure(
        "queries per second, topics searched again", f"{1 / mean:,.0f} ({1000 * mean:.2f} ms each)"
    )
    memory = result.anonymous + result.mapped
    yield Figure("memory after the queries", f"{memory:,.0f} MiB")
    yield Figure("  its own", f"{result.anonymous:,.0f} MiB")
    yield Figure("  mapped files: pages of the system's cache", f"{result.mapped:,.0f} MiB")
    forget(place.index)
    (seconds, _), _ = run_alone(command, place)
    yield Figure(
        "touche-llm retrieve with no file of the index in the page cache", f"{seconds:.2f} s"
    )
    if place.task == "comparative":
        searches = min(_PEER_SEARCHES, count)
        (ours, theirs, gib), _ = run_alone(compared, place, searches)
        yield Figure(
            f"queries per second, {searches} topics",
            f"{1 / ours:,.0f} ({1000 * ours:.2f} ms each), {theirs / ours:,.0f} times the peer's",
            f"rank-bm25: {1 / theirs:.2f} ({theirs:.2f} s each), {gib:.1f} GiB",
        )
    ids, _ = run_alone(chosen_ids, place)
    run_alone(read_by_id, place, ids)
    for where in ("index in the page cache", "no file of the index in the page cache"):
        if where.startswith("no"):
            forget(place.index)
        seconds, _ = run_alone(read_by_id, place, ids)
        yield Figure(
            f"open the store, {_BY_ID:,} random documents by id, {where}", f"{seconds:.3f} s"
        )


def main() -> None:
    """Write the corpora and measure both."""
    parser = parse_sizes(
        __doc__, passages=(1, PASSAGES), sentences=(1, SENTENCES), topics=(1, 50), depth=(1, 1000)
    )
    options = parser.parse_args()
    corpora: tuple[tuple[TaskName, str, int, Callable[[Path, int], None]], ...] = (
        ("comparative", "passages", options.passages, write_passages),
        ("sentence_pairs", "sentences", options.sentences, write_arguments),
    )
    for task, what, size, write in corpora:
        with tempfile.TemporaryDirectory() as name:
            place = Place(task, Path(name), options.depth)
            write(place.corpus, size)
            write_topics(place.topics, options.topics, task)
            show(f"First stage, {size:,} {what}", measured(place))


if __name__ == "__main__":
    main()
