"""Settings and response cache of the ChatNoir search engine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, cast, get_args
from uuid import UUID

from pydantic import AfterValidator, Field, SecretStr

from touche_llm.data.databases import DatabaseFormat, connect, create_if_empty, describe_opening_error
from touche_llm.data.records import Document, Malformed, Model
from touche_llm.data.settings import Scope, Section, check_address
from touche_llm.errors import DataError, needs_extra

API_KEY_VARIABLE = "CHATNOIR_API_KEY"
_NEEDS_CLIENT = partial(needs_extra, "chatnoir", "`retriever.name: chatnoir`")


def _check_index(name: str) -> str:
    # Imported here because the client is slow to load, and every command reads these settings.
    with _NEEDS_CLIENT():
        from chatnoir_api.model import Index

    if name not in get_args(Index):
        raise ValueError(f"must be one of {', '.join(get_args(Index))}")
    return name


def _check_address(url: str) -> str:
    return check_address(url, API_KEY_VARIABLE) + "/"


class ChatNoirSettings(Section):
    """Settings of ChatNoir; times are in seconds.

    `api_key` overrides the environment variable CHATNOIR_API_KEY and is never written to a file. `leave_out` lists
    documents that are not fetched because ChatNoir cannot deliver them.
    """

    base_url: Annotated[str, AfterValidator(_check_address), Scope.DELIVERY] = "https://chatnoir.eu/"
    index: Annotated[str, AfterValidator(_check_index)] = "clueweb22/b"
    cache: Annotated[Path, Scope.DELIVERY] = Path(".touche-llm/chatnoir.sqlite")
    requests_per_second: Annotated[float, Scope.DELIVERY] = Field(2.0, gt=0.0, le=1000.0)
    page_size: Annotated[int, Scope.DELIVERY] = Field(100, ge=1, le=1000)
    request_timeout: Annotated[float, Scope.DELIVERY] = Field(60.0, gt=0.0)
    retry_for: Annotated[float, Scope.DELIVERY] = Field(300.0, ge=0.0)
    leave_out: tuple[str, ...] = ()
    api_key: SecretStr | None = Field(None, exclude=True, repr=False)

    @property
    def index_id(self) -> str:
        """Id of the index in requests."""
        with _NEEDS_CLIENT():
            from chatnoir_api.model import Index, index_id

        return index_id(cast(Index, self.index))


_FORMAT = DatabaseFormat(
    noun="a ChatNoir cache",
    application=0x746C636E,  # "tlcn"
    version=1,
    statements=(
        "CREATE TABLE searches (base_url TEXT, place TEXT, query TEXT, start INTEGER, size INTEGER, "
        "page TEXT NOT NULL, PRIMARY KEY (base_url, place, query, start, size)) WITHOUT ROWID",
        "CREATE TABLE documents (place TEXT, id TEXT, text TEXT, reason TEXT, PRIMARY KEY (place, id))",
    ),
)


class Hit(Model):
    """Search result: TREC id, ChatNoir's own id and score of a document."""

    document_id: str
    uuid: UUID
    score: float = Field(allow_inf_nan=False)


class Page(Model):
    """Page of results. `unnamed` counts results without TREC id, `total` all results of the query."""

    hits: list[Hit]
    unnamed: int
    total: int


@dataclass(frozen=True, slots=True)
class MissingDocument:
    """Document that ChatNoir finds without usable text."""

    reason: str


class ChatNoirDocuments:
    """SQLite cache of ChatNoir's replies, with the interface of a DocumentStore.

    Each entry is committed when it arrives, so a killed run resumes where it stopped.
    """

    def __init__(self, settings: ChatNoirSettings) -> None:
        """Open or create `settings.cache`; raises DataError if it is a file of another program."""
        self.path = settings.cache
        self._base_url, self._index = settings.base_url, settings.index_id
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as undo:
                self._database = undo.enter_context(closing(connect(self.path.absolute().as_uri())))
                self._database.path = self.path
                create_if_empty(self._database, _FORMAT, self.path)
                undo.pop_all()
        except (sqlite3.Error, OSError) as error:
            raise DataError(describe_opening_error(self.path, _FORMAT.noun, "chatnoir.cache", error)) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def get(self, document_id: str) -> Document:
        """Return a document; raises DataError if the cache has no text of it."""
        text = self.get_text(document_id)
        if isinstance(text, str):
            return Document(document_id, text)
        why = text.reason if text else "retrieve with ChatNoir again"
        raise DataError(f"{self.path}: document {document_id!r} has no text in this cache: {why}")

    def find_unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Return the ids without text in the cache, in the given order."""
        return [ident for ident in dict.fromkeys(document_ids) if not isinstance(self.get_text(ident), str)]

    def get_text(self, document_id: str) -> str | MissingDocument | None:
        """Return the text of a document or the reason why it is missing; None if it was never fetched."""
        row = self._database.execute(
            "SELECT text, reason FROM documents WHERE place = ? AND id = ?", (self._index, document_id)
        ).fetchone()
        if row is None:
            return None
        text, reason = row
        # A column of SQLite accepts values of any type.
        if reason is None and isinstance(text, str):
            return text
        if text is None and isinstance(reason, str):
            return MissingDocument(reason)
        raise DataError(f"{self.path}: damaged: the document {document_id!r} is no text; delete the file")

    def put_text(self, document_id: str, text: str | MissingDocument) -> None:
        """Store the text of a document, or that it is missing, and commit."""
        row = (None, text.reason) if isinstance(text, MissingDocument) else (text, None)
        self._database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", (self._index, document_id, *row))

    def get_page(self, query: str, start: int, size: int) -> Page | None:
        """Return a page of results, or None if it is not stored; raises DataError if the file is damaged."""
        row = self._database.execute(
            "SELECT page FROM searches WHERE base_url = ? AND place = ? AND query = ? AND start = ? AND size = ?",
            (self._base_url, self._index, query, start, size),
        ).fetchone()
        if row is None:
            return None
        try:
            return Page.from_json(str(row[0]))
        except Malformed as error:
            raise DataError(
                f"{self.path}: damaged: the results of {query!r} from {start} on; delete the file"
            ) from error

    def put_page(self, query: str, start: int, size: int, page: Page) -> None:
        """Store a page of results, and commit."""
        self._database.execute(
            "INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?, ?, ?)",
            (self._base_url, self._index, query, start, size, page.to_json().decode()),
        )
