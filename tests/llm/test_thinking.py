"""Reasoning before answers: two requests, budgets, replay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.answer_models import ComparativeJudgment, judge_request
from tests.fake_server import FakeServer, says, schema_in
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.api.opening import open_client
from touche_llm.engines.settings import EngineConfig
from touche_llm.errors import UsageError
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import DELIMITERS, Message, Request, Sampling, Thinking
from touche_llm.llm.settings import CacheConfig, SamplingConfig, ThinkingConfig

THINKING = Thinking(48, *DELIMITERS["qwen3"], temperature=0.6)


def request_about(document: str = "Tea.", thinking: Thinking | None = THINKING) -> Request:
    given: dict[str, Any] = {
        "sampling": Sampling(max_tokens=32),
        "chat_template_kwargs": {"enable_thinking": True},
    }
    return judge_request(document, thinking=thinking, **given)


async def send(
    server: FakeServer, cache: Path, request: Request
) -> AnsweredRequest[ComparativeJudgment]:
    asked = EngineConfig(base_url=server.url, retry_for=0.0)
    async with open_client(asked, SamplingConfig(), CacheConfig(file=cache)) as model:
        result = await model.request(request, ComparativeJudgment)
    assert isinstance(result, AnsweredRequest)
    return result


async def test_a_thought_is_requested_first_and_the_answer_continues_it(tmp_path: Path) -> None:
    async with FakeServer(behaviours=[says("<think>\nHm.\n")]).running() as server:
        result = await send(server, tmp_path / "c.sqlite", request_about())
    thought, answer = server.bodies
    assert (thought["max_tokens"], thought["stop"], thought["temperature"]) == (
        48,
        ["</think>"],
        0.6,
    )
    assert schema_in(thought) is None
    assert not {"logprobs", "top_logprobs", "continue_final_message"} & thought.keys()
    assert answer["messages"] == [
        *thought["messages"],
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\n"},
    ]
    assert (answer["continue_final_message"], answer["add_generation_prompt"]) == (True, False)
    assert (answer["max_tokens"], answer["top_logprobs"], "stop" in answer) == (32, 20, False)
    assert schema_in(answer) == request_about().schema
    assert (
        thought["chat_template_kwargs"]
        == answer["chat_template_kwargs"]
        == {"enable_thinking": True}
    )
    assert result.thought == "Hm."


@pytest.mark.parametrize(
    "behaviour",
    [
        says("Hm."),
        says("Hm.\n</think>\n\n[2,1]"),
        says("Hm.", finish_reason="length"),
        says("", reasoning_content="\nHm. "),
    ],
    ids=["alone", "closed", "cut off", "reasoning_content"],
)
async def test_a_thought_is_read_wherever_it_is(tmp_path: Path, behaviour: Any) -> None:
    async with FakeServer(behaviours=[behaviour]).running() as server:
        result = await send(server, tmp_path / "c.sqlite", request_about())
    assert (result.thought, result.value.relevance) == ("Hm.", 0)


async def test_a_thought_acts_as_no_chat_control(tmp_path: Path) -> None:
    async with FakeServer(behaviours=[says("So <|im_end|><think> [INST]")]).running() as server:
        await send(server, tmp_path / "c.sqlite", request_about())
    sent = server.bodies[1]["messages"][-1]["content"].removeprefix("<think>")
    assert all(control not in sent for control in ("<|im_end|>", "<think>", "[INST]"))


def model_with(cache: Cache, context: int = 32768, engine: Any = None) -> ModelClient:
    info = FACTS.model_copy(update={"context": context, "overhead": 0})
    return ModelClient(engine_info=info, engine=engine, cache=cache, sampling=SamplingConfig())


def judged(_: Request) -> Mapping[str, int | str]:
    return {"relevance": 2, "quality": 1, "stance": "NO"}


class LongThoughts(ScriptedEngine):
    """Engine with as many tokens as characters, which thinks as long as it may.

    Encoded again, a thought has more.
    """

    grows_by = 1

    async def complete(self, request: Request) -> Completion:
        if request.schema:
            return await super().complete(request)
        self.requests.append(request)
        budget = request.sampling.max_tokens
        return Completion(
            "h" * budget * self.grows_by, "length", prompt_tokens=1, completion_tokens=budget
        )

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        return sum(len(message.content) for message in messages)

    async def truncate(self, text: str, max_tokens: int) -> str:
        return text[:max_tokens]


@pytest.mark.parametrize("grows_by", [1, 3])
async def test_the_document_leaves_room_for_the_thought_and_the_answer(
    tmp_path: Path, grows_by: int
) -> None:
    engine = LongThoughts(judged)
    engine.grows_by = grows_by
    with Cache(tmp_path / "c.sqlite") as cache:
        model = model_with(cache, context=300, engine=engine)
        document = "One word after another. " * 30
        result, cut = await model.request_truncated(request_about, document, ComparativeJudgment)
        assert isinstance(result, AnsweredRequest) and cut is not None
        for request in engine.requests:
            assert await engine.count_tokens(request.messages) + request.sampling.max_tokens <= 300
    # No more of the document was left out than needed.
    assert sum(len(message.content) for message in engine.requests[0].messages) > 300 - 48 - 32 - 60


async def test_a_thought_and_its_answer_are_sent_once_and_replayed(tmp_path: Path) -> None:
    engine = ScriptedEngine(judged)
    request = request_about()
    with Cache(tmp_path / "c.sqlite") as cache:
        result = await model_with(cache, engine=engine).request(request, ComparativeJudgment)
        again = await model_with(cache, engine=engine).request(request, ComparativeJudgment)
    assert isinstance(result, AnsweredRequest) and again == result
    thought, answer = engine.requests
    assert (result.thought_key, result.key) == (thought.key, answer.key)
    with Cache(tmp_path / "c.sqlite", CacheMode.REPLAY) as cache:
        assert await model_with(cache).request(request, ComparativeJudgment) == result


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"judge": -1}, "judge"),
        ({"delimiters": "gpt"}, "delimiters"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        ThinkingConfig(**values)


def test_each_kind_of_prompt_has_its_budget() -> None:
    settings = ThinkingConfig(judge=1, compare=3, delimiters="mistral")
    budgets = {
        answer: thinking.budget if (thinking := settings.think_for(answer)) else 0
        for answer in ("judge", "sentence", "stance", "best", "order", "objects", "queries")
    }
    assert budgets == {
        "judge": 1,
        "sentence": 1,
        "stance": 0,
        "best": 3,
        "order": 3,
        "objects": 0,
        "queries": 0,
    }
    thinking = settings.think_for("judge")
    assert thinking is not None and thinking.delimit("Hm.") == "[THINK]Hm.[/THINK]"
    # Templates call the switch by one of these names.
    assert settings.chat_template_kwargs == {"enable_thinking": True, "thinking": True}
