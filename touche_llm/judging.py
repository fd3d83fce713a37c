"""Pointwise judging: one answer a document, from topics and candidates to judgments and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from touche_llm.llm.answer import AnswerModel, labels_of, schema_of
from touche_llm.llm.concurrency import in_order
from touche_llm.llm.labels import expected_grade, most_probable, read_label
from touche_llm.llm.language_model import Answered, LanguageModel
from touche_llm.llm.request import Request, Sampling
from touche_llm.prompts import Prompt, neutralise
from touche_llm.records import Cut, Document, Failure, Judgment, Reading, Topic
from touche_llm.tasks.base import Question, Task

Done = Callable[[], None]
OBJECTS_VARIABLES = {"topic": True}


class Documents(Protocol):
    """Where the text of a document comes from."""

    def get(self, document_id: str) -> Document:
        """The document of this id; raises DataError where there is none."""
        ...

    def unknown(self, document_ids: Iterable[str]) -> list[str]:
        """Those of the given ids that are not there."""
        ...


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


async def judge(
    work: list[tuple[Topic, str]],
    documents: Documents,
    question: Question,
    prompt: Prompt,
    asking: Asking,
    done: Done,
) -> tuple[list[Judgment], list[Failure]]:
    """Judge documents in the order given: topic by topic, so that a server's prefix cache serves a topic's part once.

    Args:
        work: topics and ids of documents.
        documents: hold them.
        question: what is asked, and what is shown.
        prompt: gets `topic`, the question's own variables and `document`.
        asking: how to ask.
        done: called after each document.

    Returns:
        judgments and failures, each in the order of `work`.
    """
    schema = schema_of(question.answer)

    async def judge_one(item: tuple[Topic, str]) -> Judgment | Failure | None:
        topic, document_id = item
        shown = question.show(topic, documents.get(document_id))
        # Excerpts are neutralised already.
        seen = neutralise(shown.document) if isinstance(shown.document, str) else shown.document

        def request(document: str) -> Request:
            return asking.request(prompt, schema, topic, document_id, document=document, **shown.variables)

        result, cut = await asking.model.ask_about(request, seen, question.answer)
        done()
        if isinstance(result, Answered):
            return _judgment(topic, document_id, prompt, result, question, cut)
        if result.attempts:
            return _failure(topic, document_id, prompt, result.attempts)
        return None

    results = await in_order(judge_one, work, asking.concurrency)
    judgments = [result for result in results if isinstance(result, Judgment)]
    return judgments, [result for result in results if isinstance(result, Failure)]


def _judgment(
    topic: Topic,
    document_id: str,
    prompt: Prompt,
    result: Answered[AnswerModel],
    question: Question,
    cut: Cut | None,
) -> Judgment:
    answered = result.value.model_dump()
    readings = {
        field: read_label(result.answer.text, result.answer.tokens, field, labels, answered[field])
        for field, labels in labels_of(question.answer).items()
    }
    complete = all(reading.probabilities is not None for reading in readings.values())
    if not complete:
        # One judgment is of one kind: expectations are not mixed with plain grades.
        readings = {field: Reading(answered=label) for field, label in answered.items()}
    return Judgment(
        topic_id=topic.id,
        document_id=document_id,
        grades={field: expected_grade(readings[field]) for field in question.grades},
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
