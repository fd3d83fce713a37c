"""Objects of topics, found by a model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Failure, Objects, Topic
from touche_llm.judging.outcomes import Outcomes, separate_failures
from touche_llm.judging.requests import Done, Requester, make_failure
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.client import FailedRequest, UnansweredRequest, UncachedRequest
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompts.prompt import Prompt


async def find_objects(
    topics: Iterable[Topic], prompt: Prompt, requester: Requester, done: Done
) -> Outcomes[Objects]:
    """Request the two objects that topics compare, as tea and coffee, if they name none.

    Args:
        topics: Topics with or without objects.
        prompt: Prompt that finds objects in a title.
        requester: Client of the model, and the builder of its requests.
        done: Called after each request.

    Returns:
        Objects and failures, in the order of the topics.

    Raises:
        DataError: No two objects can be in a title.
        EngineError: The engine failed.
    """
    unnamed = [topic for topic in topics if topic.objects is None]
    find = partial(_find_objects, prompt=prompt, requester=requester, done=done)
    outcomes = await map_in_order(find, unnamed, requester.concurrency)
    return separate_failures(outcomes)


async def _find_objects(
    topic: Topic, *, prompt: Prompt, requester: Requester, done: Done
) -> Objects | Failure | UncachedRequest:
    """Return the objects of a topic, or the failure to find them.

    If answers are replayed from a cache that lacks this one, return the request itself.
    """
    result = await request_objects(topic, prompt, requester)
    done()
    if isinstance(result, UncachedRequest):
        return result
    if isinstance(result, FailedRequest):
        return make_failure(topic, None, prompt, result)
    return Objects(topic_id=topic.id, objects=read_objects(result), prompt=prompt.label)


async def request_objects(
    topic: Topic, prompt: Prompt, requester: Requester
) -> AnsweredRequest[AnswerModel] | UnansweredRequest:
    """Request the two objects that the title of a topic compares.

    Raises:
        DataError: No two objects can be in the title.
        EngineError: The engine failed.
    """
    answer_model = prompt.answer_for(topic, document_count=0)
    request = requester.builder.build(prompt, answer_model, topic, document_id=None)
    return await requester.client.request(request, answer_model)


def read_objects(result: AnsweredRequest[AnswerModel]) -> tuple[str, str]:
    """Return the two objects that the model found, in their order."""
    objects = result.value.model_dump()
    return objects["first"], objects["second"]
