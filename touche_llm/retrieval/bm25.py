"""BM25 over an index on disk, with bm25s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from touche_llm.corpus.store import Units
from touche_llm.errors import DataError
from touche_llm.files import read_record, whole_folder, write_records
from touche_llm.retrieval import analysis
from touche_llm.retrieval.top import FirstStage

FORMAT = 1


class Bm25Settings(BaseModel):
    """Settings that an index is built with: its scores are computed then, so a change needs a new index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # The variants of bm25s that give 0 to a document without a term of the query. `robertson` ranks as rank-bm25 does
    # (tests/comparison), apart from terms in more than half of the documents.
    method: Literal["robertson", "lucene", "atire"] = "robertson"
    k1: float = Field(default=1.5, ge=0.0, le=100.0)
    b: float = Field(default=0.75, ge=0.0, le=1.0)


class Bm25Manifest(BaseModel):
    """What a BM25 index was made from and with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    settings: Bm25Settings
    analysis: str
    bm25s: str
    corpus_sha256: str
    documents: int


class Bm25Index(FirstStage):
    """A BM25 index of documents, or of their parts, memory-mapped."""

    def __init__(self, units: Units, index: Any) -> None:
        """Use `open_index` or `ensure_index`."""
        super().__init__(units)
        self._index = index
        self._analyser = analysis.Analyser()

    def scores(self, query: str) -> NDArray[np.float32]:
        """See FirstStage; all 0 where no word of the query occurs in the corpus."""
        known = self._index.get_tokens_ids(self._analyser.terms(query))
        if not known:
            return np.zeros(len(self.units), dtype=np.float32)
        scores: NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return scores


def folder_of(units: Units) -> Path:
    """Where the BM25 index of documents, or of parts, lies."""
    return units.folder / f"bm25-{units.table}"


def ensure_index(units: Units, settings: Bm25Settings, notify: Callable[[str], None]) -> Bm25Index:
    """The BM25 index of documents or parts, built unless it is there with these settings.

    Interrupting leaves the old index or none.
    """
    folder = folder_of(units)
    if (folder / "manifest.json").exists():
        stale = _why_stale(_read_manifest(folder), settings, units)
        if stale is None:
            return open_index(units, settings)
        notify(f"{folder}: {stale}; indexing again")
    else:
        notify(f"indexing {len(units):,} {units.noun} in {folder}")
    _build(units, settings, folder)
    return open_index(units, settings)


def open_index(units: Units, settings: Bm25Settings) -> Bm25Index:
    """Open the BM25 index of documents or parts.

    Raises:
        DataError: there is none, or one of other settings or another corpus.
    """
    import bm25s

    folder = folder_of(units)
    if not (folder / "manifest.json").exists():
        raise DataError(f"{folder}: no BM25 index; build one with `touche-llm index`")
    stale = _why_stale(_read_manifest(folder), settings, units)
    if stale is not None:
        raise DataError(f"{folder}: {stale}; run `touche-llm index` with these settings, or ask for the index's own")
    try:
        return Bm25Index(units, bm25s.BM25.load(folder, mmap=True))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: damaged BM25 index ({error!r:.80}); delete the folder and index again") from error


def _read_manifest(folder: Path) -> Bm25Manifest:
    return read_record(folder / "manifest.json", Bm25Manifest, "index manifest")


def _why_stale(manifest: Bm25Manifest, settings: Bm25Settings, units: Units) -> str | None:
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


def _manifest(units: Units, settings: Bm25Settings) -> Bm25Manifest:
    import bm25s

    return Bm25Manifest(
        format=FORMAT,
        settings=settings,
        analysis=analysis.NAME,
        bm25s=bm25s.__version__,
        corpus_sha256=units.manifest.sha256,
        documents=len(units),
    )


def _build(units: Units, settings: Bm25Settings, folder: Path) -> None:
    import bm25s

    analyser = analysis.Analyser()
    vocabulary: dict[str, int] = {}
    rows = []
    for text in units.texts():
        rows.append([vocabulary.setdefault(term, len(vocabulary)) for term in analyser.terms(text)])
    if not vocabulary:
        raise DataError(f"{units.manifest.corpus}: no word to index in it")
    index = bm25s.BM25(method=settings.method, k1=settings.k1, b=settings.b)
    index.index((rows, vocabulary), show_progress=False)
    with whole_folder(folder) as building:
        index.save(building, show_progress=False)
        write_records(building / "manifest.json", [_manifest(units, settings)])
