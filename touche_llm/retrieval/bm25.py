"""BM25 over an index on disk, with bm25s."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from touche_llm.corpus.store import TextTable, report_damage
from touche_llm.data.files import read_record, replace_folder, write_records
from touche_llm.data.folder_files import BM25_FILES
from touche_llm.data.json_records import JsonModel
from touche_llm.data.scratch import recover
from touche_llm.errors import DataError
from touche_llm.retrieval.base import FirstStage
from touche_llm.retrieval.postings import Block, read_postings
from touche_llm.text import analysis

FORMAT = 1


class Bm25Settings(BaseModel):
    """Settings that an index is built with: its scores are computed then, so a change needs a new index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # The variants of bm25s that give 0 to a document without a term of the query. `robertson` ranks as rank-bm25 does
    # (tests/comparison), apart from terms in more than half of the documents.
    method: Literal["robertson", "lucene", "atire"] = "robertson"
    k1: float = Field(default=1.5, ge=0.0, le=100.0)
    b: float = Field(default=0.75, ge=0.0, le=1.0)


class Bm25Manifest(JsonModel):
    """What a BM25 index was made from and with."""

    format: int
    settings: Bm25Settings
    analysis: str
    bm25s: str
    corpus_sha256: str
    documents: int


class Bm25Index(FirstStage):
    """A BM25 index of documents, or of their parts, memory-mapped."""

    def __init__(self, units: TextTable, index: Any) -> None:
        """Use `open_index` or `ensure_index`."""
        super().__init__(units)
        self._index = index
        self._analyzer = analysis.Analyzer()

    def scores(self, query: str) -> NDArray[np.float32]:
        """See FirstStage; all 0 where no word of the query occurs in the corpus."""
        ends, data = self._index.scores["indptr"], self._index.scores["data"]
        known = self._index.get_tokens_ids(self._analyzer.analyze(query))
        # A term in more than half of the documents says nothing (robertson) and is in more rows than all others.
        known = [term for term in known if data[ends[term]] > 0]
        if not known:
            return np.zeros(len(self.units), dtype=np.float32)
        scores: NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return scores


def get_index_folder(units: TextTable) -> Path:
    """Where the BM25 index of documents, or of parts, lies."""
    return units.folder / f"bm25-{units.table}"


def ensure_index(units: TextTable, settings: Bm25Settings, notify: Callable[[str], None]) -> Bm25Index:
    """The BM25 index of documents or parts, built unless it is there with these settings.

    Interrupting leaves the old index or none.
    """
    folder = get_index_folder(units)
    recover(folder.parent)
    if (folder / "manifest.json").exists():
        stale = _why_stale(_read_manifest(folder), settings, units)
        if stale is None:
            return open_index(units, settings)
        notify(f"{folder}: {stale}; indexing again")
    else:
        notify(f"indexing {len(units):,} {units.noun} in {folder}")
    _build(units, settings, folder)
    return open_index(units, settings)


def open_index(units: TextTable, settings: Bm25Settings) -> Bm25Index:
    """Open the BM25 index of documents or parts.

    Raises:
        DataError: there is none, or one of other settings or another corpus.
    """
    import bm25s

    folder = get_index_folder(units)
    recover(folder.parent)
    if not (folder / "manifest.json").exists():
        raise DataError(f"{folder}: no BM25 index; build one with `touche-llm index`")
    stale = _why_stale(_read_manifest(folder), settings, units)
    if stale is not None:
        raise DataError(f"{folder}: {stale}; run `touche-llm index` with these settings, or ask for the index's own")
    with report_damage(folder, "BM25 index"):
        index = bm25s.BM25.load(folder, mmap=True)
        # Slices of a numpy.memmap take ten times as long as those of an array, which can have the same memory.
        index.scores |= {name: np.asarray(index.scores[name]) for name in ("data", "indices", "indptr")}
        return Bm25Index(units, index)


def _read_manifest(folder: Path) -> Bm25Manifest:
    return read_record(folder / "manifest.json", Bm25Manifest, "index manifest")


def _why_stale(manifest: Bm25Manifest, settings: Bm25Settings, units: TextTable) -> str | None:
    wanted = _manifest(units, settings)
    if manifest.corpus_sha256 != wanted.corpus_sha256:
        return "the index is of another state of the corpus"
    for name, value in wanted.settings.model_dump().items():
        old = getattr(manifest.settings, name)
        if old != value:
            return f"the index has {name} {old}, not {value}"
    if manifest != wanted:
        return "the index was built by another version of this program or of bm25s"
    return None


def _manifest(units: TextTable, settings: Bm25Settings) -> Bm25Manifest:
    import bm25s

    return Bm25Manifest(
        format=FORMAT,
        settings=settings,
        analysis=analysis.NAME,
        bm25s=bm25s.__version__,
        corpus_sha256=units.manifest.sha256,
        documents=len(units),
    )


def _build(units: TextTable, settings: Bm25Settings, folder: Path) -> None:
    import bm25s

    vocabulary, blocks = read_postings(units)
    if not vocabulary:
        raise DataError(f"{units.manifest.corpus}: no word to index in it")
    index = bm25s.BM25(method=settings.method, k1=settings.k1, b=settings.b)
    index.vocab_dict = vocabulary
    index.nonoccurrence_array = None
    index.scores = {**_columns(blocks, len(vocabulary), settings), "num_docs": len(units)}
    with replace_folder(folder, BM25_FILES) as building:
        index.save(building, show_progress=False)
        write_records(building / "manifest.json", [_manifest(units, settings)])


def _columns(blocks: list[Block], terms: int, settings: Bm25Settings) -> dict[str, NDArray[Any]]:
    """The scores of all terms as columns of a sparse matrix, as `bm25s.BM25.index` computes them, to the bit.

    That takes the postings as Python lists, 5 GB of them for a million passages.

    Args:
        blocks: in row order.
        terms: how many there are in all.
        settings: method, k1 and b.
    """
    frequency = np.zeros(terms, dtype=np.int64)
    for block in blocks:
        frequency[block.terms] += block.rows_of_term
    lengths = np.concatenate([block.lengths for block in blocks])
    # The part of the denominator that is the same for all terms of a row.
    norm = settings.k1 * ((1 - settings.b) + settings.b * lengths / lengths.mean())
    idf = _idf(frequency, len(lengths), settings.method)
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


def _idf(frequency: NDArray[np.int64], rows: int, method: str) -> NDArray[np.float32]:
    """Kamphuis et al., Which BM25 do you mean?, ECIR 2020; Robertson's is no less than 0."""
    if method == "atire":
        odds = rows / frequency
    else:
        odds = (rows - frequency + 0.5) / (frequency + 0.5)
        odds = np.maximum(odds, 1.0) if method == "robertson" else 1 + odds
    # The logarithm of numpy can differ in the last bit.
    return np.fromiter(map(math.log, odds.tolist()), dtype=np.float32, count=len(odds))
