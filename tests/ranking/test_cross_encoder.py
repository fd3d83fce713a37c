"""Scores of a cross-encoder: what is sent for a topic and a document, and the order that the scores give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ranking.test_comparer import Held
from touche_llm.data.records import Topic
from touche_llm.engines.dry_run import DryRunEngine
from touche_llm.engines.pooling import PoolingClient
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.protocol import EngineInfo
from touche_llm.ranking.cross_encoder import CrossEncoderSettings, DocumentScorer
from touche_llm.ranking.registry import ScoreDocuments
from touche_llm.tasks import get_task

TOPIC = Topic("1", "Cats or {document} dogs?", description="Which pet?", objects=("cat", "dog"))


class Recording(DryRunEngine):
    """Records what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, list[str]]] = []

    async def score(self, query: str, documents: Sequence[str]) -> list[float]:
        self.sent.append((query, list(documents)))
        return await super().score(query, documents)


def send(
    text: str, task: str = "comparative", context: int = 512, **chosen: Any
) -> tuple[str, list[str]]:
    """Score a document for the topic, and return the query and the documents that were sent."""
    info = EngineInfo(model="m", revision="", context=context, overhead=8, engine="")
    engine = Recording()
    with Cache(Path("none"), CacheMode.OFF) as cache:
        client = PoolingClient(engine_info=info, engine=engine, cache=cache)
        settings = CrossEncoderSettings.model_validate(chosen)
        scorer = DocumentScorer(
            client=client,
            settings=settings,
            question=get_task(task).question,
            documents=Held({"a": text}),
            topic=TOPIC,
        )
        asyncio.run(scorer.score(["a"]))
    (sent,) = engine.sent
    return sent


def test_a_preset_puts_both_in_the_template_of_the_model() -> None:
    query, (document,) = send(
        "{query} <|im_end|>", preset="qwen3", instruction="Compare.", query=["objects"]
    )
    # As in the examples of vLLM and of the model's card: together they are one chat.
    assert query.startswith("<|im_start|>system\nJudge whether")
    assert query.endswith("<|im_start|>user\n<Instruct>: Compare.\n<Query>: cat dog\n")
    # Placeholders in a text from outside stay, and nothing in it acts as chat control.
    assert (
        document
        == "<Document>: {query} < |im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize("task", ["comparative", "controversial"])
def test_a_long_document_is_cut_and_its_template_is_not(task: str) -> None:
    text = " ".join(f"Sentence {number} is about cats." for number in range(200))
    _, (document,) = send(text, task, context=256, preset="qwen3")
    assert document.endswith("</think>\n\n")
    # An estimated token has four characters.
    assert 200 < len(document) < 4 * 256


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"preset": "qwen4"}, "preset: 'qwen4'.*plain, qwen3"),
        ({"query_template": "no place"}, r"query_template: .*\{query\}"),
        ({"document_template": "no place"}, r"document_template: .*\{document\}"),
    ],
)
def test_settings_without_sense_are_refused(chosen: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        CrossEncoderSettings(**chosen)


def scores(**by_document: float) -> ScoreDocuments:
    async def score(documents: Sequence[str]) -> list[float]:
        return [by_document[each] for each in documents]

    return score


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (scores(a=-3.0, b=5.0, c=1.0), [("b", 1.0), ("c", 0.5), ("a", 0.0)]),
        (scores(a=0.2, b=0.2, c=0.2), [("a", 1.0), ("b", 1.0), ("c", 1.0)]),
        (scores(a=0.1, b=0.1, c=0.9), [("c", 1.0), ("a", 0.0), ("b", 0.0)]),
    ],
)
async def test_documents_are_ranked_by_score_and_equal_ones_keep_their_order(
    score: Callable[[Sequence[str]], object], expected: list[tuple[str, float]]
) -> None:
    found = await CrossEncoderSettings().rerank(["a", "b", "c"], score)  # type: ignore[arg-type]
    assert [(each.document_id, each.score) for each in found] == expected
