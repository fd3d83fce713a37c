"""Queries that a model adds to those of a topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Failure, Queries, Topic
from touche_llm.judging.outcomes import Outcomes, separate_failures
from touche_llm.judging.requests import Done, Requester, make_failure
from touche_llm.llm.client import FailedRequest, UnansweredRequest, UncachedRequest
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import MAX_QUERY_LENGTH, AlternativeQueries
from touche_llm.retrieval.settings import ExpansionSettings


@dataclass(frozen=True, slots=True)
class QueryExpander:
    """Expansion of queries by a model.

    Attributes:
        settings: Settings of the expansion.
        prompt: Prompt that requests queries.
        requester: Client of the model, and the builder of its requests.
    """

    settings: ExpansionSettings
    prompt: Prompt
    requester: Requester


async def find_queries(
    topics: Iterable[Topic], prompt: Prompt, requester: Requester, done: Done
) -> Outcomes[Queries]:
    """Request additional queries for each topic.

    Args:
        topics: Topics to find queries for.
        prompt: Prompt that requests queries.
        requester: Client of the model, and the builder of its requests.
        done: Called after each request.

    Returns:
        Queries and failures, in the order of the topics.

    Raises:
        EngineError: The engine failed.
    """
    find = partial(_find_queries, prompt=prompt, requester=requester, done=done)
    outcomes = await map_in_order(find, topics, requester.concurrency)
    return separate_failures(outcomes)


async def _find_queries(
    topic: Topic, *, prompt: Prompt, requester: Requester, done: Done
) -> Queries | Failure | UncachedRequest:
    """Return the queries for a topic, or the failure to find them.

    If answers are replayed from a cache that lacks this one, return the request itself.
    """
    result = await request_queries(topic, prompt, requester)
    done()
    if isinstance(result, UncachedRequest):
        return result
    if isinstance(result, FailedRequest):
        return make_failure(topic, None, prompt, result)

    queries = tuple(result.value.model_dump().values())
    return Queries(topic_id=topic.id, queries=queries, prompt=prompt.label, key=result.key)


async def request_queries(
    topic: Topic, prompt: Prompt, requester: Requester
) -> AnsweredRequest[AlternativeQueries] | UnansweredRequest:
    """Request additional queries for a topic.

    Raises:
        EngineError: The engine failed.
    """
    # In the worst case each character is a token.
    max_query_tokens = MAX_QUERY_LENGTH * len(AlternativeQueries.model_fields)
    builder = requester.builder.add_max_tokens(max_query_tokens)
    request = builder.build(prompt, AlternativeQueries, topic, document_id=None)
    return await requester.client.request(request, AlternativeQueries)
