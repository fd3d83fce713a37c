"""Requests to a model about topics and documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from touche_llm.data.records import Failure, Topic
from touche_llm.llm.answer_schema import AnswerModel, build_schema, count_alternatives
from touche_llm.llm.client import UnansweredRequest, UncachedRequest
from touche_llm.llm.model import DocumentResult, ModelClient
from touche_llm.llm.request import Request, Sampling, SystemPlace, place_system_message
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
class TopicDocument:
    """A document, and the topic that it is judged for."""

    topic: Topic
    document_id: str

    @property
    def key(self) -> tuple[str, str]:
        """Topic id and document id."""
        return self.topic.id, self.document_id


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """Request with a prompt about a document, for a topic."""

    topic: Topic
    document_id: str
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builder of a stage's requests.

    Attributes:
        model: Client that sends the requests.
        sampling: Sampling parameters; a request has at most their number of alternatives per token,
            and no more than its answer needs.
        chat_template_kwargs: Switches of the chat template for requests without reasoning.
        concurrency: Max number of requests at a time.
        thinking: Settings of reasoning before answers.
        system_message: Place of the instructions.
    """

    model: ModelClient
    sampling: Sampling
    chat_template_kwargs: Mapping[str, object]
    concurrency: int
    thinking: ThinkingConfig = ThinkingConfig()
    system_message: SystemPlace = "role"

    def build(
        self,
        prompt: Prompt,
        answer: type[AnswerModel],
        topic: Topic,
        document_id: str | None,
        **variables: object,
    ) -> Request:
        """Build the request of a prompt about a topic, or about a document for the topic.

        Args:
            prompt: Prompt to render.
            answer: Answer model of the request.
            topic: Topic, which the template gets too.
            document_id: Id of the document, ids of several separated by spaces, or None.
            variables: Other variables of the template.

        Raises:
            PromptError: The template cannot be rendered.
        """
        messages = prompt.render(topic=topic, **variables)
        schema = build_schema(answer, prompt.header.form)
        alternatives = min(self.sampling.top_logprobs, count_alternatives(schema))

        thinking = self.thinking.think_for(prompt.header.answer)
        if thinking is None:
            chat_template_kwargs = self.chat_template_kwargs
        else:
            chat_template_kwargs = self.thinking.chat_template_kwargs

        return Request(
            messages=place_system_message(messages, self.system_message),
            schema=schema,
            sampling=replace(self.sampling, top_logprobs=alternatives),
            model=self.model.engine_info.model,
            revision=self.model.engine_info.revision,
            chat_template_kwargs=chat_template_kwargs,
            origin=prompt.origin(topic.id, document_id),
            thinking=thinking,
        )


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


def sanitize_document(rendered: RenderedDocument) -> str | RankedPassages:
    """Return what a prompt shows of a document, without text that could act as chat control."""
    if isinstance(rendered.document, str):
        return sanitize(rendered.document)
    # Passages are sanitized already.
    return rendered.document


async def request_answer(
    request: DocumentRequest,
    documents: Documents,
    question: Question,
    builder: RequestBuilder,
) -> DocumentResult[AnswerModel]:
    """Request the answer to a question about one document.

    The template gets `topic`, the question's own variables and `document`.

    Args:
        request: Prompt, topic and document.
        documents: Texts of the documents.
        question: Question of the prompt, which renders the document.
        builder: Builder of the requests.

    Raises:
        EngineError: The engine failed.
        PromptError: The prompt is invalid, or leaves no room for the document.
    """
    prompt = request.prompt
    answer = prompt.answer_for(request.topic, 1)
    rendered = question.render(request.topic, documents.get(request.document_id))
    # All but the document, which is shortened until the request fits.
    build_request = partial(
        builder.build,
        prompt,
        answer,
        request.topic,
        request.document_id,
        **rendered.variables,
    )
    return await builder.model.request_truncated(
        lambda text: build_request(document=text),
        sanitize_document(rendered),
        answer,
    )


def make_failure(
    topic: Topic, document_id: str | None, prompt: Prompt, unanswered: UnansweredRequest
) -> Failure | None:
    """Return the failure record of a request about a topic, or about documents for it.

    None for a replay miss.
    """
    if isinstance(unanswered, UncachedRequest):
        return None

    attempts = unanswered.attempts
    return Failure(
        topic_id=topic.id,
        document_id=document_id,
        kind=attempts[-1].kind,
        prompt=prompt.label,
        attempts=attempts,
    )
