"""The engine in process, against a library that answers as vLLM does; tests/vllm asks the real one."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.llm.fake_vllm import CONTEXT, Answered, FakeVllm, first_labels
from touche_llm.config import Config
from touche_llm.engine_config import EngineConfig
from touche_llm.engines import open_model, remember
from touche_llm.errors import EngineError, UsageError
from touche_llm.llm.answer import Unanswered, schema_of
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.concurrency import in_order
from touche_llm.llm.engine import EngineFacts, Rejected, Transient
from touche_llm.llm.language_model import LanguageModel
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.llm.vllm_common import start_options
from touche_llm.llm.vllm_offline import VllmOffline
from touche_llm.tasks.comparative import ComparativeJudgment

FOLDER = Path("models/tiny")


def engine(**options: Any) -> VllmOffline:
    return VllmOffline(FOLDER, context=None, options=options, chat_template_kwargs={"enable_thinking": False})


def question(text: str = "A question.", schema: Mapping[str, Any] | None = None, **sampling: Any) -> Request:
    return Request(
        messages=(Message("system", "Judge."), Message("user", text)),
        schema=schema or schema_of(ComparativeJudgment),
        sampling=Sampling(**sampling),
        model="tiny",
        revision="",
        chat_template_kwargs={"enable_thinking": False},
        origin=Origin("comparative/judge", 1, "0" * 12, "1", "d"),
    )


def labels(*allowed: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"word": {"enum": list(allowed)}}, "required": ["word"]}


async def test_requests_that_wait_are_one_batch_and_new_ones_join_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeVllm(width=3).install(monkeypatch)
    async with engine() as offline:
        await in_order(offline.complete, [question(str(n)) for n in range(20)], 8)
    # Eight wait at once; each time three are answered, three others have come before the next step but one.
    assert fake.batches[0] == 8
    assert sum(fake.batches) < 20 * 8
    assert len(fake.batches) < 20
    assert len(fake.params) == 20


async def test_each_request_has_its_own_schema_and_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeVllm(generation_config={"top_k": 20, "temperature": 0.6, "max_tokens": 9}).install(monkeypatch)
    async with engine() as offline:
        completions = await asyncio.gather(
            offline.complete(question(schema=labels("yes"), seed=3, top_logprobs=5)),
            offline.complete(question(schema=labels("no"), temperature=0.7, max_tokens=32, top_logprobs=0)),
        )
    assert [each.text for each in completions] == ['{"word":"yes"}', '{"word":"no"}']
    assert [bool(each.tokens) for each in completions] == [True, False]
    asked = [(each.temperature, each.seed, each.max_tokens, each.logprobs, each.top_k) for each in fake.params]
    # What the request leaves open is the model's own, as a server has it; nothing else is.
    assert asked == [(0.0, 3, 64, 5, 20), (0.7, 0, 32, None, 20)]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (question("x" * CONTEXT), "longer than the context"),
        (question(schema=labels("yes") | {"allOf": []}), "does not know allOf"),
        (question("no such role"), "takes no such role"),
    ],
)
async def test_a_request_that_vllm_refuses_leaves_the_others_alone(
    refused: Request, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeVllm().install(monkeypatch)
    async with engine() as offline:
        asked = [question("a"), refused, question("b")]
        first, second, third = await asyncio.gather(*map(offline.complete, asked), return_exceptions=True)
    assert isinstance(second, Rejected) and second.status == 400
    assert reason in str(second)
    assert not isinstance(first, BaseException) and not isinstance(third, BaseException)
    assert first.text == third.text


async def test_tokens_have_the_alternatives_that_a_server_would_send(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeVllm().install(monkeypatch)
    async with engine() as offline:
        completion = await offline.complete(question(schema=labels("é")))
    # Masked alternatives are left out, so are tokens outside of the label, and places are in bytes.
    assert [(token.at, token.token, token.logprob) for token in completion.tokens] == [
        (8, '"', -0.5),
        (9, "é", -0.5),
        (11, '"', -0.5),
    ]
    assert completion.tokens[1].top == [("é", -0.5)]
    assert completion.completion_tokens == len(completion.text)
    assert completion.prompt_tokens == length_of("Judge.", "A question.")
    assert completion.fingerprint is None


@pytest.mark.parametrize("told", [None, 0, 16])
async def test_what_the_prefix_cache_saved_is_what_vllm_tells(
    told: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeVllm(say=lambda params: replace(first_labels(params), cached_tokens=told)).install(monkeypatch)
    async with engine() as offline:
        assert (await offline.complete(question())).cached_tokens == told


def length_of(system: str, user: str) -> int:
    return len(f"<system>{system}<user>{user}<assistant>")


@pytest.mark.parametrize(
    ("said", "reason"),
    [(Answered("{}", finish_reason="error"), "'error'"), (Answered("{}", logprob=math.nan), "another form")],
)
async def test_a_broken_answer_is_worth_another_try(
    said: Answered, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeVllm(say=lambda _: said).install(monkeypatch)
    async with engine() as offline:
        with pytest.raises(Transient, match=reason) as caught:
            await offline.complete(question())
    assert caught.value.most_tries


async def test_when_vllm_dies_the_run_ends_and_what_was_answered_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def die() -> None:
        if len(fake.batches) == 3:
            raise RuntimeError("the engine is dead")

    fake = FakeVllm(width=2, before_step=die).install(monkeypatch)
    facts = EngineFacts(model="tiny", revision="", context=CONTEXT, overhead=30, engine="vllm 0.0-fake")
    with Cache(tmp_path / "answers.sqlite") as cache:
        async with engine() as offline:
            model = LanguageModel(facts=facts, engine=offline, cache=cache)
            with pytest.raises(EngineError, match="vLLM has failed: RuntimeError: the engine is dead.*go on"):
                await in_order(
                    lambda text: model.ask(question(text), ComparativeJudgment), [str(n) for n in range(50)], 10
                )
            with pytest.raises(EngineError, match="vLLM has failed"):
                await model.ask(question("later"), ComparativeJudgment)
        assert len(cache.find("answer")) == 6
    assert len(fake.batches) == 3
    assert fake.closed


async def test_a_cancelled_request_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeVllm(width=1).install(monkeypatch)
    async with engine() as offline:
        tasks = [asyncio.create_task(offline.complete(question(str(n)))) for n in range(6)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(each, asyncio.CancelledError) for each in results] == [n == 4 for n in range(6)]
        assert (await offline.complete(question("another"))).text == results[0].text  # type: ignore[union-attr]


def test_an_interrupt_within_a_step_ends_the_run_and_closes_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        if len(fake.batches) == 2:
            raise KeyboardInterrupt

    fake = FakeVllm(width=1, before_step=interrupt).install(monkeypatch)

    async def work() -> None:
        async with engine() as offline:
            await in_order(offline.complete, [question(str(n)) for n in range(20)], 5)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert fake.closed
    assert len(fake.batches) == 2


def test_an_interrupt_while_the_model_is_loaded_ends_the_run_though_vllm_swallows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(**_: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass

    FakeVllm().install(monkeypatch)
    monkeypatch.setattr(sys.modules["vllm"], "LLM", load)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(engine().__aenter__())
    assert signal.getsignal(signal.SIGINT) is before


async def test_tokens_are_counted_with_the_template_and_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeVllm().install(monkeypatch)
    async with engine() as offline:
        assert await offline.count_tokens((Message("user", "x" * 5000),)) == 5000 + len("<user><assistant>")
        assert await offline.head("naïve text", 5) == "naïve"
        assert await offline.head("short", 5) == "short"
    thinking = VllmOffline(FOLDER, context=None, options={}, chat_template_kwargs={"enable_thinking": True})
    async with thinking as offline:
        assert await offline.count_tokens((Message("user", ""),)) == len("<user><think><assistant>")


async def test_facts_are_those_of_a_server_that_serves_under_the_folders_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    fake = FakeVllm().install(monkeypatch)
    settings: dict[str, Any] = {"context": 512, "options": {"dtype": "float32"}, "chat_template_kwargs": {}}
    async with VllmOffline(Path("models/tiny/"), **settings) as offline:
        facts = await offline.connect("r1", 20)
    overhead = length_of("", "")
    assert facts == EngineFacts(model="tiny", revision="r1", context=512, overhead=overhead, engine="vllm 0.0-fake")
    assert fake.arguments == {
        "model": "models/tiny",
        "max_model_len": 512,
        "dtype": "float32",
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }


@pytest.mark.parametrize(
    ("variable", "asked", "eager"),
    [("1", {}, True), ("1", {"enforce_eager": False}, False), ("0", {}, None), ("0", {"enforce_eager": True}, True)],
)
def test_vllm_is_told_where_the_environment_switches_compiling_off(
    monkeypatch: pytest.MonkeyPatch, variable: str, asked: dict[str, Any], eager: bool | None
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", variable)
    assert start_options(asked).get("enforce_eager") is eager


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (FakeVllm(say=lambda _: Answered("Hello!")), "models/tiny: tiny does not enforce JSON schemas"),
        (FakeVllm(say=lambda _: Answered("{}", finish_reason="abort")), "refused the start-up check"),
        (FakeVllm(sends_logprobs=False), "sends no log-probabilities"),
    ],
)
async def test_a_model_that_cannot_do_the_work_is_told_before_any_work(
    fake: FakeVllm, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.install(monkeypatch)
    with pytest.raises(EngineError, match=message):
        async with engine() as offline:
            await offline.connect("", 20)
    assert fake.closed


async def test_no_vllm_an_old_one_and_one_that_cannot_load_the_model_give_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("out of\nmemory")

    fake = FakeVllm().install(monkeypatch)
    monkeypatch.setattr(sys.modules["vllm"], "LLM", refuse)
    with pytest.raises(EngineError, match="models/tiny: vLLM cannot load the model: RuntimeError: out of memory"):
        await engine().__aenter__()
    monkeypatch.setitem(sys.modules, "vllm.renderers", None)
    with pytest.raises(EngineError, match="cannot be used in process"):
        await engine().__aenter__()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineError, match="pip install 'vllm>=0.32'"):
        await engine().__aenter__()
    assert not fake.arguments


def config(tmp_path: Path, **asked: Any) -> Config:
    return Config.model_validate(
        {
            "task": "comparative",
            "topics": "topics.xml",
            "index": "index",
            "weights": {"relevance": 1.0},
            "engine": {"name": "offline", **asked},
            "cache": {"file": str(tmp_path / "answers.sqlite"), "mode": asked.pop("mode", "reuse")},
        }
    )


async def test_the_offline_engine_is_opened_from_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeVllm(say=first_labels).install(monkeypatch)
    with pytest.raises(UsageError, match="--model"):
        async with open_model(config(tmp_path)):
            pass
    folder = tmp_path / "tiny"
    with pytest.raises(UsageError, match="tiny: no model"):
        async with open_model(config(tmp_path, model=str(folder))):
            pass
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    async with open_model(config(tmp_path, model=str(folder), options={"enforce_eager": True})) as model:
        assert model.facts.model == "tiny"
        assert not isinstance(await model.ask(question(), ComparativeJudgment), Unanswered)
    assert fake.arguments["enforce_eager"] is True


@pytest.mark.parametrize("model", ["tiny", "models/tiny", "models/tiny/", None])
async def test_replay_takes_the_folder_or_the_name(model: str | None, tmp_path: Path) -> None:
    facts = EngineFacts(model="tiny", revision="", context=CONTEXT, overhead=30, engine="vllm 0.32.0")
    with Cache(tmp_path / "answers.sqlite") as cache:
        remember(facts, cache)
    asked = config(tmp_path, model=model)
    asked = asked.model_copy(update={"cache": asked.cache.model_copy(update={"mode": CacheMode.REPLAY})})
    async with open_model(asked) as opened:
        assert opened.facts == facts


def test_offline_asks_more_at_a_time_unless_told_otherwise() -> None:
    assert EngineConfig.model_validate({"name": "offline"}).at_once == 256
    assert EngineConfig.model_validate({"name": "offline", "concurrency": "5"}).at_once == 5
    assert EngineConfig().at_once == 1024 and EngineConfig().concurrency == "auto"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hf_token": "s3cret"}, "environment"),
        ({"max_model_len": 5}, "engine.context"),
        ({"enforce-eager": 1}, "no name"),
    ],
)
def test_options_that_are_secret_or_the_programs_own_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(name="offline", options=options)
