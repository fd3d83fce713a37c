"""BM25 over an index on disk, with bm25s."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from touche_llm.corpus.store import DocumentStore
from touche_llm.errors import DataError
from touche_llm.files import read_record, whole_folder, write_records
from touche_llm.records import Candidate, Topic
from touche_llm.retrieval import analysis
from touche_llm.retrieval.top import query_text, top_candidates

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


class Bm25Index:
    """A BM25 index of the documents of a store, memory-mapped."""

    def __init__(self, store: DocumentStore, index: Any) -> None:
        """Use `open_index` or `ensure_index`."""
        self._store, self._index = store, index
        self._analyser = analysis.Analyser()

    def retrieve(self, topics: list[Topic], *, fields: tuple[str, ...], depth: int) -> Iterator[list[Candidate]]:
        """The best documents of each topic, topic by topic; empty where no word of the query occurs in the corpus."""
        for topic in topics:
            known = self._index.get_tokens_ids(self._analyser.terms(query_text(topic, fields)))
            # Without a known word there is nothing to score; bm25s would return documents of score 0.
            scores = self._index.get_scores_from_ids(known) if known else np.zeros(0)
            yield top_candidates(topic, scores, self._store.ids_of, depth)


def folder_of(store: DocumentStore) -> Path:
    """Where the BM25 index of a store lies."""
    return store.folder / "bm25"


def ensure_index(store: DocumentStore, settings: Bm25Settings, notify: Callable[[str], None]) -> Bm25Index:
    """The BM25 index of a store, built unless it is there with these settings.

    Interrupting leaves the old index or none.
    """
    folder = folder_of(store)
    if (folder / "manifest.json").exists():
        stale = _why_stale(_read_manifest(folder), settings, store)
        if stale is None:
            return open_index(store, settings)
        notify(f"{folder}: {stale}; indexing again")
    else:
        notify(f"indexing {len(store):,} documents in {folder}")
    _build(store, settings, folder)
    return open_index(store, settings)


def open_index(store: DocumentStore, settings: Bm25Settings) -> Bm25Index:
    """Open the BM25 index of a store.

    Raises:
        DataError: there is none, or one of other settings or another corpus.
    """
    import bm25s

    folder = folder_of(store)
    if not (folder / "manifest.json").exists():
        raise DataError(f"{folder}: no BM25 index; build one with `touche-llm index`")
    stale = _why_stale(_read_manifest(folder), settings, store)
    if stale is not None:
        raise DataError(f"{folder}: {stale}; run `touche-llm index` with these settings, or ask for the index's own")
    try:
        return Bm25Index(store, bm25s.BM25.load(folder, mmap=True))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: damaged BM25 index ({error!r:.80}); delete the folder and index again") from error


def _read_manifest(folder: Path) -> Bm25Manifest:
    return read_record(folder / "manifest.json", Bm25Manifest, "index manifest")


def _why_stale(manifest: Bm25Manifest, settings: Bm25Settings, store: DocumentStore) -> str | None:
    wanted = _manifest(store, settings)
    if manifest.corpus_sha256 != wanted.corpus_sha256:
        return "the index is of another state of the corpus"
    for name, value in wanted.settings.model_dump().items():
        old = getattr(manifest.settings, name)
        if old != value:
            return f"the index has {name} {old}, not {value}"
    if manifest != wanted:
        return "the index was built by another version of this program or of bm25s"
    return None


def _manifest(store: DocumentStore, settings: Bm25Settings) -> Bm25Manifest:
    import bm25s

    return Bm25Manifest(
        format=FORMAT,
        settings=settings,
        analysis=analysis.NAME,
        bm25s=bm25s.__version__,
        corpus_sha256=store.manifest.sha256,
        documents=len(store),
    )


def _build(store: DocumentStore, settings: Bm25Settings, folder: Path) -> None:
    import bm25s

    analyser = analysis.Analyser()
    vocabulary: dict[str, int] = {}
    rows = []
    for text in store.texts():
        rows.append([vocabulary.setdefault(term, len(vocabulary)) for term in analyser.terms(text)])
    if not vocabulary:
        raise DataError(f"{store.manifest.corpus}: no word to index in it")
    index = bm25s.BM25(method=settings.method, k1=settings.k1, b=settings.b)
    index.index((rows, vocabulary), show_progress=False)
    with whole_folder(folder) as building:
        index.save(building, show_progress=False)
        write_records(building / "manifest.json", [_manifest(store, settings)])
