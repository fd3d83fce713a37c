"""Requests to a model about topics and documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from touche_llm.data.records import Failure, Reading, Topic
from touche_llm.judging.readings import describe_unread, read_labels
from touche_llm.llm.answer_schema import AnswerModel, build_schema, count_alternatives
from touche_llm.llm.client import MissingAnswer, UnansweredRequest
from touche_llm.llm.model import AnsweredRequest, DocumentResult, ModelClient
from touche_llm.llm.request import Origin, Request, Sampling, SystemPlace, place_system_message
from touche_llm.llm.settings import ThinkingConfig
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.questions import Question, RenderedDocument
from touche_llm.text.passages import RankedPassages
from touche_llm.text.sanitize import sanitize

Done = Callable[[], None]
# Shows a stage by its title and number of steps; yields the function to call after each step.
Stage = Callable[[str, int], AbstractContextManager[Done]]


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builder of a stage's requests, with at most the alternatives of `sampling`, and no more than the answer needs."""

    model: ModelClient
    sampling: Sampling
    chat_template_kwargs: Mapping[str, Any]
    concurrency: int
    thinking: ThinkingConfig = ThinkingConfig()
    system_message: SystemPlace = "role"

    def build(
        self,
        prompt: Prompt,
        answer: type[AnswerModel],
        topic: Topic,
        document_id: str | None,
        **variables: Any,
    ) -> Request:
        """Build the request of a prompt about a topic, or about a document for the topic."""
        schema = build_schema(answer, prompt.header.form)
        thinking = self.thinking.think_for(prompt.header.answer)
        return Request(
            messages=place_system_message(
                prompt.render(topic=topic, **variables), self.system_message
            ),
            schema=schema,
            sampling=replace(
                self.sampling,
                top_logprobs=min(self.sampling.top_logprobs, count_alternatives(schema)),
            ),
            model=self.model.engine_info.model,
            revision=self.model.engine_info.revision,
            chat_template_kwargs=self.thinking.chat_template_kwargs
            if thinking
            else self.chat_template_kwargs,
            origin=prompt.origin(topic.id, document_id),
            thinking=thinking,
        )

    def read_and_count_labels(
        self, result: AnsweredRequest[AnswerModel], origin: Origin, question: Question | None = None
    ) -> dict[str, Reading]:
        """Read the labels of an answer, and count answers whose labels cannot be read."""
        readings = read_labels(result, question)
        if self.sampling.top_logprobs:
            problem = describe_unread(result)
            if problem:
                self.model.labels.add_unread(origin, problem)
            else:
                self.model.labels.add_read(origin, readings)
        return readings


def make_request_builder(model: ModelClient) -> RequestBuilder:
    """Make the builder of the requests to a model, with the client's settings."""
    settings = model.sampling
    sampling = Sampling(
        temperature=settings.temperature,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        top_logprobs=settings.top_logprobs,
    )
    return RequestBuilder(
        model=model,
        sampling=sampling,
        chat_template_kwargs=settings.chat_template_kwargs,
        concurrency=model.concurrency,
        thinking=settings.thinking,
        system_message=settings.system_message,
    )


def sanitize_document(shown: RenderedDocument) -> str | RankedPassages:
    """What a prompt shows of a document, with nothing in it that could act as chat control."""
    # Passages are sanitized already.
    return sanitize(shown.document) if isinstance(shown.document, str) else shown.document


async def request_answer(
    topic: Topic,
    document_id: str,
    documents: Documents,
    question: Question,
    prompt: Prompt,
    builder: RequestBuilder,
) -> DocumentResult[AnswerModel]:
    """Request the answer to a question about one document.

    The prompt receives `topic`, the question's own variables and `document`.
    """
    answer = prompt.answer_for(topic, 1)
    shown = question.render(topic, documents.get(document_id))

    def request(document: str) -> Request:
        return builder.build(
            prompt, answer, topic, document_id, document=document, **shown.variables
        )

    return await builder.model.request_truncated(request, sanitize_document(shown), answer)


def make_failure(
    topic: Topic, document_id: str | None, prompt: Prompt, unanswered: UnansweredRequest
) -> Failure | None:
    """Return the failure record of a request about a topic, or about documents for it.

    None for a replay miss.
    """
    if isinstance(unanswered, MissingAnswer):
        return None
    attempts = unanswered.attempts
    return Failure(
        topic_id=topic.id,
        document_id=document_id,
        kind=attempts[-1].kind,
        prompt=prompt.label,
        attempts=attempts,
    )
