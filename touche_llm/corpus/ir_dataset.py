"""Datasets of ir_datasets (https://ir-datasets.com): their topics, documents and judgments as records."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import orjson

from touche_llm.corpus.args_me import parse_argument
from touche_llm.corpus.json_lines import CorpusFile, OnBadLine, StoreManifest, parse_documents
from touche_llm.data.files import ID_FORM, MAX_LINE, is_word
from touche_llm.data.records import Document, Topic
from touche_llm.data.topics.fields import TOPIC_FIELDS
from touche_llm.data.topics.reading import make_topic
from touche_llm.errors import BadLine, DataError, ToucheError, UsageError, needs_extra
from touche_llm.text.passages import extract_text

# What a document is: a text, an argument of args.me, or such an argument with its sentences.
DocumentKind = Literal["text", "argument", "sentences"]
_FOLDERS = Path(".touche-llm/datasets")
_MAX_CAUSE = 300


def dataset_folder(dataset_id: str) -> Path:
    """Return the folder of a dataset's topics, judgments and index: below the current folder, one for each id."""
    place = hashlib.sha256(dataset_id.encode()).hexdigest()[:8]
    return _FOLDERS / f"{dataset_id.rstrip('/').rpartition('/')[2]}-{place}"


def dataset_index(dataset_id: str) -> Path:
    """Return the default folder of the store of a dataset's documents and its index."""
    return dataset_folder(dataset_id) / "index"


def topics_file(dataset_id: str) -> Path:
    """Return the file of a dataset's topics."""
    return dataset_folder(dataset_id) / "topics.jsonl"


def read_dataset_topics(dataset_id: str) -> list[Topic]:
    """Return the topics of a dataset; the title is the query's title, else its text.

    Raises:
        UsageError: There is no such dataset, it has no topics, or the library is missing.
        DataError: The topics are not there and cannot be downloaded, or one has no text.
    """
    with _report_failures(dataset_id, "topics"):
        topics = []
        for number, query in enumerate(
            _load(dataset_id, "queries", "topics").queries_iter(), start=1
        ):
            fields = {name: getattr(query, name, None) for name in TOPIC_FIELDS}
            fields |= {
                "number": str(query.query_id),
                "title": fields["title"] or query.default_text(),
            }
            topics.append(make_topic(fields, str(number), _place(dataset_id)))
    return topics


def read_dataset_judgments(
    dataset_id: str, aspects: Collection[str]
) -> dict[str, list[tuple[str, str, str]]]:
    """Return the judgments of a dataset for each of the aspects that it judges, in its order.

    A judgment is `(topic id, document id, grade or label)`; it has a field of the name of each
    aspect, as `relevance`.

    Raises:
        UsageError: There is no such dataset, it judges none of these aspects, or the library is
            missing.
        DataError: The judgments are not there and cannot be downloaded.
    """
    # One of its classes prints the path of its file.
    with _report_failures(dataset_id, "judgments"), redirect_stdout(StringIO()):
        found = list(_load(dataset_id, "qrels", "judgments").qrels_iter())
        judged = {
            aspect: [
                (str(each.query_id), str(each.doc_id), _to_text(getattr(each, aspect)))
                for each in found
            ]
            for aspect in aspects
            if found and hasattr(found[0], aspect)
        }
    if not judged:
        raise UsageError(
            f"{_place(dataset_id)}: judges none of {', '.join(aspects)}; give the judgments as files"
        )
    return judged


def _to_text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


