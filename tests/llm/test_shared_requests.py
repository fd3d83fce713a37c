"""Model client: counts, shared requests, and the end of a run after many failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.answer_models import ComparativeJudgment
from tests.llm.test_model import ANSWER, request_about
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.errors import EngineError, Rejected, Transient
from touche_llm.llm.cache import Cache
from touche_llm.llm.client import FailedRequest, UnansweredRequest
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import Request
from touche_llm.llm.settings import SamplingConfig

LIMIT = 32


class Faulty(ScriptedEngine):
    """Answers as the text says: `lost` without a reply, `refused`, `key` as an engine that rejects the key."""

    def __init__(self) -> None:
        super().__init__(lambda _: ANSWER)

    async def complete(self, request: Request) -> Completion:
        completion = await super().complete(request)
        await asyncio.sleep(0)  # lets equal requests arrive meanwhile
        text = request.messages[-1].content
        if "lost" in text:
            raise Transient("timeout", "no answer")
        if "refused" in text or "key" in text:
            raise Rejected(401 if "key" in text else 400, "no")
        return completion


Model = Callable[[], ModelClient]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Model]:
    """Models with an engine each and one cache."""
    with Cache(tmp_path / "c.sqlite") as cache:
        yield lambda: ModelClient(
            engine_info=FACTS,
            engine=Faulty(),
            cache=cache,
            retry_for=0.0,
            sampling=SamplingConfig(),
        )


async def send(
    model: ModelClient, text: str
) -> AnsweredRequest[ComparativeJudgment] | UnansweredRequest:
    return await model.request(request_about(text), ComparativeJudgment)


@pytest.mark.parametrize("between", ["an answer", "refused"])
async def test_many_requests_in_a_row_without_a_reply_end_the_run(
    made: Model, between: str
) -> None:
    model = made()
    for text in ("lost", "lost again"):
        for number in range(LIMIT - 1):
            lost = await send(model, f"{text} {number}")
            assert isinstance(lost, FailedRequest) and [each.kind for each in lost.attempts] == [
                "timeout"
            ]
        # A reply between them restarts the count.
        if text == "lost":
            await send(model, between)
    with pytest.raises(EngineError, match="no answer.*same command"):
        await send(model, "lost for good")


async def test_a_shared_failure_is_counted_and_a_shared_error_raised_for_every_task(
    made: Model,
) -> None:
    model = made()
    failed = await asyncio.gather(*(send(model, "refused") for _ in range(3)))
    assert failed[0] == failed[1] == failed[2] and isinstance(failed[0], FailedRequest)
    assert (model.counts.requests, model.counts.failures, model.counts.cache_hits) == (1, 3, 0)
    ended = await asyncio.gather(*(send(model, "key") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in ended] == [EngineError] * 3
    assert model.counts.requests == 2
    # A later request is sent again.
    with pytest.raises(EngineError):
        await send(model, "key")
    assert model.counts.requests == 3


async def test_tokens_of_new_and_of_cached_answers_are_counted_separately(made: Model) -> None:
    model = made()
    first = await send(model, "tea")
    await send(model, "coffee")
    assert isinstance(first, AnsweredRequest)
    counts = model.counts
    size = first.answer.completion_tokens
    assert size > 0
    assert (counts.requests, counts.cache_hits) == (2, 0)
    assert (counts.prompt_tokens, counts.completion_tokens) == (200, 2 * size)
    assert (counts.cached_prompt_tokens, counts.cached_completion_tokens) == (0, 0)
    again = made()
    assert await send(again, "tea") == first
    assert (again.counts.requests, again.counts.cache_hits, again.counts.prompt_tokens) == (0, 1, 0)
    assert (again.counts.cached_prompt_tokens, again.counts.cached_completion_tokens) == (100, size)
