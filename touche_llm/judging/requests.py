"""Requests to a model about topics and documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from touche_llm.data.records import Failure, Topic
from touche_llm.llm.answer_schema import AnswerModel, build_schema, count_alternatives
from touche_llm.llm.client import FailedRequest
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


def group_by_topic(documents: Iterable[TopicDocument]) -> list[list[TopicDocument]]:
    """Return the groups of adjacent documents that have the same topic."""
    groups = groupby(documents, key=lambda document: document.topic.id)
    return [list(topic_documents) for _, topic_documents in groups]


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """Request with a prompt about a document, for a topic."""

    topic: Topic
    document_id: str
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builder of the requests to a model.

    Attributes:
        model: Name of the model.
        revision: The user's name for the version of its weights.
        sampling: Sampling parameters; a request has at most their number of alternatives per token,
            and no more than its answer needs.
        chat_template_kwargs: Switches of the chat template for requests without reasoning.
        thinking: Settings of reasoning before answers.
        system_message: Place of the instructions.
    """

    model: str
    revision: str
    sampling: Sampling
    chat_template_kwargs: Mapping[str, object]
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
            document_id: Id of the document, for records of the request: several ids are separated
                by spaces, and a request about the topic alone has None.
            variables: Other variables of the template.

        Raises:
            PromptError: The template cannot be rendered.
        """
        messages = prompt.render(topic=topic, **variables)
        schema = build_schema(answer, prompt.header.form)

        # More alternatives per token than there are labels would be of no use.
        top_logprobs = min(self.sampling.top_logprobs, count_alternatives(schema))
        sampling = replace(self.sampling, top_logprobs=top_logprobs)

        # A model that reasons before it answers has switches of its own.
        thinking = self.thinking.think_for(prompt.header.answer)
        if thinking is None:
            chat_template_kwargs = self.chat_template_kwargs
        else:
            chat_template_kwargs = self.thinking.chat_template_kwargs

        return Request(
            messages=place_system_message(messages, self.system_message),
            schema=schema,
            sampling=sampling,
            model=self.model,
            revision=self.revision,
            chat_template_kwargs=chat_template_kwargs,
            origin=prompt.origin(topic.id, document_id),
            thinking=thinking,
        )

    def add_max_tokens(self, tokens: int) -> RequestBuilder:
        """Return a builder of requests whose answers may have so many tokens more."""
        max_tokens = self.sampling.max_tokens + tokens
        return replace(self, sampling=replace(self.sampling, max_tokens=max_tokens))


@dataclass(frozen=True, slots=True)
class Requester:
    """Client of a model, and the builder of its requests.

    Attributes:
        client: Client that sends the requests.
        builder: Builder of the requests.
        concurrency: Max number of requests at a time.
    """

    client: ModelClient
    builder: RequestBuilder
    concurrency: int


def make_requester(client: ModelClient) -> Requester:
    """Return a client with a builder of requests that have the client's model and settings."""
    settings = client.sampling
    sampling = Sampling(
        temperature=settings.temperature,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        top_logprobs=settings.top_logprobs,
    )
    builder = RequestBuilder(
        model=client.engine_info.model,
        revision=client.engine_info.revision,
        sampling=sampling,
        chat_template_kwargs=settings.chat_template_kwargs,
        thinking=settings.thinking,
        system_message=settings.system_message,
    )
    return Requester(client, builder, client.concurrency)


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
    requester: Requester,
) -> DocumentResult[AnswerModel]:
    """Request the answer to a question about one document, truncated until the request fits.

    The template gets `topic`, the question's own variables and `document`.

    Args:
        request: Prompt, topic and document.
        documents: Texts of the documents.
        question: Question of the prompt, which renders the document.
        requester: Client of the model, and the builder of its requests.

    Raises:
        EngineError: The engine failed.
        PromptError: The prompt is invalid, or leaves no room for the document.
    """
    rendered = question.render(request.topic, documents.get(request.document_id))
    sanitized_document = sanitize_document(rendered)
    answer_model = request.prompt.answer_for(request.topic, document_count=1)
    # The client calls it with the whole text, and then with shorter ones until the request fits.
    build_request = partial(
        _build_document_request,
        request=request,
        answer_model=answer_model,
        variables=rendered.variables,
        builder=requester.builder,
    )
    return await requester.client.request_truncated(
        build_request,
        sanitized_document,
        answer_model,
    )


def _build_document_request(
    text: str,
    *,
    request: DocumentRequest,
    answer_model: type[AnswerModel],
    variables: Mapping[str, object],
    builder: RequestBuilder,
) -> Request:
    """Build a request about a document that shows `text` of it."""
    return builder.build(
        request.prompt,
        answer_model,
        request.topic,
        request.document_id,
        document=text,
        **variables,
    )


def make_failure(
    topic: Topic, document_id: str | None, prompt: Prompt, failed: FailedRequest
) -> Failure:
    """Return the record of a failed request about a topic, or about documents for it."""
    last_attempt = failed.attempts[-1]
    return Failure(
        topic_id=topic.id,
        document_id=document_id,
        kind=last_attempt.kind,
        prompt=prompt.label,
        attempts=failed.attempts,
    )
