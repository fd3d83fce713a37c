"""Settings of Elasticsearch and the definition of an index."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from touche_llm.data.settings import Option, Section, check_address
from touche_llm.text.analysis import STOP_WORDS

FORMAT = 1
# The analysis of text/analysis.py in Elasticsearch's terms. Lucene refuses terms of more than 32,766 bytes.
ANALYSIS = (
    "pattern (?U)\\b\\w\\w+\\b, lower case, Lucene's 33 English stop words, Snowball English stemmer, "
    "terms cut at 255 characters"
)
META = "touche-llm"
# HTTP statuses of transient failures, of a request or of one document in it.
RETRYABLE_STATUSES = (429, 502, 503, 504)


class ElasticsearchSettings(Section):
    """Settings of Elasticsearch; times are in seconds.

    `shards` applies when the index is created; None is the default of Elasticsearch.
    """

    url: Annotated[
        str,
        AfterValidator(partial(check_address, secret="the environment")),
        Option("--elasticsearch", "Address of Elasticsearch", "Retrieval", metavar="URL"),
    ] = "http://127.0.0.1:9200"
    index: Annotated[
        str, Option("--elasticsearch-index", "Name of the index in Elasticsearch", "Retrieval", metavar="NAME")
    ] = Field("touche-llm", pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=200)
    shards: int | None = Field(None, ge=1, le=1024)
    request_timeout: float = Field(60.0, gt=0.0, allow_inf_nan=False)
    retry_for: float = Field(300.0, ge=0.0, allow_inf_nan=False)


class ElasticReply(BaseModel):
    """Base of the parts of replies in use; types are not converted."""

    model_config = ConfigDict(strict=True)


class ElasticManifest(BaseModel):
    """Source and settings of an index, stored in the `_meta` of its mapping.

    `documents` is None until all of them are loaded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: int
    corpus: str
    sha256: str
    k1: float
    b: float
    analysis: str
    documents: int | None = None
    bad_lines: int | None = None


def build_index_body(manifest: ElasticManifest, shards: int | None) -> dict[str, Any]:
    """Build settings and mappings of an index: one analyzed field with BM25, the others verbatim.

    `id` breaks ties, since Elasticsearch does not sort by `_id`.
    """
    index: dict[str, Any] = {
        "similarity": {"touche": {"type": "BM25", "k1": manifest.k1, "b": manifest.b}},
        "analysis": {
            "tokenizer": {"touche": {"type": "pattern", "pattern": r"(?U)\b\w\w+\b", "group": 0}},
            "filter": {
                "touche_stop": {"type": "stop", "stopwords": sorted(STOP_WORDS)},
                "touche_stem": {"type": "snowball", "language": "English"},
                "touche_cut": {"type": "truncate", "length": 255},
            },
            "analyzer": {
                "touche": {
                    "type": "custom",
                    "tokenizer": "touche",
                    "filter": ["lowercase", "touche_stop", "touche_stem", "touche_cut"],
                }
            },
        },
    }
    if shards is not None:
        index["number_of_shards"] = shards
    text = {"type": "text", "analyzer": "touche", "similarity": "touche", "index_options": "freqs"}
    properties = {
        "id": {"type": "keyword"},
        "text": text,
        "line": {"type": "long", "index": False, "doc_values": False},
    }
    return {
        "settings": {"index": index},
        "mappings": {"dynamic": "strict", "_meta": build_meta(manifest), "properties": properties},
    }


def build_meta(manifest: ElasticManifest) -> dict[str, Any]:
    """Build the `_meta` of the mapping."""
    return {META: manifest.model_dump()}