class DatasetDocuments:
    """Documents of a dataset, the source of a document store."""

    def __init__(self, dataset_id: str, kind: DocumentKind) -> None:
        """Name the documents; the library is loaded when they are read."""
        self.dataset_id, self.kind = dataset_id, kind
        # In a manifest: the id after `irds:`, as in PyTerrier, and the kind.
        self.name, self.keys = _place(dataset_id), kind
        self._digest = hashlib.sha256()

    def __str__(self) -> str:
        return self.name

    def check(self) -> None:
        """Do nothing: a store does not need its source."""

    def has_changed(self, manifest: StoreManifest) -> bool:
        """Return whether a store is of another dataset; a published dataset keeps its id."""
        return manifest.corpus != self.name

    def identify(self) -> dict[str, Any]:
        """Return the SHA-256 of the documents that were read, for the manifest of a store."""
        return {"size": 0, "mtime_ns": 0, "samples": "", "sha256": self._digest.hexdigest()}

    def read(self, on_bad_line: OnBadLine | None = None) -> Iterator[tuple[int, Document]]:
        """Yield `(number, document)` for each document, one in memory at a time.

        Raises:
            BadLine: A document has no valid id, no text, or not the form of its kind.
            UsageError: There is no such dataset, it has no documents, or a library is missing.
            DataError: The documents are not there and cannot be downloaded.
        """
        self._digest = hashlib.sha256()
        for number, document in parse_documents(self._read_records(), self._parse, on_bad_line):
            parts = [(part.id, part.text) for part in document.parts]
            self._digest.update(
                orjson.dumps((document.id, document.text, document.title, document.side, parts))
            )
            yield number, document

    def _read_records(self) -> Iterator[tuple[int, Any]]:
        with _report_failures(self.dataset_id, "documents"):
            dataset = _load(self.dataset_id, "docs", "documents")
            yield from enumerate(dataset.docs_iter(), start=1)

    def _parse(self, record: Any, number: int) -> Document:
        """Return the document of a record of the library."""
        if self.kind != "text":
            return self._parse_argument(record, number)
        document_id = str(record.doc_id)
        if not is_word(document_id):
            raise BadLine(self, number, f"`doc_id` must be {ID_FORM}, not {document_id!r:.80}")
        try:
            text = _get_text(record)
            text.encode()
            if not text.strip() or len(text) > MAX_LINE:
                raise ValueError(f"no text, or more than {MAX_LINE:,} characters")
        except ValueError as error:
            raise BadLine(self, number, f"document {document_id}: {error}") from error
        return Document(document_id, text)

    def _parse_argument(self, record: Any, number: int) -> Document:
        values: dict[str, Any] = {"id": record.doc_id}
        try:
            if hasattr(record, "premises"):
                values["conclusion"] = record.conclusion
                values["premises"] = [
                    {"text": each.text, "stance": each.stance.name} for each in record.premises
                ]
            else:  # of BEIR, with one premise
                values["conclusion"] = record.title
                values["premises"] = [{"text": record.text, "stance": record.stance}]
            if self.kind == "sentences":
                values["sentences"] = [
                    {"sent_id": each.id, "sent_text": each.text} for each in record.sentences
                ]
        except AttributeError as error:
            wanted = "arguments with sentences" if self.kind == "sentences" else "arguments"
            raise UsageError(
                f"{self}: its documents ({type(record).__name__}) are not {wanted}; name a task over other documents "
                "(`task: NAME`)"
            ) from error
        return parse_argument(values, self, number, is_whole=self.kind == "argument")


# What a document store is built from.
Source = CorpusFile | DatasetDocuments


def _get_text(record: Any) -> str:
    """Return the text of a document; raise ValueError if it has none."""
    # The kind of a document is known by its fields, since the classes of ir_datasets have no common
    # base.
    if hasattr(record, "body"):
        return extract_text(record.body, record.body_content_type)
    if not hasattr(record, "default_text"):
        raise ValueError(f"{type(record).__name__} has no text")
    return str(record.default_text())


def _place(dataset_id: str) -> str:
    return f"irds:{dataset_id}"


def _load(dataset_id: str, kind: Literal["docs", "queries", "qrels"], what: str) -> Any:
    """Return the handler of a dataset.

    Raise UsageError if it does not exist or has none of what is requested.
    """
    import ir_datasets

    try:
        dataset = ir_datasets.load(dataset_id)
    except KeyError as error:
        raise UsageError(
            f"{_place(dataset_id)}: ir_datasets has no such dataset; see https://ir-datasets.com for the ids"
        ) from error
    if not dataset.has(kind):
        raise UsageError(f"{_place(dataset_id)}: has no {what}; give a dataset that has, or files")
    return dataset


@contextmanager
def _report_failures(dataset_id: str, what: str) -> Iterator[None]:
    """Turn errors of the library into one line: each of its classes reads its files, and fails, in its own way."""
    with needs_extra("ir-datasets", "`dataset: ID`"):
        import ir_datasets
    # The library's bars and messages would fill a log file.
    ir_datasets.log.easy().logger().setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        yield
    except ToucheError:
        raise
    except Exception as error:
        place, cause = _place(dataset_id), " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, ImportError):
            raise UsageError(
                f"{place}: {cause}; for WARC files, pip install 'touche-llm[warc]'"
            ) from error
        raise DataError(
            f"{place}: cannot read its {what} ({cause:.{_MAX_CAUSE}}); run this with a network, copy the folder of "
            f"ir_datasets, {ir_datasets.util.home_path()}, or delete a damaged file there; see "
            f" https://ir-datasets.com/{dataset_id.partition('/')[0]}.html"
        ) from error
