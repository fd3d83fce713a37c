"""Reader for the documents of TIRA's `rerank.jsonl`, which also contains the first stage.

A line is one document for one topic: `qid`, `query`, `original_query`, `docno`, `text`, `original_document`, `rank` and
`score` (source: TIRA's `ir_datasets_loader.py`). `data.trec_runs.read_candidates` reads the first stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from touche_llm.corpus.json_lines import parse_document, parse_documents, read_json_lines, read_passages
from touche_llm.data.lines import parse_json_object
from touche_llm.data.records import Document
from touche_llm.errors import BadLine


def read_rerank_documents(
    path: Path, on_bad_line: Callable[[BadLine], None] | None = None
) -> Iterator[tuple[int, Document]]:
    """Yield `(line number, document)` for each document of a `rerank.jsonl(.gz)`, at its first occurrence.

    A document occurs once for each topic that retrieved it. One digest per document is kept in memory.

    Args:
        path: Corpus file; gzip is detected by the first bytes.
        on_bad_line: Called with each bad line, which is then skipped; if None, the first one is raised.

    Raises:
        BadLine: The line is not JSON, has no valid `docno` or no `text`, or the document had another text before.
        DataError: The file cannot be read, or its gzip stream is damaged or truncated.
    """
    seen: dict[str, tuple[int, bytes]] = {}

    def parse_first(raw: bytes, line: int) -> Document | None:
        document = parse_document(parse_json_object(raw, path, line), path, line)
        digest = hashlib.sha256(document.text.encode()).digest()
        before, text = seen.setdefault(document.id, (line, digest))
        if text != digest:
            raise BadLine(path, line, f"document {document.id}: another text than in line {before}")
        return document if before == line else None

    return parse_documents(read_json_lines(path), parse_first, on_bad_line)


def read_collection(path: Path, on_bad_line: Callable[[BadLine], None] | None = None) -> Iterator[tuple[int, Document]]:
    """Read a `rerank.jsonl`, detected by its name, or a plain collection in JSON Lines."""
    read = read_rerank_documents if path.name.startswith("rerank.jsonl") else read_passages
    return read(path, on_bad_line)
