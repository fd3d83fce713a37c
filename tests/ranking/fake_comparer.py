"""A comparer without a model: a function answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from tests.answer_models import judge_request
from touche_llm.data.records import Comparison, Reading, ScoredDocument, Topic
from touche_llm.judging.requests import RequestBuilder
from touche_llm.llm.client import UnansweredRequest, UncachedRequest
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import Sampling
from touche_llm.prompts.prompt import Prompt
from touche_llm.prompts.purposes import LABELS
from touche_llm.ranking.comparer import Comparands, Comparer
from touche_llm.retrieval.corpus import Documents
from touche_llm.tasks import get_task

Shown = tuple[str, ...]
# Probability of each shown document to be the best, or None for no answer.
Best = Callable[[Shown], Mapping[str, float] | None]
# Those shown from best to worst, or None.
Order = Callable[[Shown], Sequence[str] | None]


class FakeComparer(Comparer):
    """Answers from functions, after a number of turns of the event loop that `seed` draws, so in any order.

    `compared` has the documents of each request in order.
    """

    def __init__(
        self,
        best: Best = lambda shown: None,
        order: Order = lambda shown: None,
        *,
        concurrency: int = 8,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            step="test",
            topic=Topic("1", "Question?"),
            documents=cast(Documents, None),
            question=get_task("comparative").question,
            prompts=dict.fromkeys(("best", "order"), cast(Prompt, None)),
            builder=RequestBuilder(cast(ModelClient, None), Sampling(), {}, concurrency),
            slots=asyncio.Semaphore(concurrency),
            objective="both",
            document_tokens=512,
        )
        self.best_of, self.order_of = best, order
        self.turns = random.Random(seed) if seed is not None else None
        self.compared: list[Shown] = []

    async def __call__(self, documents: Sequence[str]) -> list[float]:
        """The scores of a cross-encoder, which fall in the order that `order` gives."""
        self.compared.append(tuple(documents))
        order = list(self.order_of(tuple(documents)) or documents)
        return [-float(order.index(each)) for each in documents]

    async def _request_comparison(self, comparands: Comparands) -> Comparison | UnansweredRequest:
        kind, documents = comparands.kind, comparands.documents
        self.compared.append(documents)
        for _ in range(self.turns.randrange(6) if self.turns else 1):
            await asyncio.sleep(0)
        best, order = None, None
        if kind == "best":
            shares = self.best_of(documents)
            if shares is not None:
                labelled = {
                    label: shares[each] for label, each in zip(LABELS, documents, strict=False)
                }
                best = Reading(
                    answered=max(labelled, key=labelled.__getitem__), probabilities=labelled
                )
        else:
            answer = self.order_of(documents)
            order = list(answer) if answer is not None else None
        if best is None and order is None:
            return UncachedRequest(judge_request(" ".join(documents)))
        return Comparison(
            topic_id="1",
            step=self.step,
            documents=list(documents),
            best=best,
            order=order,
            prompt="test",
            key="0",
        )


def by_worth(worth: Mapping[str, float]) -> tuple[Best, Order]:
    """A judge without error: the best is the one of the highest worth, among equals the one shown first."""

    def estimate_best(shown: Shown) -> Mapping[str, float]:
        chosen = max(shown, key=worth.__getitem__)
        return {each: float(each == chosen) for each in shown}

    return estimate_best, lambda shown: sorted(shown, key=lambda each: -worth[each])


def at_random(seed: int, trust: float = 0.0) -> tuple[Best, Order]:
    """A judge whose answers follow no order, not even its own, but that says the same of the same question.

    With probability `trust` it agrees with the order shown.
    """

    def order(shown: Shown) -> Sequence[str]:
        chance = random.Random(f"{seed} {shown}")
        return shown if chance.random() < trust else chance.sample(shown, len(shown))

    def estimate_best(shown: Shown) -> Mapping[str, float]:
        chosen = order(shown)[0]
        return {each: float(each == chosen) for each in shown}

    return estimate_best, order


def names(count: int) -> list[str]:
    """So many document ids."""
    return [f"d{number:02}" for number in range(count)]


def ids(ranking: Sequence[ScoredDocument]) -> list[str]:
    """The documents of a ranking."""
    return [each.document_id for each in ranking]


def check_scores(ranking: Sequence[ScoredDocument], documents: Sequence[str]) -> None:
    """Each document is there once, and the scores fall from 1 at most to 0 at least."""
    assert sorted(ids(ranking)) == sorted(documents)
    scores = [each.score for each in ranking]
    assert scores == sorted(scores, reverse=True)
    assert all(0.0 <= score <= 1.0 for score in scores)
