"""Comparisons of several documents of a topic: which of them is best, or in which order they belong.

All comparing methods use it, so labels, orders and the reading of answers are implemented once.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from touche_llm.data.concurrency import ItemT, ResultT, map_in_order
from touche_llm.data.records import (
    Comparison,
    Cut,
    Failure,
    LabelledDocument,
    Reading,
    ScoredDocument,
    Topic,
)
from touche_llm.errors import PromptError
from touche_llm.judging.readings import count_labels
from touche_llm.judging.requests import RequestBuilder, make_failure, sanitize_document
from touche_llm.llm.answer_schema import AnswerModel
from touche_llm.llm.client import UnansweredRequest
from touche_llm.llm.model import AnsweredRequest
from touche_llm.llm.request import Message, Request, place_system_message
from touche_llm.llm.truncation import CUT_MARK, TruncatedDocument
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import (
    LABELS,
    ORDER_SEPARATOR,
    build_best_answer,
    build_order_answer,
)
from touche_llm.retrieval.corpus import Documents
from touche_llm.settings.section import Section
from touche_llm.tasks.parts import Objective
from touche_llm.tasks.questions import Question

# Engines send at most 20 alternatives per token, so the probabilities of more labels could not all
# be read.
MAX_CHOICES = 20
# Additional tokens of an order for each document: a label, a separator, white space.
_TOKENS_PER_LABEL = 8
# In tokens.
_MIN_SHARE = 16
# Tokens by which a document within a prompt may differ from the document alone, where it meets
# adjacent text.
_SEAM = 2

ComparisonKind = Literal["best", "order"]
# A kind of comparison with the documents in the order shown.
Comparands = tuple[ComparisonKind, tuple[str, ...]]


class RankingMethod(Section):
    """A method of reranking documents with a model; its fields are its settings.

    `kind` is the kind of its comparisons, which is also the name of their prompt; None if a
    cross-encoder scores the documents. `max_depth` is the maximum number of documents.
    """

    kind: ClassVar[ComparisonKind | None]
    max_depth: ClassVar[int] = 1000

    @property
    def max_shown(self) -> int:
        """Maximum number of documents that one request shows."""
        raise NotImplementedError

    def bound_comparisons(self, documents: int) -> int | None:
        """Return the maximum number of comparisons of so many documents.

        None if answers do not change the number.
        """
        return None

    async def rerank(self, documents: list[str], model: Any) -> list[ScoredDocument]:
        """Rank documents, given best first, with scores from 0 to 1.

        `model` is a comparer or scores documents.
        """
        raise NotImplementedError


_ANSWERS: Mapping[ComparisonKind, Callable[[int], type[AnswerModel]]] = {
    "best": build_best_answer,
    "order": build_order_answer,
}


@dataclass(slots=True)
class Comparer:
    """Comparisons of documents of one topic, for one step of the ranking.

    Each question is sent once. A comparison without a usable answer yields None, and its failure is
    in `failures`.

    Attributes:
        question: Question that determines how documents are rendered.
        slots: Limit on concurrent requests, shared by all topics.
        document_tokens: Maximum number of tokens per document.
        unanswered: Questions without a usable answer, shared by the steps of a topic so that none
            is sent again.
    """

    step: str
    topic: Topic
    documents: Documents
    question: Question
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    slots: asyncio.Semaphore
    objective: Objective
    document_tokens: int
    unanswered: set[Comparands] = field(default_factory=set)
    _failures: dict[Comparands, Failure] = field(default_factory=dict)
    _results: dict[Comparands, Comparison] = field(default_factory=dict)
    # Texts of documents by id and share, and shares by kind and number of documents.
    _known: dict[tuple[str, int], Any] = field(default_factory=dict)
    _locks: defaultdict[Any, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )

    @property
    def comparisons(self) -> list[Comparison]:
        """Answered comparisons, in an order that does not depend on when they were answered."""
        return [self._results[key] for key in sorted(self._results)]

    @property
    def failures(self) -> list[Failure]:
        """Failed comparisons, in such an order too."""
        return [self._failures[key] for key in sorted(self._failures)]

    async def run_all(
        self, call: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT]
    ) -> list[ResultT]:
        """Run independent calls concurrently and return their results in the order of the items."""
        return await map_in_order(call, items, self.builder.concurrency)

    def make_random(self, seed: int, *names: object) -> random.Random:
        """Return a generator of random numbers that is the same in every run of this step for this topic."""
        return random.Random(" ".join(map(str, (seed, self.step, self.topic.id, *names))))

    async def estimate_best(
        self, documents: Sequence[str], *, both_orders: bool = False
    ) -> dict[str, float] | None:
        """Estimate the probability that each of 2 to 20 documents is the best.

        Return None without an answer.

        With `both_orders` they are compared in the reversed order too, against position bias, and
        the mean is taken. If one of the orders has no answer, neither counts.
        """
        orders = [tuple(documents), tuple(reversed(documents))][: 1 + both_orders]
        answers = [
            answer
            for answer in await self.run_all(self._estimate_best, orders)
            if answer is not None
        ]
        if len(answers) < len(orders):
            return None
        return {
            document: sum(answer[document] for answer in answers) / len(answers)
            for document in documents
        }

    async def choose_best(
        self, documents: Sequence[str], *, both_orders: bool = False
    ) -> str | None:
        """Return the document with the highest probability to be the best.

        Of equal ones the one shown first.
        """
        shares = await self.estimate_best(documents, both_orders=both_orders)
        return None if shares is None else max(documents, key=shares.__getitem__)

    async def order(self, documents: Sequence[str]) -> list[str] | None:
        """Order 2 to 26 documents, given in the order in which the prompt shows them, from best to worst."""
        comparison = await self._compare(("order", tuple(documents)))
        return None if comparison is None else comparison.order

    async def _estimate_best(self, documents: tuple[str, ...]) -> dict[str, float] | None:
        comparison = await self._compare(("best", documents))
        if comparison is None or comparison.best is None:
            return None
        shares = comparison.best.shares
        return {
            document: shares.get(label, 0.0)
            for label, document in zip(LABELS, documents, strict=False)
        }

    async def _compare(self, key: Comparands) -> Comparison | None:
        async with self._locks[key]:
            if key not in self._results and key not in self.unanswered:
                async with self.slots:
                    found = await self._request_comparison(*key)
                if isinstance(found, UnansweredRequest):
                    self.unanswered.add(key)
                    kind, documents = key
                    if failure := make_failure(
                        self.topic, " ".join(documents), self.prompts[kind], found
                    ):
                        self._failures[key] = failure
                else:
                    self._results[key] = found
        return self._results.get(key)

    async def request_answer(
        self, kind: ComparisonKind, documents: tuple[str, ...]
    ) -> tuple[AnsweredRequest[AnswerModel] | UnansweredRequest, dict[str, Cut]]:
        """Return the answer to a comparison, and the truncation of each document that was cut."""
        cut: dict[str, Cut] = {}
        share = await self._keep(self._measure_share, kind, len(documents))
        if isinstance(share, UnansweredRequest):
            return share, cut

        texts: list[str] = []
        truncate = partial(self._truncate, self.prompts[kind])
        for document in documents:
            truncated = await self._keep(truncate, document, share)
            if isinstance(truncated, UnansweredRequest):
                return truncated, cut
            texts.append(truncated.text)
            if truncated.cut is not None:
                cut[document] = truncated.cut

        request = self._build_request(kind, texts, documents)
        return await self.builder.model.request(request, _ANSWERS[kind](len(documents))), cut

    async def _request_comparison(
        self, kind: ComparisonKind, documents: tuple[str, ...]
    ) -> Comparison | UnansweredRequest:
        result, cut = await self.request_answer(kind, documents)
        if isinstance(result, UnansweredRequest):
            return result

        prompt = self.prompts[kind]
        by_label = dict(zip(LABELS, documents, strict=False))
        best: Reading | None = None
        if kind == "best":
            origin = prompt.origin(self.topic.id, " ".join(documents))
            count_labels(self.builder, origin, result, result.readings)
            best = result.readings["best"]
        return Comparison(
            topic_id=self.topic.id,
            step=self.step,
            documents=list(documents),
            best=best,
            order=[by_label[label] for label in _read_order(result)] if kind == "order" else None,
            cut=cut,
            prompt=prompt.label,
            key=result.key,
            sample=result.sample,
        )

    def _build_request(
        self, kind: ComparisonKind, texts: Sequence[str], documents: tuple[str, ...]
    ) -> Request:
        labelled = [
            LabelledDocument(label, text) for label, text in zip(LABELS, texts, strict=False)
        ]
        builder = self.builder
        if kind == "order":
            max_tokens = builder.sampling.max_tokens + _TOKENS_PER_LABEL * len(texts)
            builder = replace(builder, sampling=replace(builder.sampling, max_tokens=max_tokens))
        origin = " ".join(documents) or None
        # Where relevance alone is graded, it is the criterion of any objective.
        aim = "relevance" if self.question.grades == ("relevance",) else self.objective
        variables = {"documents": labelled, "aim": aim, **self.question.topic_variables(self.topic)}
        return builder.build(
            self.prompts[kind], _ANSWERS[kind](len(texts)), self.topic, origin, **variables
        )

    async def _keep(
        self,
        measure: Callable[[Any, int], Awaitable[ResultT | UnansweredRequest]],
        *key: *tuple[str, int],
    ) -> ResultT | UnansweredRequest:
        """Return a known result, or measure it.

        A failure is not kept, since the next question may succeed.
        """
        async with self._locks[key]:
            result: ResultT | UnansweredRequest = self._known.get(key) or await measure(*key)
            if not isinstance(result, UnansweredRequest):
                self._known[key] = result
            return result

    async def _measure_share(self, kind: ComparisonKind, documents: int) -> int | UnansweredRequest:
        """Return the maximum number of tokens for each of `documents` documents."""
        model, max_tokens = self.builder.model, self.document_tokens
        bare = self._build_request(kind, [CUT_MARK] * documents, ())
        room = model.engine_info.context - bare.max_tokens
        bound = await model.bound_tokens(bare)
        if isinstance(bound, UnansweredRequest):
            return bound
        if bound + documents * max_tokens <= room:
            return max_tokens
        counted = await model.count_tokens(bare)
        if isinstance(counted, UnansweredRequest):
            return counted
        share = min(max_tokens, (room - counted) // documents - _SEAM)
        if share < _MIN_SHARE:
            raise PromptError(
                f"prompt {bare.origin.prompt}, topic {self.topic.id}: the prompt needs {counted} tokens without the "
                f"documents, which leaves {max(share, 0)} for each of {documents}; give a longer context "
                "(`engine.context`, or serve the model with one), shorten the prompt, or let "
                f"{self.step} compare fewer at a time"
            )
        return share

    async def _truncate(
        self, prompt: Prompt, document_id: str, share: int
    ) -> TruncatedDocument | UnansweredRequest:
        """Truncate a document to `share` tokens."""
        model, builder = self.builder.model, self.builder

        def wrap(text: str) -> Request:
            return Request(
                messages=place_system_message(
                    (Message("system", ""), Message("user", text)), builder.system_message
                ),
                schema={},
                sampling=builder.sampling,
                model=model.engine_info.model,
                revision=model.engine_info.revision,
                chat_template_kwargs=builder.chat_template_kwargs,
                origin=prompt.origin(self.topic.id, document_id),
            )

        content = sanitize_document(
            self.question.render(self.topic, self.documents.get(document_id))
        )
        if isinstance(content, str):
            content = (
                content.strip()
            )  # chat templates may strip a lone text, and so count fewer tokens
        whole = wrap(content if isinstance(content, str) else content.whole.text)
        return await model.truncate_document(
            wrap, whole, content, model.engine_info.overhead + share
        )


def _read_order(result: AnsweredRequest[AnswerModel]) -> list[str]:
    """Return the labels in the order of an answer."""
    order: str = result.value.model_dump()["order"]
    return order.split(ORDER_SEPARATOR)
