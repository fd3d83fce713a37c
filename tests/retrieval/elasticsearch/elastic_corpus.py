"""A small corpus and a server for it: what the tests of Elasticsearch share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.fake_elasticsearch import FakeElasticsearch, settings_for
from touche_llm.corpus.json_lines import read_passages
from touche_llm.data.records import Candidate, Topic
from touche_llm.retrieval.elasticsearch import META, ElasticIndex, ElasticManifest, load_corpus
from touche_llm.retrieval.settings import QueryField
from touche_llm.tasks import get_task

SOME = {"d1": "Tea is better than coffee.", "d2": "Coffee wakes people up.", "d3": "Cars are fast."}


def corpus_file(folder: Path, lines: dict[str, str] | list[tuple[str, str]]) -> Path:
    path = folder / "corpus.jsonl"
    pairs = lines.items() if isinstance(lines, dict) else lines
    path.write_text(
        "".join(json.dumps({"id": ident, "contents": text}) + "\n" for ident, text in pairs)
    )
    return path


def numbered(count: int) -> dict[str, str]:
    return {f"d{n:03d}": f"text number{n} of water" for n in range(count)}


class Loader:
    """Loads a corpus, and keeps the warnings."""

    def __init__(self, server: FakeElasticsearch, corpus: Path) -> None:
        self.server, self.corpus = server, corpus
        self.notices: list[str] = []

    def __call__(
        self,
        *,
        k1: float = 1.5,
        b: float = 0.75,
        skip_bad_lines: bool = False,
        read: Any = read_passages,
        **changes: Any,
    ) -> ElasticManifest:
        work = load_corpus(
            self.corpus,
            read,
            settings_for(self.server, **changes),
            k1=k1,
            b=b,
            skip_bad_lines=skip_bad_lines,
            warn=self.notices.append,
        )
        return asyncio.run(work)


@contextmanager
def opened(
    server: FakeElasticsearch, *, k1: float = 1.5, b: float = 0.75, **changes: Any
) -> Iterator[ElasticIndex]:
    with closing(
        ElasticIndex(
            get_task("comparative"), settings_for(server, **changes), k1=k1, b=b, warn=print
        )
    ) as index:
        yield index


def retrieve(
    index: ElasticIndex,
    topics: list[Topic],
    depth: int,
    fields: tuple[QueryField, ...] = ("title",),
) -> list[list[Candidate]]:
    """The rankings, with `done` called once a topic."""
    done: list[None] = []
    rankings = asyncio.run(index.search(topics, fields, depth, lambda: done.append(None)))
    assert len(done) == len(topics)
    return rankings


def texts_in(server: FakeElasticsearch, name: str = "touche-llm") -> dict[str, str]:
    """The documents that the server holds."""
    return {ident: each["text"] for ident, each in server.indices[name].documents.items()}


def complete(server: FakeElasticsearch, name: str = "touche-llm") -> bool:
    """Whether the index says that all is there."""
    manifest = server.indices[name].mappings.get("_meta", {}).get(META, {})
    return manifest.get("documents") is not None
