"""Dense index: vectors of all documents from an embedding model, made once and resumed after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from touche_llm.corpus.store import TextTable, report_damage
from touche_llm.data.concurrency import map_in_order
from touche_llm.data.files import read_record, write_records
from touche_llm.data.records import Candidate, Model, Topic
from touche_llm.engines.pooling import PoolingClient
from touche_llm.engines.settings import Address, TemplateConfig, TextTemplates
from touche_llm.errors import DataError
from touche_llm.llm.answer_key import hash_content
from touche_llm.llm.protocol import EngineInfo
from touche_llm.retrieval.bm25 import open_stage
from touche_llm.retrieval.registry import Retriever, register
from touche_llm.retrieval.selection import select_candidates
from touche_llm.settings.section import AnswerKey, NamedSection, Option, Scope
from touche_llm.tasks.task import Task
from touche_llm.text.sanitize import sanitize

# Bytes of the rows that are multiplied at a time, as float32.
_BLOCK_BYTES = 64 * 2**20
# Bytes of all scores that are held at a time.
_SCORE_BYTES = 256 * 2**20
_FLOAT32_BYTES = 4
# Max difference between 1 and the length of a stored unit vector, whose values are rounded to 11
# bits. A row of zeros, or of which a killed process wrote a part, has another length.
_ROUNDING = 0.01


class VectorFile:
    """Unit vectors by row in float16, as a `.npy` file; a row of zeros has no vector yet.

    A killed process loses no row that it stored, since the system writes the mapped pages.
    """

    def __init__(self, path: Path, shape: tuple[int, int], mode: Literal["r", "r+"] = "r") -> None:
        """Open the file to read it, or with `r+` to store vectors too.

        Raises:
            DataError: The file is missing, truncated, or not an array of float16 of this shape.
        """
        with report_damage(path.parent, "vectors"):
            self._array: np.memmap[Any, Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
            dtype = self._array.dtype
            has_form = dtype == np.dtype("<f2") and self._array.shape == shape
            if not has_form or not self._array.flags.c_contiguous:
                raise ValueError(
                    f"{dtype} of shape {self._array.shape}, not float16 of shape {shape}"
                )

    @classmethod
    def create(cls, path: Path, shape: tuple[int, int]) -> None:
        """Write a file of zeros, without reserving the space on disk."""
        np.lib.format.open_memmap(path, "w+", np.dtype("<f2"), shape).flush()

    def store(self, rows: Sequence[int], vectors: NDArray[np.float32]) -> None:
        """Store the vectors of rows, of shape (rows, dimensions), scaled to unit length."""
        self._array[list(rows)] = scale_to_unit(vectors).astype(np.float16)

    def find_missing(self) -> NDArray[np.int64]:
        """Return the rows without a vector, ascending."""
        # A file without rows has no blocks.
        lengths = np.zeros(len(self._array))
        for start, block in self._read_blocks():
            lengths[start : start + len(block)] = np.linalg.norm(block, axis=1)

        has_vector = np.abs(lengths - 1) <= _ROUNDING
        # NaN compares as False, so that such a row has no vector either.
        return np.flatnonzero(~has_vector)

    def score(self, queries: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all rows for each query, of shape (rows,): (1 + cosine)/2, from 0 to 1.

        Memory is bounded: only so many queries are multiplied at a time that their scores take 256
        MiB, or one.

        Args:
            queries: Vectors of any length other than 0, of shape (queries, dimensions).
        """
        unit_queries = scale_to_unit(queries)
        bytes_per_query = _FLOAT32_BYTES * max(len(self._array), 1)
        group_size = max(_SCORE_BYTES // bytes_per_query, 1)
        for first in range(0, len(unit_queries), group_size):
            group = unit_queries[first : first + group_size]
            yield from self._score_group(group)

    def _score_group(self, unit_queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores of all rows, of shape (queries, rows), for queries of length 1."""
        columns = np.ascontiguousarray(unit_queries.T)
        scores = np.empty((len(unit_queries), len(self._array)), dtype=np.float32)
        for start, block in self._read_blocks():
            scores[:, start : start + len(block)] = (block @ columns).T

        # In place, since the scores take most of the memory.
        np.add(scores, 1, out=scores)
        np.divide(scores, 2, out=scores)
        np.clip(scores, 0, 1, out=scores)
        return scores

    def _read_blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield blocks of rows as float32, with their first rows."""
        bytes_per_row = _FLOAT32_BYTES * self._array.shape[1]
        size = max(_BLOCK_BYTES // bytes_per_row, 1)
        for start in range(0, len(self._array), size):
            yield start, self._array[start : start + size].astype(np.float32)


def scale_to_unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors scaled to length 1."""
    scaled: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


FORMAT = 1
_MANIFEST = "manifest.json"
_VECTORS = "vectors.npy"


class DenseSettings(TemplateConfig):
    """Settings of dense retrieval.

    Attributes:
        dimensions: Length of the vectors, for models that can shorten them; None for the model's
            own.
        pool: Documents of each ranking that `hybrid` fuses, or more if the depth is greater.
        weight: Weight of the dense ranking in `hybrid`; that of BM25 has 1.
        k: Constant of reciprocal rank fusion in `hybrid`.
    """

    # As published with the models; e5 is that of e5-base-v2 and its sizes.
    presets: ClassVar[Mapping[str, TextTemplates]] = {
        "plain": TextTemplates(),
        "qwen3": TextTemplates(query="Instruct: {instruction}\nQuery:{query}"),
        "bge": TextTemplates(
            query="Represent this sentence for searching relevant passages: {query}"
        ),
        "e5": TextTemplates(query="query: {query}", document="passage: {document}"),
    }

    url: Annotated[
        Address | None,
        Option(
            "--embeddings-url",
            "Server of the embedding model, for dense and hybrid",
            "Retrieval",
            metavar="URL",
        ),
        Scope.DELIVERY,
        AnswerKey.STAYS_OUT,
    ] = None
    model: Annotated[
        str | None,
        Option("--embeddings-model", "Its served name, if several", "Retrieval", metavar="NAME"),
        AnswerKey.ENTERS,
    ] = None
    preset: Annotated[
        str,
        Option(
            "--embeddings-preset",
            f"Instructions before its texts: {', '.join(presets)}",
            "Retrieval",
            metavar="NAME",
        ),
        AnswerKey.ENTERS,
    ] = "plain"
    dimensions: Annotated[int | None, AnswerKey.ENTERS] = Field(None, ge=1, le=16384)
    pool: Annotated[int, AnswerKey.STAYS_OUT] = Field(1000, ge=1)
    weight: Annotated[float, AnswerKey.STAYS_OUT] = Field(1.0, gt=0.0, allow_inf_nan=False)
    k: Annotated[float, AnswerKey.STAYS_OUT] = Field(60.0, ge=0.0, allow_inf_nan=False)


class DenseManifest(Model):
    """Source of the vectors of an index.

    Attributes:
        context: Context to which documents were truncated; None for the server's own.
        template: Template of the documents, with its instruction.
        requested: Length of the vectors that was requested; None for the model's own.
        dimensions: Length of the vectors.
        is_complete: Whether every document has a vector.
    """

    format: int
    model: str
    revision: str
    context: int | None
    template: str
    requested: int | None
    dimensions: int
    corpus_sha256: str
    documents: int
    is_complete: bool


class DenseIndex:
    """Index of the vectors of all documents by one model, with one template, in a folder of its own."""

    def __init__(self, table: TextTable, settings: DenseSettings, info: EngineInfo) -> None:
        """Look for the index; nothing is written.

        Args:
            table: Documents.
            settings: Settings of the embedding model.
            info: Description of the model, by its server.

        Raises:
            DataError: The index is damaged, or of another corpus.
        """
        self._table = table
        self._settings = settings
        source = {
            "model": info.model,
            "revision": info.revision,
            # Not that of the server: to serve the model with a longer one would be to embed all
            # documents again.
            "context": settings.context,
            "template": settings.render_document("{document}"),
            "requested": settings.dimensions,
        }
        source_hash = hash_content("dense index", **source)[:8]
        self.folder = table.folder / f"dense-{source_hash}"
        self._source = {
            **source,
            "format": FORMAT,
            "corpus_sha256": table.manifest.sha256,
            "documents": len(table),
        }
        self._manifest = self._read_manifest()

    def _read_manifest(self) -> DenseManifest | None:
        """Read the manifest; None if no document was embedded yet.

        Raises:
            DataError: It is damaged, or of another corpus.
        """
        path = self.folder / _MANIFEST
        if not path.exists():
            return None

        manifest = read_record(path, DenseManifest, "an index manifest")
        if manifest.model_dump(include=set(self._source)) != self._source:
            raise DataError(
                f"{self.folder}: vectors of another corpus, or of another version of this program; delete the "
                "folder and index again"
            )
        return manifest

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors; None before the first document is embedded."""
        return None if self._manifest is None else self._manifest.dimensions

    def find_missing(self) -> NDArray[np.int64]:
        """Return the rows of the documents without a vector, ascending.

        Reads all vectors unless it is complete.
        """
        if self._manifest is None:
            return np.arange(len(self._table))
        if self._manifest.is_complete:
            return np.empty(0, dtype=np.int64)
        return self._open(self._manifest).find_missing()

    async def embed_missing(self, client: PoolingClient, done: Callable[[], None]) -> None:
        """Embed the documents without a vector, at least one; each vector is stored as it arrives.

        Args:
            client: Client of the embedding model.
            done: Is called for each document.

        Raises:
            EngineError: The server failed; vectors so far are stored.
            PromptError: The template leaves no room for a document.
        """
        first_rows, *other_rows = split_rows(self.find_missing(), client.batch)
        # The length of the vectors is known with the first ones.
        first_vectors = await self.embed(client, first_rows)
        manifest = self._manifest or self._create(dimensions=first_vectors.shape[1])
        file = self._open(manifest, "r+")
        _store(file, first_rows, first_vectors, done)

        embed_and_store = partial(self._embed_and_store, client=client, file=file, done=done)
        await map_in_order(embed_and_store, other_rows, client.concurrency)

        # Another process may have begun the file anew.
        missing = file.find_missing()
        if len(missing) > 0:
            raise DataError(
                f"{self.folder}: {len(missing)} documents still have no vector; run the same command again"
            )
        self._write_manifest(manifest.model_copy(update={"is_complete": True}))

    async def _embed_and_store(
        self, rows: range, *, client: PoolingClient, file: VectorFile, done: Callable[[], None]
    ) -> None:
        """Store the vectors of rows in a file."""
        vectors = await self.embed(client, rows)
        _store(file, rows, vectors, done)

    def _create(self, dimensions: int) -> DenseManifest:
        """Write an index without vectors, and return its manifest."""
        self.folder.mkdir(exist_ok=True)
        VectorFile.create(self.folder / _VECTORS, (len(self._table), dimensions))
        manifest = DenseManifest(**self._source, dimensions=dimensions, is_complete=False)
        self._write_manifest(manifest)
        return manifest

    def retrieve(
        self, topics: list[Topic], queries: NDArray[np.float32], depth: int
    ) -> Iterator[list[Candidate]]:
        """Yield the `depth` documents whose vectors are most similar to that of each topic's query.

        `queries` has the vectors of the queries, of shape (topics, dimensions).
        """
        assert self._manifest is not None, "documents are embedded before they are retrieved"
        vectors = self._open(self._manifest)
        for topic, scores in zip(topics, vectors.score(queries), strict=True):
            yield select_candidates(topic, scores, self._table.get_ids, depth)

    async def embed(self, client: PoolingClient, rows: range) -> NDArray[np.float32]:
        """Return the vectors of rows, of shape (rows, dimensions), without storing them.

        Raises:
            EngineError: The server failed.
            PromptError: The template leaves no room for a document.
        """
        render = self._settings.render_document
        ids = self._table.get_ids(list(rows))
        texts = self._table.read_texts(rows.start, rows.stop)

        inputs: list[str] = []
        for document_id, text in zip(ids, texts, strict=True):
            fitted = await client.fit(render, sanitize(text), document_id=document_id)
            inputs.append(render(fitted))

        contents = await client.embed_batch(inputs)
        return read_vectors(contents)

    def _open(self, manifest: DenseManifest, mode: Literal["r", "r+"] = "r") -> VectorFile:
        shape = (len(self._table), manifest.dimensions)
        return VectorFile(self.folder / _VECTORS, shape, mode)

    def _write_manifest(self, manifest: DenseManifest) -> None:
        write_records(self.folder / _MANIFEST, [manifest])
        self._manifest = manifest


def _store(
    file: VectorFile, rows: range, vectors: NDArray[np.float32], done: Callable[[], None]
) -> None:
    """Store the vectors of rows in a file, and call `done` for each row."""
    file.store(rows, vectors)
    for _ in rows:
        done()


def find_dense_problem(task: Task) -> str | None:
    """Return why a task cannot be searched by vectors; None if it can.

    Those of all sentences would be too many.
    """
    if not task.sentence_aspects:
        return None
    return (
        f"{task.name} retrieves sentences, and dense and hybrid search whole documents; use bm25, and "
        "rank its candidates with the step cross_encoder"
    )


def read_vectors(contents: list[bytes]) -> NDArray[np.float32]:
    """Return vectors from their little-endian float32 values, of shape (vectors, dimensions)."""
    return np.stack([np.frombuffer(content, "<f4") for content in contents])


def split_rows(rows: NDArray[np.int64], size: int) -> list[range]:
    """Return ascending rows as ranges of at most `size` consecutive rows."""
    if len(rows) == 0:
        return []

    gaps = np.flatnonzero(np.diff(rows) != 1) + 1
    parts: list[range] = []
    for consecutive in np.split(rows, gaps):
        end = int(consecutive[-1]) + 1
        for start in range(int(consecutive[0]), end, size):
            parts.append(range(start, min(start + size, end)))
    return parts


register(
    Retriever(
        name="dense",
        help="vectors",
        method=__name__,
        section=NamedSection(name="dense", settings=DenseSettings),
        needs_embeddings=True,
        find_problem=find_dense_problem,
        order=30,
    )
)
register(
    Retriever(
        name="hybrid",
        help="bm25 and dense",
        method=f"reciprocal rank fusion of bm25s.BM25 and {__name__}",
        section=NamedSection(name="dense", settings=DenseSettings),
        open_stage=open_stage,
        has_index=True,
        needs_embeddings=True,
        find_problem=find_dense_problem,
        order=40,
    )
)
