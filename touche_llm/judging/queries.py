"""Queries that a model adds to those of a topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Failure, Queries, Topic
from touche_llm.judging.requests import Done, RequestBuilder, make_failure
from touche_llm.llm.client import UnansweredRequest
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import MAX_QUERY_LENGTH, AlternativeQueries
from touche_llm.retrieval.settings import ExpansionSettings

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class QueryExpander:
    """Expansion of queries by the model: settings, prompt and builder of the requests."""

    settings: ExpansionSettings
    prompt: Prompt
    builder: RequestBuilder


async def request_queries(
    topic: Topic, prompt: Prompt, builder: RequestBuilder
) -> AnsweredRequest[AlternativeQueries] | UnansweredRequest:
    """Request additional queries for a topic."""
    # In the worst case each character is a token.
    query_tokens = MAX_QUERY_LENGTH * len(AlternativeQueries.model_fields)
    max_tokens = builder.sampling.max_tokens + query_tokens
    builder = replace(builder, sampling=replace(builder.sampling, max_tokens=max_tokens))
    request = builder.build(prompt, AlternativeQueries, topic, None)
    return await builder.model.request(request, AlternativeQueries)


async def find_queries(
    topics: list[Topic], prompt: Prompt, builder: RequestBuilder, done: Done
) -> tuple[list[Queries], list[Failure]]:
    """Request additional queries for each topic.

    Return them and the failures, whose topics have no queries.
    """

    async def find(topic: Topic) -> Queries | Failure | None:
        result = await request_queries(topic, prompt, builder)
        done()
        if isinstance(result, AnsweredRequest):
            queries = tuple(result.value.model_dump().values())
            return Queries(topic_id=topic.id, queries=queries, prompt=prompt.label, key=result.key)
        return make_failure(topic, None, prompt, result)

    results = await map_in_order(find, topics, builder.concurrency)
    found = [result for result in results if isinstance(result, Queries)]
    return found, [result for result in results if isinstance(result, Failure)]
