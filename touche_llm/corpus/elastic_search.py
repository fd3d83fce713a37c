"""A corpus in Elasticsearch: searched, and its documents by id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from touche_llm.corpus.elastic import (
    ANALYSIS,
    DOCUMENTS_AT_ONCE,
    FORMAT,
    META,
    ElasticManifest,
    ElasticsearchSettings,
    Notify,
)
from touche_llm.corpus.passages import is_word
from touche_llm.errors import DataError, EngineError, UsageError
from touche_llm.records import Candidate, Document, Topic
from touche_llm.retrieval.top import query_text

if TYPE_CHECKING:  # the client is loaded where somebody is asked
    from touche_llm.corpus.elastic_server import Server

SourceT = TypeVar("SourceT", bound=BaseModel)

_IDS_AT_ONCE = 1000
# Texts kept beside those of the last request, in characters.
_KEPT = 32 * 2**20
# Seconds for which texts that do not come are asked for again. Requests to the model are under way meanwhile, and
# nothing hears their replies; `elasticsearch.retry_for` is for what comes before them.
_PATIENCE = 20.0


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True)


class _Mappings(_Reply):
    meta: dict[str, Any] = Field(default_factory=dict, alias="_meta")


class _Index(_Reply):
    mappings: _Mappings


class _Nothing(_Reply):
    pass


class _Line(_Reply):
    line: int


class _Text(_Reply):
    text: str


class _Got(_Reply, Generic[SourceT]):
    id: str = Field(alias="_id")
    found: bool = False
    source: SourceT | None = Field(None, alias="_source")
    error: Any = None


class _Many(_Reply, Generic[SourceT]):
    docs: list[_Got[SourceT]]


class _Shards(_Reply):
    failed: int


class _Hit(_Reply):
    id: str = Field(alias="_id")
    score: float = Field(alias="_score", allow_inf_nan=False)


class _Hits(_Reply):
    hits: list[_Hit]


class _Found(_Reply):
    timed_out: bool
    shards: _Shards = Field(alias="_shards")
    hits: _Hits


def find_manifest(server: Server, name: str) -> ElasticManifest | None:
    """The manifest of an index, or None where there is no such index.

    Raises:
        UsageError: the name stands for several indices, or for one that this program did not make.
        EngineError: see `Server.ask`.
    """

    def read(response: Any) -> dict[str, Any] | None:
        if response.meta.status == 404:
            return None
        return dict(response.body) if isinstance(response.body, dict) else {}

    found = server.ask(f"index {name}", lambda client: client.options(ignore_status=404).indices.get(index=name), read)
    if found is None:
        return None
    if len(found) != 1:
        raise UsageError(f"{name}: stands for {len(found)} indices in Elasticsearch; name one (--elasticsearch-index)")
    (content,) = found.values()
    try:
        meta = _Index.model_validate(content).mappings.meta.get(META)
        if isinstance(meta, dict) and meta.get("format") not in (None, FORMAT):
            raise UsageError(
                f"{name}: the index has format {meta['format']!r:.20}, this program reads {FORMAT}; load the corpus "
                "into an index of another name"
            )
        return ElasticManifest.model_validate(meta)
    except ValidationError:
        raise UsageError(
            f"{name}: an index that `touche-llm index` did not make; name another one (--elasticsearch-index)"
        ) from None


def lines_of(server: Server, name: str, ids: list[str]) -> dict[str, int]:
    """The lines of the corpus from which documents came, by id; those that are not there are left out."""
    return {
        ident: source.line
        for part in _slices(ids, _IDS_AT_ONCE)
        for ident, source in _get(server, name, part, _Line).items()
    }


class ElasticIndex:
    """An index that is complete: searched, and a source of documents. A context manager.

    Documents are fetched several at a time: the one that is wanted and those after it in the order in which
    `unknown` was last asked, which is that of the candidates. They are asked for again for 20 s at most, and no longer
    than `retry_for`, since the event loop stands still until they come; all else is for `retry_for`.
    """

    def __init__(self, settings: ElasticsearchSettings, *, k1: float, b: float, notify: Notify) -> None:
        """Open the index.

        Raises:
            UsageError: the client is not installed, or the index is none of this program's.
            DataError: there is none, or one that is not complete or has other settings.
            EngineError: the server cannot be asked.
        """
        self._name = settings.index
        told: set[str] = set()

        def tell(message: str) -> None:
            told.add(message)
            notify(message)

        def tell_new(message: str) -> None:
            if message not in told:
                notify(message)

        hasty = settings.model_copy(update={"retry_for": min(settings.retry_for, _PATIENCE)})
        with ExitStack() as stack:
            self._server = stack.enter_context(open_server(settings, tell))
            # The same server, which says the same about itself.
            self._hasty = stack.enter_context(open_server(hasty, tell_new))
            self.manifest = self._checked(settings, k1, b)
            self._close = stack.pop_all().close
        self.description: dict[str, str | int] = {
            "search engine": settings.url,
            "engine": f"Elasticsearch {self._server.version}",
            "index": settings.index,
            "loaded from": self.manifest.corpus,
            "sha256": self.manifest.sha256,
            "documents": self.manifest.documents or 0,
            "bad lines": self.manifest.bad_lines or 0,
        }
        self._order: list[str] = []
        self._place: dict[str, int] = {}
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def retrieve(self, topics: list[Topic], *, fields: tuple[str, ...], depth: int) -> Iterator[list[Candidate]]:
        """The best documents of each topic, topic by topic; empty where none matches.

        By descending score, equal scores by ascending document id, also where the last place is tied. Scores are
        Lucene's BM25 with the statistics of all shards.
        """
        for topic in topics:
            found = self._search(topic.id, query_text(topic, fields), depth)
            ordered = sorted(found, key=lambda hit: (-hit.score, hit.id))
            yield [Candidate(topic.id, hit.id, rank, hit.score) for rank, hit in enumerate(ordered, start=1)]

    def unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Those of the given ids that the index does not hold, in the order given."""
        wanted = list(dict.fromkeys(document_ids))
        parts = _slices(wanted, _IDS_AT_ONCE)
        known = {ident for part in parts for ident in _get(self._server, self._name, part, _Nothing)}
        self._order = [each for each in wanted if each in known]
        self._place = {each: place for place, each in enumerate(self._order)}
        return [each for each in wanted if each not in known]

    def get(self, document_id: str) -> Document:
        """The document of this id; raises DataError where there is none, EngineError where it does not come."""
        if document_id not in self._texts:
            place = self._place.get(document_id)
            after = [] if place is None else self._order[place + 1 : place + DOCUMENTS_AT_ONCE]
            self._fetch([document_id, *(each for each in after if each not in self._texts)])
        if document_id not in self._texts:
            raise DataError(f"document {document_id!r} is not in the index {self._name} of Elasticsearch")
        self._texts.move_to_end(document_id)
        return Document(document_id, self._texts[document_id])

    def _fetch(self, ids: list[str]) -> None:
        """Fetch texts, and let go of the oldest where there are many."""
        try:
            got = _get(self._hasty, self._name, ids, _Text)
        except EngineError as error:
            raise EngineError(
                f"{error}. While the model is at work, documents are waited for no longer than {_PATIENCE:g} s. Every "
                "answer so far is in the cache, unless that is off: go on with the same command"
            ) from None
        while self._texts and self._size > _KEPT:
            _, text = self._texts.popitem(last=False)
            self._size -= len(text)
        for ident, source in got.items():
            self._texts[ident] = source.text
            self._size += len(source.text)

    def _search(self, topic_id: str, query: str, depth: int) -> list[_Hit]:
        reply = self._server.ask(
            f"search for topic {topic_id}",
            lambda client: client.search(
                index=self._name,
                query={"match": {"text": {"query": query}}},
                size=depth,
                sort=[{"_score": "desc"}, {"id": "asc"}],
                track_scores=True,
                track_total_hits=False,
                source=False,
                search_type="dfs_query_then_fetch",
                allow_partial_search_results=False,
            ),
            self._server.reading(_Found),
        )
        hits = reply.hits.hits
        problem = ""
        if reply.timed_out or reply.shards.failed:
            problem = f"only a part of the index was searched ({reply.shards.failed} shards failed)"
        elif len(hits) > depth or len({hit.id for hit in hits}) < len(hits):
            problem = f"{len(hits)} results, some twice or more than the {depth} asked for"
        elif not all(is_word(hit.id) for hit in hits):
            problem = "a document id that is no word"
        if problem:
            raise self._server.error(f"topic {topic_id}: {problem}")
        return hits

    def _checked(self, settings: ElasticsearchSettings, k1: float, b: float) -> ElasticManifest:
        place = f"{settings.url}: index {settings.index}"
        load = (
            f"touche-llm index --retriever elasticsearch --elasticsearch {settings.url} "
            f"--elasticsearch-index {settings.index} --corpus FILE"
        )
        manifest = find_manifest(self._server, settings.index)
        if manifest is None:
            raise DataError(f"{place}: not there; load the corpus with `{load}`")
        if manifest.documents is None:
            raise DataError(
                f"{place}: not complete, the load of {manifest.corpus} did not end; `{load}` with the same file goes on"
            )
        if manifest.analysis != ANALYSIS:
            raise DataError(f"{place}: loaded by another version of this program; load the corpus into another index")
        for name, value, own in (("k1", k1, manifest.k1), ("b", b, manifest.b)):
            if own != value:
                raise DataError(
                    f"{place}: has {name} {own}, not {value}; ask for the index's own (--{name} {own}), or load the "
                    "corpus into another index with yours"
                )
        return manifest


