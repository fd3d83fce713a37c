"""A search engine that has its documents itself: a file with one document a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import orjson

from touche_llm.data.records import Candidate, Document, Topic
from touche_llm.errors import DataError
from touche_llm.retrieval.corpus import Corpus, CorpusRecord
from touche_llm.retrieval.registry import EngineInputs, LoadedCorpus, Retriever, register
from touche_llm.retrieval.settings import QueryField
from touche_llm.settings.section import NamedSection, Option, Scope, Section


class FileEngineSettings(Section):
    """Settings of the search engine."""

    file: Annotated[
        Path,
        Option("--engine-file", "File of the search engine", "Retrieval"),
        Scope.DELIVERY,
    ] = Path("engine.jsonl")


class FileEngine(Corpus):
    """Documents of a file, found in its order whatever the query."""

    def __init__(self, inputs: EngineInputs) -> None:
        """Read the file; raise DataError if it is missing."""
        settings: FileEngineSettings = inputs.settings
        if not settings.file.is_file():
            raise DataError(f"{settings.file}: not found; load a corpus with `touche-llm index`")
        lines = settings.file.read_text().splitlines()
        self.texts: dict[str, str] = dict(map(orjson.loads, lines))
        self.task = inputs.task
        self.candidates = self
        self.documents = self
        self.description = CorpusRecord(source=str(settings.file), documents=len(self.texts))
        self.empty = f"{settings.file}: has no documents"

    async def search(
        self,
        topics: list[Topic],
        fields: tuple[QueryField, ...],
        depth: int,
        done: Callable[[], None],
    ) -> list[list[Candidate]]:
        """Return the first documents for each topic."""
        rankings: list[list[Candidate]] = []
        for topic in topics:
            ranking = [
                Candidate(topic.id, document_id, rank, 1.0 / rank)
                for rank, document_id in enumerate(list(self.texts)[:depth], start=1)
            ]
            rankings.append(ranking)
            done()
        return rankings

    def get(self, document_id: str) -> Document:
        """Return a document."""
        return Document(document_id, self.texts[document_id])

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids that the file does not have."""
        return [document_id for document_id in document_ids if document_id not in self.texts]


async def load(inputs: EngineInputs, corpus: Path, skip_bad_lines: bool) -> LoadedCorpus:
    """Write the passages of a corpus of JSON lines to the file."""
    settings: FileEngineSettings = inputs.settings
    passages = [orjson.loads(line) for line in corpus.read_text().splitlines()]
    lines = [orjson.dumps([passage["id"], passage["contents"]]) for passage in passages]
    settings.file.write_bytes(b"\n".join(lines))
    return LoadedCorpus(
        documents=len(lines),
        place=str(settings.file),
        columns={"file": str(settings.file)},
    )


def get_name(settings: FileEngineSettings) -> str:
    """Return the name of the documents in reports."""
    return f"engine {settings.file.name}"


def get_file(settings: FileEngineSettings) -> Path:
    """Return the file that pages about a run need."""
    return settings.file


register(
    Retriever(
        name="file_engine",
        help="a file",
        method="order of a file",
        section=NamedSection(name="file_engine", settings=FileEngineSettings),
        open_engine=FileEngine,
        load_corpus=load,
        describe=get_name,
        find_needed_file=get_file,
    )
)
