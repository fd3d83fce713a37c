"""Comparisons of several documents of a topic: which of them is best, or in which order they belong.

All comparing methods use it, so labels, orders and the reading of answers are implemented once.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar

from touche_llm.data.concurrency import ItemT, ResultT, map_in_order
from touche_llm.data.records import (
    Comparison,
    Cut,
    Failure,
    LabelledDocument,
    Reading,
    Topic,
)
from touche_llm.errors import PromptError
from touche_llm.judging.readings import count_labels
from touche_llm.judging.requests import RequestBuilder, Requester, make_failure, sanitize_document
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.client import FailedRequest, UnansweredRequest
from touche_llm.llm.model import AnsweredRequest
from touche_llm.llm.request import Message, Origin, Request, place_system_message
from touche_llm.llm.truncation import CUT_MARK, TruncatedDocument, get_complete_text
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import (
    LABELS,
    ORDER_SEPARATOR,
    build_best_answer,
    build_order_answer,
)
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks.parts import Objective
from touche_llm.tasks.questions import Question

# Engines send at most 20 alternatives per token, so the probabilities of more labels could not all
# be read.
MAX_CHOICES = 20
# Additional tokens of an order for each document: a label, a separator, white space.
_TOKENS_PER_LABEL = 8
# Fewest tokens of a document that are worth a comparison.
_MIN_TOKENS = 16
# Tokens that a document may have more within a prompt than alone, since its first and last
# characters can form other tokens together with the adjacent text.
_SEAM = 2

ComparisonKind = Literal["best", "order"]
KeyT = TypeVar("KeyT")
MeasuredT = TypeVar("MeasuredT")


@dataclass(frozen=True, slots=True, order=True)
class Comparands:
    """Documents of a comparison.

    Attributes:
        kind: Whether the best of them is chosen, or all are ordered.
        documents: Ids in the order in which the prompt shows them.
    """

    kind: ComparisonKind
    documents: tuple[str, ...]

    @property
    def joined_ids(self) -> str:
        """Ids of the documents in one text, for records and errors."""
        return " ".join(self.documents)


@dataclass(frozen=True, slots=True)
class ComparisonReply:
    """Reply to a comparison.

    Attributes:
        result: Answer, or why there is none.
        cut: Truncation of each document that was cut.
    """

    result: AnsweredRequest[AnswerModel] | UnansweredRequest
    cut: dict[str, Cut]


class _Measurements(Generic[KeyT, MeasuredT]):
    """Measurements by key, each made once; one that failed is repeated, since it may succeed then."""

    def __init__(self) -> None:
        """Begin without measurements."""
        self._known: dict[KeyT, MeasuredT] = {}
        self._locks: defaultdict[KeyT, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(
        self, key: KeyT, measure: Callable[[], Awaitable[MeasuredT | UnansweredRequest]]
    ) -> MeasuredT | UnansweredRequest:
        """Return the measurement of a key, made by `measure` unless it is known.

        Concurrent calls for one key wait for the first of them; a failed one is not kept.
        """
        async with self._locks[key]:
            if key in self._known:
                return self._known[key]

            measured = await measure()
            if not isinstance(measured, UnansweredRequest):
                self._known[key] = measured
            return measured


@dataclass(slots=True)
class Comparer:
    """Comparisons of documents of one topic, for one step of the ranking.

    Each question is sent once. A comparison without a usable answer yields None, and its failure is
    in `failures`.

    Attributes:
        step: Step, as in `--rank`.
        topic: Topic of the documents.
        documents: Texts of the documents.
        question: Question that determines how documents are rendered.
        prompts: Prompts by kind of comparison.
        requester: Client of the model, and the builder of its requests.
        slots: Limit on concurrent requests, shared by all topics.
        objective: Criterion of the comparisons.
        document_tokens: Maximum number of tokens per document.
        unanswered: Questions without a usable answer, shared by the steps of a topic so that none
            is sent again.
    """

    step: str
    topic: Topic
    documents: Documents
    question: Question
    prompts: Mapping[str, Prompt]
    requester: Requester
    slots: asyncio.Semaphore
    objective: Objective
    document_tokens: int
    unanswered: set[Comparands] = field(default_factory=set)
    _failures: dict[Comparands, Failure] = field(default_factory=dict)
    _results: dict[Comparands, Comparison] = field(default_factory=dict)
    _locks: defaultdict[Comparands, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    # Maximum number of tokens of a document, by kind of comparison and number of documents.
    _max_tokens: _Measurements[tuple[ComparisonKind, int], int] = field(
        default_factory=_Measurements
    )
    # Documents as shown, by id and maximum number of tokens.
    _shown_documents: _Measurements[tuple[str, int], TruncatedDocument] = field(
        default_factory=_Measurements
    )

    @property
    def comparisons(self) -> list[Comparison]:
        """Answered comparisons, in an order that does not depend on when they were answered."""
        return [self._results[comparands] for comparands in sorted(self._results)]

    @property
    def failures(self) -> list[Failure]:
        """Failed comparisons, in such an order too."""
        return [self._failures[comparands] for comparands in sorted(self._failures)]

    async def run_all(
        self, call: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT]
    ) -> list[ResultT]:
        """Run independent calls concurrently and return their results in the order of the items."""
        return await map_in_order(call, items, self.requester.concurrency)

    def make_random(self, seed: int, *names: object) -> random.Random:
        """Return a generator of random numbers that is the same in every run of this step for this topic.

        Args:
            seed: Seed of the step.
            names: What the numbers are for; others give other numbers.
        """
        parts = (seed, self.step, self.topic.id, *names)
        return random.Random(" ".join(map(str, parts)))

    async def estimate_best(
        self, documents: Sequence[str], *, both_orders: bool = False
    ) -> dict[str, float] | None:
        """Estimate the probability that each of 2 to 20 documents is the best.

        Args:
            documents: Ids in the order in which the prompt shows them.
            both_orders: Whether to compare them in the reversed order too, against position bias,
                and to return the means.

        Returns:
            Probability of each document; None without an answer, or without one in either of both
            orders.
        """
        orders = [tuple(documents)]
        if both_orders:
            orders.append(tuple(reversed(documents)))

        estimates: list[Mapping[str, float]] = []
        for estimate in await self.run_all(self._estimate_best, orders):
            if estimate is None:
                return None
            estimates.append(estimate)

        means: dict[str, float] = {}
        for document in documents:
            means[document] = sum(estimate[document] for estimate in estimates) / len(estimates)
        return means

    async def choose_best(
        self, documents: Sequence[str], *, both_orders: bool = False
    ) -> str | None:
        """Return the document with the highest probability to be the best; None without an answer.

        Of equal ones, it is the one shown first. See `estimate_best` for the arguments.
        """
        probabilities = await self.estimate_best(documents, both_orders=both_orders)
        if probabilities is None:
            return None
        return max(documents, key=probabilities.__getitem__)

    async def order(self, documents: Sequence[str]) -> list[str] | None:
        """Order 2 to 26 documents from best to worst; None without an answer.

        Args:
            documents: Ids in the order in which the prompt shows them.
        """
        comparison = await self._compare(Comparands("order", tuple(documents)))
        return None if comparison is None else comparison.order

    async def _estimate_best(self, documents: tuple[str, ...]) -> dict[str, float] | None:
        """Estimate the probability of each document to be the best, shown in one order.

        None without an answer.
        """
        comparison = await self._compare(Comparands("best", documents))
        if comparison is None or comparison.best is None:
            return None

        probability_by_label = comparison.best.shares
        probabilities: dict[str, float] = {}
        for label, document in zip(LABELS, documents, strict=False):
            probabilities[document] = probability_by_label.get(label, 0.0)
        return probabilities

    async def _compare(self, comparands: Comparands) -> Comparison | None:
        """Return the comparison of documents in an order, which is requested at most once.

        None if the request failed, now or earlier.
        """
        # Callers that want the same comparison wait for the first one.
        async with self._locks[comparands]:
            if comparands in self._results:
                return self._results[comparands]
            if comparands in self.unanswered:
                return None

            async with self.slots:
                result = await self._request_comparison(comparands)
            if isinstance(result, UnansweredRequest):
                self._record_failure(comparands, result)
                return None

            self._results[comparands] = result
            return result

    def _record_failure(self, comparands: Comparands, unanswered: UnansweredRequest) -> None:
        """Record that a comparison has no answer, so that it is not requested again."""
        self.unanswered.add(comparands)
        # The client lists the requests whose answer a replay lacks.
        if isinstance(unanswered, FailedRequest):
            self._failures[comparands] = make_failure(
                self.topic,
                comparands.joined_ids,
                self.prompts[comparands.kind],
                unanswered,
            )

    async def _request_comparison(self, comparands: Comparands) -> Comparison | UnansweredRequest:
        """Request a comparison and read the best document, or the order, from its answer."""
        reply = await self.request_answer(comparands)
        answered = reply.result
        if isinstance(answered, UnansweredRequest):
            return answered

        best: Reading | None = None
        order: list[str] | None = None
        if comparands.kind == "best":
            best = self._read_best(answered, comparands)
        else:
            order = _read_order(answered, comparands.documents)

        return Comparison(
            topic_id=self.topic.id,
            step=self.step,
            documents=list(comparands.documents),
            best=best,
            order=order,
            cut=reply.cut,
            prompt=self.prompts[comparands.kind].label,
            key=answered.key,
            sample=answered.sample,
        )

    def _read_best(self, answered: AnsweredRequest[AnswerModel], comparands: Comparands) -> Reading:
        """Read the label of the best document, and count an answer whose label cannot be read."""
        prompt = self.prompts[comparands.kind]
        origin = prompt.origin(self.topic.id, comparands.joined_ids)
        count_labels(self.requester, origin, answered, answered.readings)
        return answered.readings["best"]

    async def request_answer(self, comparands: Comparands) -> ComparisonReply:
        """Request the answer to a comparison.

        Documents that are too long for the context together are truncated to equal lengths. Lengths
        are counted by the engine, so this can fail before the comparison itself is sent.
        """
        cut: dict[str, Cut] = {}
        max_tokens = await self._find_max_tokens(comparands.kind, len(comparands.documents))
        if isinstance(max_tokens, UnansweredRequest):
            return ComparisonReply(max_tokens, cut)

        texts: list[str] = []
        for document_id in comparands.documents:
            shown = await self._find_shown_document(comparands.kind, document_id, max_tokens)
            if isinstance(shown, UnansweredRequest):
                return ComparisonReply(shown, cut)

            texts.append(shown.text)
            if shown.cut is not None:
                cut[document_id] = shown.cut

        request = self._build_request(comparands.kind, texts, comparands.joined_ids)
        answer_model = _build_answer_model(comparands.kind, len(texts))
        result = await self.requester.client.request(request, answer_model)
        return ComparisonReply(result, cut)

    def _build_request(
        self, kind: ComparisonKind, texts: Sequence[str], joined_ids: str | None
    ) -> Request:
        """Build the request of a comparison, which shows each document with a label: A, B, C.

        Args:
            kind: Kind of the comparison.
            texts: Texts of the documents, in the order in which the prompt shows them.
            joined_ids: Ids of the documents; None if the request is only measured.
        """
        documents: list[LabelledDocument] = []
        for label, text in zip(LABELS, texts, strict=False):
            documents.append(LabelledDocument(label, text))

        builder = self._adapt_builder(kind, len(texts))
        return builder.build(
            prompt=self.prompts[kind],
            answer=_build_answer_model(kind, len(texts)),
            topic=self.topic,
            document_id=joined_ids,
            documents=documents,
            aim=self._criterion,
            **self.question.topic_variables(self.topic),
        )

    @property
    def _criterion(self) -> Objective:
        """Criterion of the comparisons; relevance if it alone is graded, whatever the objective."""
        if self.question.grades == ("relevance",):
            return "relevance"
        return self.objective

    def _adapt_builder(self, kind: ComparisonKind, document_count: int) -> RequestBuilder:
        """Return the builder, which for an order leaves room for the labels of all documents."""
        builder = self.requester.builder
        if kind == "best":
            return builder
        return builder.add_max_tokens(_TOKENS_PER_LABEL * document_count)

    async def _find_max_tokens(
        self, kind: ComparisonKind, document_count: int
    ) -> int | UnansweredRequest:
        """Return the maximum number of tokens for each document, measured once."""
        measure = partial(self._measure_max_tokens, kind, document_count)
        return await self._max_tokens.get((kind, document_count), measure)

    async def _measure_max_tokens(
        self, kind: ComparisonKind, document_count: int
    ) -> int | UnansweredRequest:
        """Return the maximum number of tokens for each document of a comparison.

        It is `document_tokens`, or less if so many documents of that length do not fit in the
        context of the model.

        Raises:
            PromptError: The prompt leaves too little room in the context.
        """
        model = self.requester.client
        without_texts = self._build_request(kind, [CUT_MARK] * document_count, joined_ids=None)
        available_tokens = model.engine_info.context - without_texts.max_tokens

        # An upper bound needs no exact count, and mostly shows that documents of full length fit.
        max_prompt_tokens = await model.bound_tokens(without_texts)
        if isinstance(max_prompt_tokens, UnansweredRequest):
            return max_prompt_tokens
        max_tokens = max_prompt_tokens + document_count * self.document_tokens
        if max_tokens <= available_tokens:
            return self.document_tokens

        # Otherwise the engine counts, and the documents share what the prompt leaves.
        prompt_tokens = await model.count_tokens(without_texts)
        if isinstance(prompt_tokens, UnansweredRequest):
            return prompt_tokens
        equal_share = (available_tokens - prompt_tokens) // document_count - _SEAM
        if equal_share < _MIN_TOKENS:
            raise self._make_room_error(
                without_texts.origin.prompt, prompt_tokens, document_count, equal_share
            )
        return min(self.document_tokens, equal_share)

    def _make_room_error(
        self, prompt_name: str, prompt_tokens: int, document_count: int, equal_share: int
    ) -> PromptError:
        """Return the error of a prompt that leaves too little room for documents in the context.

        Args:
            prompt_name: Name of the prompt.
            prompt_tokens: Tokens of the prompt without the documents.
            document_count: Number of documents in a comparison.
            equal_share: Tokens that are left for each of them; negative if the prompt alone is too
                long.
        """
        return PromptError(
            f"prompt {prompt_name}, topic {self.topic.id}: the prompt needs {prompt_tokens} "
            f"tokens without the documents, which leaves {max(equal_share, 0)} for each of {document_count}; give "
            "a longer context (`engine.context`, or serve the model with one), shorten the prompt, or let "
            f"{self.step} compare fewer at a time"
        )

    async def _find_shown_document(
        self, kind: ComparisonKind, document_id: str, max_tokens: int
    ) -> TruncatedDocument | UnansweredRequest:
        """Return a document truncated to at most `max_tokens` tokens; each truncation is kept."""
        truncate = partial(self._truncate, self.prompts[kind], document_id, max_tokens)
        return await self._shown_documents.get((document_id, max_tokens), truncate)

    async def _truncate(
        self, prompt: Prompt, document_id: str, max_tokens: int
    ) -> TruncatedDocument | UnansweredRequest:
        """Truncate a document to at most `max_tokens` tokens.

        Its tokens are counted in a request that has the document alone, so that all comparisons show
        the same text of it.
        """
        rendered = self.question.render(self.topic, self.documents.get(document_id))
        # A text, or passages of it in the order in which they are kept.
        document = sanitize_document(rendered)
        if isinstance(document, str):
            # Chat templates may strip a lone text, and so count fewer tokens.
            document = document.strip()

        model = self.requester.client
        origin = prompt.origin(self.topic.id, document_id)
        build_request = partial(self._build_document_request, origin=origin)
        complete_request = build_request(get_complete_text(document))
        # The overhead is the tokens of the chat template around the text.
        room = model.engine_info.overhead + max_tokens
        return await model.truncate_document(
            build_request=build_request,
            complete_request=complete_request,
            document=document,
            room=room,
        )

    def _build_document_request(self, text: str, origin: Origin) -> Request:
        """Build a request with the text of a document alone, to count its tokens; it is never sent."""
        builder = self.requester.builder
        # The overhead of the chat template is known for an empty system message with a user message.
        messages = (Message("system", ""), Message("user", text))
        return Request(
            messages=place_system_message(messages, builder.system_message),
            schema={},
            sampling=builder.sampling,
            model=builder.model,
            revision=builder.revision,
            chat_template_kwargs=builder.chat_template_kwargs,
            origin=origin,
        )


def _build_answer_model(kind: ComparisonKind, document_count: int) -> type[AnswerModel]:
    """Build the model of the answers to a comparison."""
    if kind == "best":
        return build_best_answer(document_count)
    return build_order_answer(document_count)


def _read_order(answered: AnsweredRequest[AnswerModel], documents: Sequence[str]) -> list[str]:
    """Return the documents from best to worst, as an answer like `B > A > C` orders their labels."""
    document_by_label = dict(zip(LABELS, documents, strict=False))
    order: str = answered.value.model_dump()["order"]
    labels = order.split(ORDER_SEPARATOR)
    return [document_by_label[label] for label in labels]
