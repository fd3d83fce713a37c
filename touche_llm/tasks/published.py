"""Where topics, corpora and judgments of the tasks are published."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from touche_llm.data.records import Topic
from touche_llm.tasks.definition import Strict, Url, read_definition

Role = Literal["corpus", "topics", "relevance", "quality", "stance", "coherence"]
# Characters of an id that name its corpus.
_ID_CHARS = 12


class PublishedFile(Strict):
    """A published file.

    Attributes:
        role: What it holds: a corpus, topics, or the qrels of an aspect.
        url: Where it is.
        bytes: Its size; None if its source states none.
        md5: Its checksum; likewise.
        records: Number of documents, topics or judgments in it; None if unknown.
        holds: Name of the file inside an archive.
        first: Number and title of the first topic.
        numbers: Lowest and highest number of the topics.
        licence: Its licence; None if its source states none.
    """

    name: str
    tasks: list[str] = Field(min_length=1)
    role: Role
    url: Url
    bytes: int | None = Field(None, ge=1)
    md5: str | None = Field(None, pattern=r"^[0-9a-f]{32}$")
    records: int | None = Field(None, ge=1)
    holds: str | None = None
    first: str | None = None
    numbers: tuple[int, int] | None = Field(None, strict=False)
    licence: str | None = None


class RestrictedCorpus(Strict):
    """A corpus that is given out under an agreement.

    Attributes:
        url: Page that says how to get it.
        prefix: Beginning of the ids of its documents, in small letters.
    """

    name: str
    tasks: list[str] = Field(min_length=1)
    url: Url
    prefix: str = Field(min_length=1)


class DocumentIds(Strict):
    """Form of the ids of documents.

    Attributes:
        tasks: Tasks that rank such documents.
        stored: Tasks whose corpus has such documents, while they rank others.
        ids: Regular expression.
    """

    tasks: list[str] = Field(min_length=1)
    stored: list[str] = []
    ids: str


class Published(Strict):
    """All published files of the tasks."""

    files: list[PublishedFile]
    restricted: list[RestrictedCorpus]
    documents: list[DocumentIds]

    def list_topics(self, number: str, title: str) -> list[PublishedFile]:
        """Return the files of topics whose first one has this number and title, in any letter case."""
        first = f"{number} {title}".casefold()
        return [file for file in self.files if file.first is not None and file.first.casefold() == first]

    def find_form(self, document: str) -> DocumentIds | None:
        """Return the form that an id has; None if it has none of them."""
        return next((form for form in self.documents if re.fullmatch(form.ids, document)), None)


def list_topic_tasks(topic: Topic) -> list[str]:
    """Return the tasks whose published topics begin with this one; none if it is another, or a translation."""
    files = read_published().list_topics(topic.id, topic.title)
    return list(dict.fromkeys(task for file in files for task in file.tasks))


def list_corpus_tasks(document_id: str) -> list[str]:
    """Return the tasks whose corpus has documents with ids of this form; none if it is of no known form."""
    form = read_published().find_form(document_id)
    return [] if form is None else [*form.tasks, *form.stored]


def describe_restriction(document_ids: Iterable[str]) -> str:
    """Return a note on texts that may not be redistributed; empty if none of the documents is of such a corpus."""
    beginnings = {document_id[:_ID_CHARS].lower() for document_id in document_ids}
    corpora = [
        f"{corpus.name} ({corpus.url})"
        for corpus in read_published().restricted
        if any(beginning.startswith(corpus.prefix) for beginning in beginnings)
    ]
    return f"holds texts of {' and '.join(corpora)}, which may not be redistributed" if corpora else ""


@cache
def read_published() -> Published:
    """Read the list of published files."""
    return read_definition(Path(__file__).with_name("published.yaml"), Published)
