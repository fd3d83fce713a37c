"""Objects of topics, found by a model."""

from __future__ import annotations

from dataclasses import replace

from touche_llm.data.concurrency import map_in_order
from touche_llm.data.records import Failure, Topic
from touche_llm.judging.requests import Done, RequestBuilder, make_failure
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.client import UnansweredRequest
from touche_llm.llm.model import AnsweredRequest
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.task import Task


async def find_objects(
    topics: list[Topic], task: Task, prompt: Prompt, builder: RequestBuilder, done: Done
) -> tuple[list[Topic], list[Failure]]:
    """Let the model find the objects in the titles of topics that have none.

    One that fails stays as it is.
    """

    async def find(topic: Topic) -> tuple[Topic, Failure | None]:
        if topic.objects is not None:
            return topic, None
        result = await request_objects(topic, task, prompt, builder)
        done()
        if not isinstance(result, AnsweredRequest):
            return topic, make_failure(topic, None, prompt, result)
        return replace(topic, objects=read_objects(result)), None

    results = await map_in_order(find, topics, builder.concurrency)
    return [topic for topic, _ in results], [failure for _, failure in results if failure]


async def request_objects(
    topic: Topic, task: Task, prompt: Prompt, builder: RequestBuilder
) -> AnsweredRequest[AnswerModel] | UnansweredRequest:
    """Request the objects in the title of a topic."""
    build_answer = task.objects_answer
    assert build_answer is not None  # The prompt exists only for tasks with objects.
    answer_model = build_answer(topic)
    request = builder.build(prompt, answer_model, topic, None)
    return await builder.model.request(request, answer_model)


def read_objects(result: AnsweredRequest[AnswerModel]) -> tuple[str, str]:
    """Return the two objects that the model found."""
    objects = result.value.model_dump()
    return objects["first"], objects["second"]
