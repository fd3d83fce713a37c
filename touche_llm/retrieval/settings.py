"""Settings of the first stage."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from touche_llm.data.settings import Option, Section, check_address
from touche_llm.retrieval.bm25 import Bm25Settings

QueryField = Literal["title", "description", "narrative", "objects"]


def to_texts(value: Any) -> Any:
    """Return a tuple of texts for a list or a single value; YAML reads the topic id `2` as a number."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in values)


class RetrieverConfig(Bm25Settings):
    """Settings of the first stage; `method`, `k1` and `b` belong to the index."""

    name: Annotated[
        Literal["bm25", "okapi", "dense", "hybrid", "chatnoir", "elasticsearch"],
        Option(
            "--retriever",
            "bm25 (index on disk), okapi (rank-bm25), dense (vectors), hybrid (bm25 and dense), elasticsearch "
            "or chatnoir",
            "Retrieval",
            metavar="NAME",
        ),
    ] = "bm25"
    query: Annotated[
        tuple[QueryField, ...],
        BeforeValidator(to_texts),
        Field(min_length=1),
        Option(
            "--query",
            "Topic field of the query: title, description, narrative or objects; repeatable",
            "Retrieval",
            metavar="FIELD",
        ),
    ] = ("title",)

    @property
    def is_dense(self) -> bool:
        """Whether vectors of the documents are searched."""
        return self.name in ("dense", "hybrid")

    @property
    def bm25(self) -> Bm25Settings:
        """Settings of the index alone."""
        return Bm25Settings(method=self.method, k1=self.k1, b=self.b)


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
