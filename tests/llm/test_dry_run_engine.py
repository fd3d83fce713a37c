"""The engine of a dry run: answers that fit every schema, estimated usage, and a cache that is not changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.answer_models import ComparativeJudgment, PairJudgment, judge_request
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.data.records import Topic
from touche_llm.engines.dry_run import DryRunEngine, Usage
from touche_llm.llm.answer_schema import AnswerModel, get_labels
from touche_llm.llm.cache import Cache
from touche_llm.llm.label_probabilities import TokenizedAnswer, read_label
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.request import Origin, Request, Sampling
from touche_llm.llm.settings import CacheConfig, SamplingConfig
from touche_llm.tasks.objects import objects_answer


class Awkward(AnswerModel):
    """Labels that are prefixes of each other, or contain the end of a value."""

    grade: Literal[1, 10, 100]
    word: Literal["NO", "NONE", "N", "NO,NOT", 'a"quoted"é']


class Best(AnswerModel):
    best: Literal["A", "B", "C"]


def request_for(
    model: type[AnswerModel],
    document: str | None = "d1",
    user: str = "Passage.",
    prompt: str = "comparative/judge",
) -> Request:
    origin = Origin(prompt, 1, "0" * 12, "1", document)
    return judge_request(user, model, sampling=Sampling(), origin=origin)


def dry_model(path: Path, **facts: Any) -> tuple[ModelClient, DryRunEngine]:
    engine, known = DryRunEngine(), CacheConfig(file=path).read_only
    cache = Cache(known.file, known.mode)
    return ModelClient(
        engine_info=FACTS.model_copy(update=facts),
        engine=engine,
        cache=cache,
        sampling=SamplingConfig(),
    ), engine


async def answered(model: type[AnswerModel], document: str | None) -> AnsweredRequest[Any]:
    client, _ = dry_model(Path("nowhere.sqlite"))
    with client.cache:
        result = await client.request(request_for(model, document), model)
    assert isinstance(result, AnsweredRequest), result
    assert (result.sample, client.counts.resamples) == (0, 0)
    return result


def probabilities(
    result: AnsweredRequest[Any], model: type[AnswerModel]
) -> Mapping[str, Mapping[str, float]]:
    found = {}
    answer = TokenizedAnswer(result.answer.text, result.answer.tokens, result.layout)
    for field, labels in get_labels(model).items():
        value = getattr(result.value, field)
        reading = read_label(answer, field, labels, value)
        assert reading.probabilities is not None
        assert (reading.off_label_mass, reading.shared) == (0.0, 0.0)
        found[field] = reading.probabilities
    return found


MODELS = [ComparativeJudgment, PairJudgment, Awkward]


@pytest.mark.parametrize("document", ["s1,s2", None])
@pytest.mark.parametrize("model", MODELS)
async def test_for_one_document_grades_are_equally_probable_and_the_first_word_is_twice_as_probable(
    model: type[AnswerModel], document: str | None
) -> None:
    result = await answered(model, document)
    assert list(result.value.model_dump().values()) == [
        labels[0] for labels in get_labels(model).values()
    ]
    for field, labels in get_labels(model).items():
        shares = probabilities(result, model)[field]
        assert list(shares) == [str(label) for label in labels]
        first, *others = shares.values()
        assert len(set(others)) == 1
        assert first == pytest.approx(others[0] if isinstance(labels[0], int) else 2 * others[0])


@pytest.mark.parametrize("title", ["Vim or Emacs, or rather vim?", "'Do' or \"don't\""])
async def test_two_objects_are_found_in_any_title_that_has_them(title: str) -> None:
    model = objects_answer(Topic("1", title))
    result = await answered(model, None)
    assert result.value.first != result.value.second


async def test_requests_tokens_and_shared_prefixes_are_counted_by_prompt() -> None:
    engine = DryRunEngine()
    # With the system message's six characters: 40, 80 and 40, of which 30 and then 6 begin as
    # before.
    for user in ("a" * 24 + "b" * 10, "a" * 24 + "c" * 50, "d" * 34):
        await engine.complete(request_for(ComparativeJudgment, user=user))
    await engine.complete(request_for(Best, user="a" * 34, prompt="comparative/best"))
    assert list(engine.usage) == ["comparative/judge", "comparative/best"]
    judge, best = engine.usage["comparative/judge"], engine.usage["comparative/best"]
    assert judge == Usage(
        requests=3, prompt_tokens=40, shared_tokens=round(30 / 4) + 2, completion_tokens=3 * 64
    )
    assert best == Usage(requests=1, prompt_tokens=10, shared_tokens=0, completion_tokens=64)


async def test_an_equal_request_is_counted_once(tmp_path: Path) -> None:
    model, engine = dry_model(tmp_path / "c.sqlite")
    request = request_for(ComparativeJudgment)
    with model.cache:
        first = await model.request(request, ComparativeJudgment)
        assert await model.request(request, ComparativeJudgment) == first
    assert (engine.usage["comparative/judge"].requests, engine.repeated) == (1, 1)
    assert list(tmp_path.iterdir()) == []


async def fill(path: Path) -> AnsweredRequest[Any]:
    """Write a cache with one answer and the description of the engine."""
    engine = ScriptedEngine(lambda _: {"relevance": 3, "quality": 2, "stance": "NEUTRAL"})
    with Cache(path) as cache:
        result = await ModelClient(
            engine_info=FACTS, engine=engine, cache=cache, sampling=SamplingConfig()
        ).request(request_for(ComparativeJudgment), ComparativeJudgment)
    assert isinstance(result, AnsweredRequest)
    return result


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["c.sqlite", "c.jsonl"])
async def test_stored_answers_are_found_and_not_changed(name: str, tmp_path: Path) -> None:
    stored = await fill(tmp_path / "c.sqlite")
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.export_cassette(tmp_path / "c.jsonl")
    before = contents(tmp_path)
    model, engine = dry_model(tmp_path / name)
    with model.cache:
        assert await model.request(request_for(ComparativeJudgment), ComparativeJudgment) == stored
        new = request_for(ComparativeJudgment, user="Another passage.")
        assert isinstance(await model.request(new, ComparativeJudgment), AnsweredRequest)
    assert (model.counts.cache_hits, model.counts.requests) == (1, 1)
    assert engine.usage["comparative/judge"].requests == 1
    assert model.counts.cached_prompt_tokens == stored.answer.prompt_tokens
    after = contents(tmp_path)
    assert {file: after[file] for file in before} == before
