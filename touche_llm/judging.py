"""Pointwise judging: one answer a document, from topics and candidates to judgments and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from touche_llm.corpus.store import DocumentStore
from touche_llm.llm.answer import AnswerModel, labels_of, schema_of
from touche_llm.llm.concurrency import in_order
from touche_llm.llm.labels import expected_grade, most_probable, read_label
from touche_llm.llm.language_model import Answered, LanguageModel
from touche_llm.llm.request import Request, Sampling
from touche_llm.prompts import Prompt, neutralise
from touche_llm.records import Candidate, Cut, Failure, Judgment, Reading, Topic
from touche_llm.tasks.base import Task

Done = Callable[[], None]
# What the templates may use, and must: {name: whether it must}.
JUDGE_VARIABLES = {"topic": True, "first": False, "second": False, "document": True}
OBJECTS_VARIABLES = {"topic": True}


@dataclass(frozen=True, slots=True)
class Asking:
    """How a stage asks: the model, the sampling, the chat template's switches, how many requests at a time."""

    model: LanguageModel
    sampling: Sampling
    chat_template_kwargs: Mapping[str, Any]
    concurrency: int

    def request(
        self, prompt: Prompt, schema: Mapping[str, Any], topic: Topic, document_id: str | None, **variables: Any
    ) -> Request:
        """The request of a prompt about a topic, or about a document for it."""
        return Request(
            messages=prompt.render(topic=topic, **variables),
            schema=schema,
            sampling=self.sampling,
            model=self.model.facts.model,
            revision=self.model.facts.revision,
            chat_template_kwargs=self.chat_template_kwargs,
            origin=prompt.origin(topic.id, document_id),
        )


async def find_objects(
    topics: list[Topic], task: Task, prompt: Prompt, asking: Asking, done: Done
) -> tuple[list[Topic], list[Failure]]:
    """The topics with the objects that the model finds in their titles, for those that name none.

    Returns:
        the topics, a topic whose answer could not be used without objects; and those failures; each in the order given.
    """
    build = task.objects_answer
    if build is None:
        return topics, []

    async def find(topic: Topic) -> tuple[Topic, Failure | None]:
        if topic.objects is not None:
            return topic, None
        answer_model = build(topic)
        request = asking.request(prompt, schema_of(answer_model), topic, None)
        result = await asking.model.ask(request, answer_model)
        done()
        if not isinstance(result, Answered):
            return topic, _failure(topic, None, prompt, result.attempts) if result.attempts else None
        found = result.value.model_dump()
        return replace(topic, objects=(found["first"], found["second"])), None

    results = await in_order(find, topics, asking.concurrency)
    return [topic for topic, _ in results], [failure for _, failure in results if failure]


def judgeable(
    topics: list[Topic], candidates: Mapping[str, list[Candidate]], task: Task
) -> list[tuple[Topic, Candidate]]:
    """What there is to judge, topic by topic, by rank; topics that should have objects and have none are left out."""
    ready = [topic for topic in topics if topic.objects is not None or task.objects_answer is None]
    return [(topic, candidate) for topic in ready for candidate in candidates.get(topic.id, [])]


async def judge(
    work: list[tuple[Topic, Candidate]],
    store: DocumentStore,
    task: Task,
    prompt: Prompt,
    asking: Asking,
    done: Done,
) -> tuple[list[Judgment], list[Failure]]:
    """Judge documents in the order given: topic by topic, so that a server's prefix cache serves a topic's part once.

    Args:
        work: topics and their candidates.
        store: holds the candidates' documents.
        task: names the answer model.
        prompt: gets `topic`, `first`, `second` (the objects) and `document` (the text).
        asking: how to ask.
        done: called after each document.

    Returns:
        judgments and failures, each in the order of `work`.
    """
    answer_model = task.judge_answer
    schema = schema_of(answer_model)

    async def judge_one(item: tuple[Topic, Candidate]) -> Judgment | Failure | None:
        topic, candidate = item
        text = neutralise(store.get(candidate.document_id).text)
        first, second = topic.objects or ("", "")

        def request(document: str) -> Request:
            shown = {"first": first, "second": second, "document": document}
            return asking.request(prompt, schema, topic, candidate.document_id, **shown)

        result, cut = await asking.model.ask_about(request, text, answer_model)
        done()
        if isinstance(result, Answered):
            return _judgment(topic, candidate, prompt, result, answer_model, cut)
        if result.attempts:
            return _failure(topic, candidate.document_id, prompt, result.attempts)
        return None

    results = await in_order(judge_one, work, asking.concurrency)
    judgments = [result for result in results if isinstance(result, Judgment)]
    return judgments, [result for result in results if isinstance(result, Failure)]


def _judgment(
    topic: Topic,
    candidate: Candidate,
    prompt: Prompt,
    result: Answered[AnswerModel],
    answer_model: type[AnswerModel],
    cut: Cut | None,
) -> Judgment:
    answered = result.value.model_dump()
    readings = {
        field: read_label(result.answer.text, result.answer.tokens, field, labels, answered[field])
        for field, labels in labels_of(answer_model).items()
    }
    complete = all(reading.probabilities is not None for reading in readings.values())
    if not complete:
        # One judgment is of one kind: expectations are not mixed with plain grades.
        readings = {field: Reading(answered=label) for field, label in answered.items()}
    return Judgment(
        topic_id=topic.id,
        document_id=candidate.document_id,
        relevance=expected_grade(readings["relevance"]),
        quality=expected_grade(readings["quality"]),
        stance=most_probable(readings["stance"]),
        readings=readings,
        source="probabilities" if complete else "value",
        cut=cut,
        prompt=prompt.label,
        key=result.key,
        sample=result.sample,
    )


def _failure(topic: Topic, document_id: str | None, prompt: Prompt, attempts: list[Any]) -> Failure:
    return Failure(
        topic_id=topic.id, document_id=document_id, kind=attempts[-1].kind, prompt=prompt.label, attempts=attempts
    )
