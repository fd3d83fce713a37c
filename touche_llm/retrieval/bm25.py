"""BM25 index on disk, with bm25s."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from touche_llm.corpus.store import BM25_FILES, TextTable, report_damage
from touche_llm.data.io import read_record, recover, replace_folder, write_records
from touche_llm.data.records import Model
from touche_llm.data.settings import Option, Section
from touche_llm.errors import DataError, Warn
from touche_llm.retrieval.base import FirstStage
from touche_llm.retrieval.postings import Block, read_postings
from touche_llm.text import analysis
from touche_llm.text.analysis import Analyzer


class OkapiIndex(FirstStage):
    """`rank_bm25.BM25Okapi` index of documents or of their parts.

    Terms in more than half of the documents get the idf floor of that class, a quarter of the mean idf.
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


class Bm25Settings(Section):
    """Settings of a BM25 index; scores are computed when it is built, so a change requires a new index."""

    # The variants of bm25s in which documents without a query term score 0. `robertson` ranks like rank-bm25
    # (tests/comparison), except for terms in more than half of the documents.
    method: Annotated[
        Literal["robertson", "lucene", "atire"],
        Option("--bm25-method", "Variant of BM25: robertson, lucene or atire", "Retrieval", metavar="NAME"),
    ] = "robertson"
    k1: Annotated[float, Option("--k1", "Term frequency saturation of BM25", "Retrieval")] = Field(
        default=1.5, ge=0.0, le=100.0
    )
    b: Annotated[float, Option("--b", "Length normalisation of BM25", "Retrieval")] = Field(
        default=0.75, ge=0.0, le=1.0
    )


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
        """Use `open_index` or `ensure_index` instead."""
        super().__init__(table)
        self._index = index
        self._analyzer = analysis.Analyzer()

    def score(self, query: str) -> NDArray[np.float32]:
        """Score all rows; see FirstStage."""
        ends, data = self._index.scores["indptr"], self._index.scores["data"]
        terms = self._index.get_tokens_ids(self._analyzer.analyze(query))
        # With `robertson`, terms in more than half of the documents score 0, and they have the longest postings.
        terms = [term for term in terms if data[ends[term]] > 0]
        if not terms:
            return np.zeros(len(self.table), dtype=np.float32)
        scores: NDArray[np.float32] = self._index.get_scores_from_ids(terms)
        return scores


def get_index_folder(table: TextTable) -> Path:
    """Return the folder of the BM25 index of documents or parts."""
    return table.folder / f"bm25-{table.name}"


def ensure_index(table: TextTable, settings: Bm25Settings, warn: Warn) -> Bm25Index:
    """Open the BM25 index of documents or parts; build it if it is missing or has other settings.

    After an interruption the old index remains.
    """
    folder = get_index_folder(table)
    recover(folder.parent)
    if (folder / "manifest.json").exists():
        stale = _why_stale(_read_manifest(folder), settings, table)
        if stale is None:
            return open_index(table, settings)
        warn(f"{folder}: {stale}; indexing again")
    else:
        warn(f"indexing {len(table):,} {table.noun} in {folder}")
    _build(table, settings, folder)
    return open_index(table, settings)


def open_index(table: TextTable, settings: Bm25Settings) -> Bm25Index:
    """Open the BM25 index of documents or parts.

    Raises:
        DataError: The index is missing, or has other settings or another corpus.
    """
    import bm25s

    folder = get_index_folder(table)
    recover(folder.parent)
    if not (folder / "manifest.json").exists():
        raise DataError(f"{folder}: no BM25 index; build one with `touche-llm index`")
    stale = _why_stale(_read_manifest(folder), settings, table)
    if stale is not None:
        raise DataError(f"{folder}: {stale}; run `touche-llm index` with these settings, or use those of the index")
    with report_damage(folder, "BM25 index"):
        index = bm25s.BM25.load(folder, mmap=True)
        # Slicing a numpy.memmap takes ten times as long as slicing an array over the same memory.
        index.scores |= {name: np.asarray(index.scores[name]) for name in ("data", "indices", "indptr")}
        return Bm25Index(table, index)


