"""Query expansion by the model: additional queries for a topic, whose rankings are fused with its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Candidate, Failure, Queries, Topic
from touche_llm.data.settings import Option, Section
from touche_llm.judging.pointwise import Done, RequestBuilder, make_failure
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import MAX_QUERY_LENGTH, AlternativeQueries
from touche_llm.ranking.fusion import DEFAULT_K, fuse_candidates


class ExpansionSettings(Section):
    """Settings of query expansion.

    Attributes:
        use: Whether to expand queries; off until an evaluation shows that it helps.
        weight: Weight of each additional query in the fusion; the topic's own query has 1.
        k: Constant of reciprocal rank fusion.
    """

    use: Annotated[
        bool,
        Option(
            "--query-expansion/--no-query-expansion",
            "Search with three additional queries of the model too",
            "Retrieval",
        ),
    ] = False
    weight: float = Field(0.5, gt=0.0, allow_inf_nan=False)
    k: float = Field(DEFAULT_K, ge=0.0, allow_inf_nan=False)


async def find_queries(
    topics: list[Topic], prompt: Prompt, builder: RequestBuilder, done: Done
) -> tuple[list[Queries], list[Failure]]:
    """Request additional queries for each topic; return them and the failures, whose topics have no queries."""
    # In the worst case each character is a token.
    max_tokens = builder.sampling.max_tokens + MAX_QUERY_LENGTH * len(AlternativeQueries.model_fields)
    builder = replace(builder, sampling=replace(builder.sampling, max_tokens=max_tokens))

    async def find(topic: Topic) -> Queries | Failure | None:
        result = await builder.model.request(builder.build(prompt, AlternativeQueries, topic, None), AlternativeQueries)
        done()
        if isinstance(result, AnsweredRequest):
            queries = tuple(result.value.model_dump().values())
            return Queries(topic_id=topic.id, queries=queries, prompt=prompt.label, key=result.key)
        return make_failure(topic, None, prompt, result)

    results = await map_in_order(find, topics, builder.concurrency)
    found = [result for result in results if isinstance(result, Queries)]
    return found, [result for result in results if isinstance(result, Failure)]


def fuse_queries(rankings: Sequence[list[Candidate]], settings: ExpansionSettings) -> list[Candidate]:
    """Fuse the rankings of one topic's queries, its own first, by reciprocal rank fusion."""
    return fuse_candidates(rankings, [1.0, *(settings.weight for _ in rankings[1:])], settings.k)
