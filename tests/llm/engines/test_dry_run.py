"""Dry run: answers that fit every schema, estimated usage, and a cache that is not changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import pytest
from pydantic import Field

from tests.answer_models import ComparativeJudgment, ControversialJudgment, PairJudgment, SentenceJudgment
from tests.scripted_engine import FACTS, ScriptedEngine
from touche_llm.data.records import Topic
from touche_llm.errors import DataError, EngineError
from touche_llm.llm.answers import AnswerModel, FailedRequest, build_schema, get_labels, parse_answer
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.counts import Counts
from touche_llm.llm.engine import EngineInfo
from touche_llm.llm.logprobs import compute_expected_grade, read_label
from touche_llm.llm.model import AnsweredRequest, ModelClient
from touche_llm.llm.recorder import DryEngine, OverlayCache, Usage
from touche_llm.llm.request import Message, Origin, Request, Sampling
from touche_llm.pipeline.engines import store_engine_info
from touche_llm.tasks.features import objects_answer


class Awkward(AnswerModel):
    """Labels that are prefixes of each other, or contain the end of a value."""

    grade: Literal[1, 10, 100]
    word: Literal["NO", "NONE", "N", "NO,NOT", 'a"quoted"é']


class Order(AnswerModel):
    order: Annotated[str, Field(pattern=r"^[A-D]( > [A-D]){1,3}$")]


class Queries(AnswerModel):
    query1: Annotated[str, Field(pattern=r"^[A-Za-z0-9 ,'-]{3,100}$")]
    query_2: Annotated[str, Field(pattern=r"^[A-Za-z0-9 ,'-]{3,100}$")]


class Best(AnswerModel):
    best: Literal["A", "B", "C"]


def request_for(
    model: type[AnswerModel], document: str | None = "d1", user: str = "Passage.", prompt: str = "comparative/judge"
) -> Request:
    return Request(
        messages=(Message("system", "Judge."), Message("user", user)),
        schema=build_schema(model),
        sampling=Sampling(),
        model=FACTS.model,
        revision=FACTS.revision,
        chat_template_kwargs={},
        origin=Origin(prompt, 1, "0" * 12, "1", document),
    )


def dry_model(path: Path, answers: Literal["first", "second"] = "first", **facts: Any) -> tuple[ModelClient, DryEngine]:
    engine = DryEngine(answers)
    return ModelClient(engine_info=FACTS.model_copy(update=facts), engine=engine, cache=OverlayCache(path)), engine


async def answered(
    model: type[AnswerModel], document: str | None, answers: Literal["first", "second"] = "first"
) -> AnsweredRequest[Any]:
    client, _ = dry_model(Path("nowhere.sqlite"), answers)
    with client.cache:
        result = await client.request(request_for(model, document), model)
    assert isinstance(result, AnsweredRequest), result
    assert (result.sample, client.counts.resamples) == (0, 0)
    return result


def probabilities(result: AnsweredRequest[Any], model: type[AnswerModel]) -> Mapping[str, Mapping[str, float]]:
    found = {}
    for field, labels in get_labels(model).items():
        value = getattr(result.value, field)
        reading = read_label(result.answer.text, result.answer.tokens, result.layout, field, labels, value)
        assert reading.probabilities is not None
        assert (reading.off_label_mass, reading.shared) == (0.0, 0.0)
        found[field] = reading.probabilities
    return found


MODELS = [ComparativeJudgment, ControversialJudgment, SentenceJudgment, PairJudgment, Awkward]


@pytest.mark.parametrize("document", ["d1", "s1,s2", None])
@pytest.mark.parametrize("model", MODELS)
async def test_for_one_document_grades_are_equally_probable_and_the_first_word_is_twice_as_probable(
    model: type[AnswerModel], document: str | None
) -> None:
    result = await answered(model, document, "second")
    assert list(result.value.model_dump().values()) == [labels[0] for labels in get_labels(model).values()]
    for field, labels in get_labels(model).items():
        shares = probabilities(result, model)[field]
        assert list(shares) == [str(label) for label in labels]
        first, *others = shares.values()
        assert len(set(others)) == 1
        assert first == pytest.approx(others[0] if isinstance(labels[0], int) else 2 * others[0])


async def test_the_expected_grade_is_the_middle() -> None:
    result = await answered(ComparativeJudgment, "d1")
    reading = read_label(
        result.answer.text, result.answer.tokens, result.layout, "quality", (0, 1, 2, 3), result.value.quality
    )
    assert compute_expected_grade(reading) == 1.5


@pytest.mark.parametrize(("answers", "place"), [("first", 0), ("second", 1)])
@pytest.mark.parametrize("model", [Best, Awkward])
async def test_for_several_documents_one_label_is_certain(
    model: type[AnswerModel], answers: Literal["first", "second"], place: int
) -> None:
    result = await answered(model, "d1 d2 d3", answers)
    for field, labels in get_labels(model).items():
        assert getattr(result.value, field) == labels[place]
        shares = probabilities(result, model)[field]
        assert {label: share for label, share in shares.items() if share} == {str(labels[place]): 1.0}


@pytest.mark.parametrize(("answers", "order"), [("first", "A > B > C"), ("second", "C > B > A")])
async def test_an_order_lists_the_documents_forwards_or_backwards(
    answers: Literal["first", "second"], order: str
) -> None:
    assert (await answered(Order, "d1 d2 d3", answers)).value.order == order


async def test_objects_that_all_share_a_word_are_the_first_and_the_last() -> None:
    fields = {"first": {"enum": ["green tea", "tea"]}, "second": {"enum": ["tea", "iced tea", "a tea"]}}
    schema = {"type": "object", "properties": fields}
    completion = await DryEngine("first").complete(replace(request_for(ComparativeJudgment, None), schema=schema))
    assert orjson.loads(completion.text) == {"first": "green tea", "second": "a tea"}


async def test_queries_differ_and_fit_their_pattern() -> None:
    queries = (await answered(Queries, None)).value.model_dump()
    assert len(set(queries.values())) == 2


async def test_a_pattern_without_a_known_text_is_an_error_and_no_unusable_answer() -> None:
    with pytest.raises(EngineError, match="'order'.* 5 .*'A > B > C > D"):
        await DryEngine("first").complete(request_for(Order, "d1 d2 d3 d4 d5"))


@pytest.mark.parametrize(
    "title",
    [
        "Which is better, Canon or Nikon?",
        "Vim or Emacs, or rather vim?",
        "vim versus emacs or vim",
        "To be or not to be",
        "a\tb",
        "'Do' or \"don't\"",
    ],
)
async def test_two_objects_are_found_in_any_title_that_has_them(title: str) -> None:
    model = objects_answer(Topic("1", title))
    result = await answered(model, None)
    assert result.value.first != result.value.second


async def test_a_title_without_two_objects_is_requested_three_times() -> None:
    model = objects_answer(Topic("1", "Vim vim"))
    client, engine = dry_model(Path("nowhere.sqlite"))
    with client.cache:
        result = await client.request(request_for(model, None), model)
    assert isinstance(result, FailedRequest)
    assert engine.usage["comparative/judge"].requests == len(result.attempts) == 3


async def test_without_log_probabilities_there_are_none() -> None:
    request = replace(request_for(ComparativeJudgment), sampling=Sampling(top_logprobs=0))
    completion = await DryEngine("first").complete(request)
    assert completion.tokens == []
    parse_answer(completion.text, ComparativeJudgment)


async def test_requests_tokens_and_shared_prefixes_are_counted_by_prompt() -> None:
    engine = DryEngine("first")
    # With the system message's six characters: 40, 80 and 40, of which 30 and then 6 begin as before.
    for user in ("a" * 24 + "b" * 10, "a" * 24 + "c" * 50, "d" * 34):
        await engine.complete(request_for(ComparativeJudgment, user=user))
    await engine.complete(request_for(Best, user="a" * 34, prompt="comparative/best"))
    assert list(engine.usage) == ["comparative/judge", "comparative/best"]
    judge, best = engine.usage["comparative/judge"], engine.usage["comparative/best"]
    assert judge == Usage(requests=3, prompt_tokens=40, shared_tokens=round(30 / 4) + 2, completion_tokens=3 * 64)
    assert best == Usage(requests=1, prompt_tokens=10, shared_tokens=0, completion_tokens=64)


async def test_an_equal_request_is_answered_from_the_cache(tmp_path: Path) -> None:
    model, engine = dry_model(tmp_path / "c.sqlite")
    request = request_for(ComparativeJudgment)
    with model.cache:
        first = await model.request(request, ComparativeJudgment)
        assert await model.request(request, ComparativeJudgment) == first
    assert (model.counts.requests, model.counts.cache_hits) == (1, 1)
    assert engine.usage["comparative/judge"].requests == 1
    assert model.counts.prompt_tokens == engine.usage["comparative/judge"].prompt_tokens
    assert (model.counts.prefix_cached_tokens, model.counts.prefix_reports) == (0, 0)
    assert list(tmp_path.iterdir()) == []


async def test_the_counts_of_a_stage_are_the_increase(tmp_path: Path) -> None:
    model, _ = dry_model(tmp_path / "c.sqlite")
    with model.cache:
        await model.request(request_for(ComparativeJudgment), ComparativeJudgment)
        before = replace(model.counts)
        assert model.counts.since(before) == Counts()
        await model.request(request_for(ComparativeJudgment), ComparativeJudgment)
        await model.request(request_for(ComparativeJudgment, user="Other."), ComparativeJudgment)
    model.counts.problem = "the last"
    spent = model.counts.since(before)
    assert (spent.requests, spent.cache_hits, spent.failures, spent.problem) == (1, 1, 0, "the last")
    assert spent.prompt_tokens == model.counts.prompt_tokens - before.prompt_tokens > 0


async def test_a_long_document_is_truncated_in_estimated_tokens(tmp_path: Path) -> None:
    model, engine = dry_model(tmp_path / "c.sqlite", context=500)
    text = "This is a sentence. " * 500

    def request(document: str) -> Request:
        return request_for(ComparativeJudgment, user=f"Passage: {document}")

    with model.cache:
        result, cut = await model.request_truncated(request, text, ComparativeJudgment)
        again, same = await model.request_truncated(request, text, ComparativeJudgment)
    assert isinstance(result, AnsweredRequest) and cut is not None
    assert cut.prompt_tokens == engine.usage["comparative/judge"].prompt_tokens <= 500 - 64
    assert cut.kept_chars > 0.7 * (500 - 64) * 4
    assert (again, same) == (result, cut)
    assert engine.usage["comparative/judge"].requests == 1


async def fill(path: Path) -> AnsweredRequest[Any]:
    """Write a cache with one answer and the description of the engine."""
    engine = ScriptedEngine(lambda _: {"relevance": 3, "quality": 2, "stance": "NEUTRAL"})
    with Cache(path) as cache:
        result = await ModelClient(engine_info=FACTS, engine=engine, cache=cache).request(
            request_for(ComparativeJudgment), ComparativeJudgment
        )
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
    with model.cache as cache:
        assert await model.request(request_for(ComparativeJudgment), ComparativeJudgment) == stored
        new = request_for(ComparativeJudgment, user="Another passage.")
        assert isinstance(await model.request(new, ComparativeJudgment), AnsweredRequest)
        assert [entry.key for entry in cache.find("answer", topic="1")] == sorted([stored.key, new.key])
        assert (cache.path, cache.mode) == (tmp_path / name, CacheMode.REUSE)
    assert (model.counts.cache_hits, model.counts.requests) == (1, 1)
    assert engine.usage["comparative/judge"].requests == 1
    assert model.counts.cached_prompt_tokens == stored.answer.prompt_tokens
    after = contents(tmp_path)
    assert {file: after[file] for file in before} == before


async def test_a_run_that_stores_answers_meanwhile_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with Cache(path) as running, OverlayCache(path) as overlay:
        stored = await fill(path)
        assert overlay.find("answer") == running.find("answer")
        assert overlay.find("answer")[0].key == stored.key


def test_a_file_that_is_not_a_cache_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_text("something else")
    with pytest.raises(DataError, match=r"c\.sqlite: "):
        OverlayCache(path)
    assert path.read_text() == "something else"


def test_an_empty_file_is_a_missing_cache(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.touch()
    with OverlayCache(path) as overlay:
        assert overlay.find("answer") == []
    assert path.read_bytes() == b""
    with Cache(path) as cache:
        assert cache.find("answer") == []


def test_the_description_of_an_engine_is_kept_in_memory_only(tmp_path: Path) -> None:
    with OverlayCache(tmp_path / "c.sqlite") as cache:
        store_engine_info(FACTS, cache)
        (entry,) = cache.find("engine")
    assert EngineInfo.model_validate(entry.value) == FACTS
    assert list(tmp_path.iterdir()) == []