def open_server(settings: ElasticsearchSettings, notify: Notify) -> Server:
    """The server; raises UsageError where the client is not installed, and as `Server`."""
    try:
        from touche_llm.corpus.elastic_server import Server
    except ImportError as error:
        raise UsageError(
            f"--retriever elasticsearch needs the official client ({error}): pip install 'elasticsearch>=8.17'"
        ) from error
    return Server(settings, notify)


def _get(server: Server, name: str, ids: list[str], kind: type[SourceT]) -> dict[str, SourceT]:
    """Those of the documents that are there, by id, with the fields of `kind`; `ids` has at least one."""
    what, fields = f"documents {ids[0]} and {len(ids) - 1} more", list(kind.model_fields)
    form: type[_Many[SourceT]] = _Many[kind]  # type: ignore[valid-type]
    reply = server.ask(
        what, lambda client: client.mget(index=name, ids=ids, source=fields or False), server.reading(form)
    )
    if len(reply.docs) != len(ids):
        raise server.error(f"{what}: {len(reply.docs)} documents came")
    found = {}
    for each, wanted in zip(reply.docs, ids, strict=True):
        if each.error is not None:
            raise server.error(f"document {wanted}: {server.refusal({'error': each.error})}")
        if each.id != wanted:
            raise server.error(f"{what}: another document came, {server.clean(repr(each.id))}")
        if each.found and fields and each.source is None:
            raise server.error(f"document {wanted}: came without its {fields[0]}")
        if each.found:
            found[wanted] = each.source or kind()
    return found


def _slices(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
