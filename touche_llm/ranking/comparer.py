"""Questions about several documents of a topic at once: which is the best of them, and in which order they stand.

Every method of comparing asks here, so labels, orders and the reading of answers stand once.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from touche_llm.data.records import Comparison, Cut, Failure, LabelledDocument, Topic
from touche_llm.errors import PromptError
from touche_llm.judging.pointwise import Documents, RequestBuilder, make_failure, sanitize_document
from touche_llm.llm.answers import AnswerModel, Unanswered, schema_of
from touche_llm.llm.concurrency import PRIORITY, ItemT, ResultT, Slots, in_order
from touche_llm.llm.logprobs import read_label
from touche_llm.llm.model import Answered
from touche_llm.llm.request import Message, Request
from touche_llm.llm.truncation import CUT_MARK
from touche_llm.prompts.answers import LABELS, ORDER_SEPARATOR, build_best_answer, build_order_answer
from touche_llm.prompts.prompt import Prompt
from touche_llm.tasks.base import Aim, Question

# Engines send at most 20 alternatives a token, so that more labels could not all be read.
MAX_CHOICES = 20
# What an order needs beyond other answers: a label, a separator, white space.
_TOKENS_PER_LABEL = 8
_LEAST_SHARE = 16
# Tokens by which a document in a prompt may differ from the document alone, where it meets what stands beside it.
_SEAM = 2

Kind = Literal["best", "order"]


_ANSWERS: Mapping[Kind, Callable[[int], type[AnswerModel]]] = {"best": build_best_answer, "order": build_order_answer}


@dataclass(slots=True)
class Comparer:
    """Asks about documents of one topic, for one step of the ranking.

    The same question is asked once. What could not be answered is in `failures`, and None where it was asked for.

    Attributes:
        step: its name, for the records.
        topic: the topic.
        position: the topic's place among all; where not all requests can go at once, those of earlier topics go first.
        documents: hold the texts.
        question: what the task shows of a document.
        prompts: by kind.
        builder: Builds the requests.
        slots: shared by all topics: requests at a time.
        aim: what better means.
        document_tokens: most tokens of a document that are shown.
        unanswered: questions without a usable answer, shared by the steps of a topic: no later step sends them again.
    """

    step: str
    topic: Topic
    position: int
    documents: Documents
    question: Question
    prompts: Mapping[str, Prompt]
    builder: RequestBuilder
    slots: Slots
    aim: Aim
    document_tokens: int
    unanswered: set[tuple[Kind, tuple[str, ...]]] = field(default_factory=set)
    _failures: dict[tuple[Kind, tuple[str, ...]], Failure] = field(default_factory=dict)
    _known: dict[tuple[Kind, tuple[str, ...]], Comparison | None] = field(default_factory=dict)
    _texts: dict[tuple[str, int], tuple[str, Cut | None]] = field(default_factory=dict)
    _shares: dict[tuple[Kind, int], int] = field(default_factory=dict)
    _under_way: defaultdict[Any, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    @property
    def comparisons(self) -> list[Comparison]:
        """What was answered, in an order that does not depend on which answer came first."""
        known = sorted(self._known.items())
        return [comparison for _, comparison in known if comparison is not None]

    @property
    def failures(self) -> list[Failure]:
        """What was not answered, in such an order too."""
        return [failed for _, failed in sorted(self._failures.items())]

    async def run_all(self, call: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT]) -> list[ResultT]:
        """The results of calls that do not depend on each other, in the order of their items."""
        return await in_order(call, items, self.builder.concurrency)

    def make_random(self, seed: int, *names: object) -> random.Random:
        """Random numbers that are the same in every run of this step for this topic."""
        return random.Random(" ".join(map(str, (seed, self.step, self.topic.id, *names))))

    async def estimate_best(self, documents: Sequence[str], *, both_orders: bool = False) -> dict[str, float] | None:
        """The probability of each document to be the best of them, 2 to 20 in the order in which they are shown.

        Args:
            documents: their ids.
            both_orders: ask in the reversed order too, and take the mean: a model may prefer a place. Where one of the
                two has no answer, neither counts.
        """
        orders = [tuple(documents), tuple(reversed(documents))][: 1 + both_orders]
        answers = [each for each in await self.run_all(self._best, orders) if each is not None]
        if len(answers) < len(orders):
            return None
        return {each: sum(answer[each] for answer in answers) / len(answers) for each in documents}

    async def choose_best(self, documents: Sequence[str], *, both_orders: bool = False) -> str | None:
        """The most probable of the documents to be the best; among equals the one shown first."""
        shares = await self.estimate_best(documents, both_orders=both_orders)
        return None if shares is None else max(documents, key=shares.__getitem__)

    async def order(self, documents: Sequence[str]) -> list[str] | None:
        """The documents, 2 to 26 in the order in which they are shown, from best to worst."""
        comparison = await self._compare("order", tuple(documents))
        return None if comparison is None else comparison.order

    async def _best(self, documents: tuple[str, ...]) -> dict[str, float] | None:
        comparison = await self._compare("best", documents)
        if comparison is None or comparison.best is None:
            return None
        shares = comparison.best.shares
        return {each: shares.get(label, 0.0) for label, each in zip(LABELS, documents, strict=False)}

    async def _compare(self, kind: Kind, documents: tuple[str, ...]) -> Comparison | None:
        async with self._under_way[kind, documents]:
            if (kind, documents) not in self._known:
                if (kind, documents) in self.unanswered:
                    return None
                async with self.slots.held(self.position):
                    # Where the engine cannot take all of them at once, it goes by the same order.
                    PRIORITY.set(self.position)
                    self._known[kind, documents] = await self._ask(kind, documents)
        return self._known[kind, documents]

    async def _ask(self, kind: Kind, documents: tuple[str, ...]) -> Comparison | None:
        prompt, answer_model = self.prompts[kind], _ANSWERS[kind](len(documents))
        texts: list[str] = []
        cut: dict[str, Cut] = {}
        share = await self._share(kind, len(documents))
        for each in documents:
            shown = share if isinstance(share, Unanswered) else await self._text(prompt, each, share)
            if isinstance(shown, Unanswered):
                self._failed(kind, documents, prompt, shown)
                return None
            texts.append(shown[0])
            if shown[1] is not None:
                cut[each] = shown[1]
        result = await self.builder.model.ask(self._request(kind, texts, documents), answer_model)
        if not isinstance(result, Answered):
            self._failed(kind, documents, prompt, result)
            return None
        answered = result.value.model_dump()[kind]
        by_label = dict(zip(LABELS, documents, strict=False))
        labels = LABELS[: len(documents)]
        return Comparison(
            topic_id=self.topic.id,
            step=self.step,
            documents=list(documents),
            best=read_label(result.answer.text, result.answer.tokens, kind, labels, answered)
            if kind == "best"
            else None,
            order=[by_label[label] for label in answered.split(ORDER_SEPARATOR)] if kind == "order" else None,
            cut=cut,
            prompt=prompt.label,
            key=result.key,
            sample=result.sample,
        )

    def _request(self, kind: Kind, texts: Sequence[str], documents: tuple[str, ...]) -> Request:
        shown = [LabelledDocument(label, text) for label, text in zip(LABELS, texts, strict=False)]
        builder = self.builder
        if kind == "order":
            longer = builder.sampling.max_tokens + _TOKENS_PER_LABEL * len(texts)
            builder = replace(builder, sampling=replace(builder.sampling, max_tokens=longer))
        schema = schema_of(_ANSWERS[kind](len(texts)))
        origin = " ".join(documents) or None
        variables = {"documents": shown, "aim": self.aim, **self.question.topic_variables(self.topic)}
        return builder.build(self.prompts[kind], schema, self.topic, origin, **variables)

    async def _share(self, kind: Kind, documents: int) -> int | Unanswered:
        """How many tokens each of so many documents may have."""
        async with self._under_way[kind, documents]:
            if (kind, documents) in self._shares:
                return self._shares[kind, documents]
            measured = await self._measured_share(kind, documents)
            # What could not be measured may be measured for the next question.
            if not isinstance(measured, Unanswered):
                self._shares[kind, documents] = measured
            return measured

    async def _measured_share(self, kind: Kind, documents: int) -> int | Unanswered:
        model, wanted = self.builder.model, self.document_tokens
        bare = self._request(kind, [CUT_MARK] * documents, ())
        room = model.facts.context - bare.sampling.max_tokens
        most = await model.most_tokens(bare)
        if isinstance(most, Unanswered):
            return most
        if most + documents * wanted <= room:
            return wanted
        counted = await model.count_tokens(bare)
        if isinstance(counted, Unanswered):
            return counted
        share = min(wanted, (room - counted) // documents - _SEAM)
        if share < _LEAST_SHARE:
            raise PromptError(
                f"prompt {bare.origin.prompt}, topic {self.topic.id}: the prompt needs {counted} tokens without the "
                f"documents, which leaves {max(share, 0)} for each of {documents}: give a longer context (--context, "
                f"or serve the model with one), shorten the prompt, or let {self.step} compare fewer at a time"
            )
        return share

    async def _text(self, prompt: Prompt, document_id: str, share: int) -> tuple[str, Cut | None] | Unanswered:
        """The text of a document in at most so many tokens, and what that leaves out."""
        model, builder = self.builder.model, self.builder

        def alone(text: str) -> Request:
            return Request(
                messages=(Message("system", ""), Message("user", text)),
                schema={},
                sampling=builder.sampling,
                model=model.facts.model,
                revision=model.facts.revision,
                chat_template_kwargs=builder.chat_template_kwargs,
                origin=prompt.origin(self.topic.id, document_id),
            )

        async with self._under_way[document_id, share]:
            if (document_id, share) in self._texts:
                return self._texts[document_id, share]
            seen = sanitize_document(self.question.render(self.topic, self.documents.get(document_id)))
            if isinstance(seen, str):
                seen = seen.strip()  # chat templates may strip what stands alone, and count it as nothing
            whole = alone(seen if isinstance(seen, str) else seen.whole.text)
            text = await model.shorten(alone, whole, seen, model.facts.overhead + share)
            if not isinstance(text, Unanswered):
                self._texts[document_id, share] = text
            return text

    def _failed(self, kind: Kind, documents: tuple[str, ...], prompt: Prompt, result: Unanswered) -> None:
        self.unanswered.add((kind, documents))
        if result.attempts:
            self._failures[kind, documents] = make_failure(self.topic, " ".join(documents), prompt, result.attempts)