def _read_manifest(folder: Path) -> Bm25Manifest:
    return read_record(folder / "manifest.json", Bm25Manifest, "index manifest")


def _why_stale(manifest: Bm25Manifest, settings: Bm25Settings, table: TextTable) -> str | None:
    wanted = _make_manifest(table, settings)
    if manifest.corpus_sha256 != wanted.corpus_sha256:
        return "the corpus changed since it was indexed"
    for name, value in wanted.settings.model_dump().items():
        old = getattr(manifest.settings, name)
        if old != value:
            return f"the index has {name} {old}, not {value}"
    if manifest != wanted:
        return "the index was built by another version of this program or of bm25s"
    return None


def _make_manifest(table: TextTable, settings: Bm25Settings) -> Bm25Manifest:
    import bm25s

    return Bm25Manifest(
        format=FORMAT,
        settings=settings,
        analysis=analysis.NAME,
        bm25s=bm25s.__version__,
        corpus_sha256=table.manifest.sha256,
        documents=len(table),
    )


def _build(table: TextTable, settings: Bm25Settings, folder: Path) -> None:
    import bm25s

    vocabulary, blocks = read_postings(table)
    if not vocabulary:
        raise DataError(f"{table.manifest.corpus}: no word to index")
    index = bm25s.BM25(method=settings.method, k1=settings.k1, b=settings.b)
    index.vocab_dict = vocabulary
    index.nonoccurrence_array = None
    index.scores = {**_compute_scores(blocks, len(vocabulary), settings), "num_docs": len(table)}
    with replace_folder(folder, BM25_FILES) as building:
        index.save(building, show_progress=False)
        write_records(building / "manifest.json", [_make_manifest(table, settings)])


def _compute_scores(blocks: list[Block], terms: int, settings: Bm25Settings) -> dict[str, NDArray[Any]]:
    """Compute the sparse score matrix, a column per term, with the same bits as `bm25s.BM25.index`.

    bm25s needs the postings as Python lists, 5 GB for a million passages.
    """
    frequency = np.zeros(terms, dtype=np.int64)
    for block in blocks:
        frequency[block.terms] += block.rows_of_term
    lengths = np.concatenate([block.lengths for block in blocks])
    # Length normalisation: the part of the denominator that all terms of a row share.
    norm = settings.k1 * ((1 - settings.b) + settings.b * lengths / lengths.mean())
    idf = _compute_idf(frequency, len(lengths), settings.method)
    ends = np.concatenate([[0], np.cumsum(frequency)])
    indices = np.empty(ends[-1], dtype=np.int32)
    data = np.empty(ends[-1], dtype=np.float32)
    filled = ends[:-1].copy()
    for block in blocks:
        size = block.rows_of_term
        before = np.cumsum(size) - size
        places = np.repeat(filled[block.terms] - before, size) + np.arange(len(block.rows))
        often = block.frequencies.astype(np.float32)
        weight = (often * (settings.k1 + 1) if settings.method == "atire" else often) / (norm[block.rows] + often)
        indices[places] = block.rows
        data[places] = np.repeat(idf[block.terms], size) * weight
        filled[block.terms] += size
    return {"data": data, "indices": indices, "indptr": ends}


def _compute_idf(frequency: NDArray[np.int64], rows: int, method: str) -> NDArray[np.float32]:
    """Return the idf by Kamphuis et al., Which BM25 do you mean?, ECIR 2020; Robertson's is floored at 0."""
    if method == "atire":
        odds = rows / frequency
    else:
        odds = (rows - frequency + 0.5) / (frequency + 0.5)
        odds = np.maximum(odds, 1.0) if method == "robertson" else 1 + odds
    # numpy's logarithm can differ from that of bm25s in the last bit.
    return np.fromiter(map(math.log, odds.tolist()), dtype=np.float32, count=len(odds))
