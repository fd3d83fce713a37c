from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from tests.ranking.test_comparer import Held, load_prompts
from tests.scripted_engine import FACTS, Script, ScriptedEngine
from touche_llm.data.records import Candidate, RunLine, Topic
from touche_llm.judging.requests import RequestBuilder
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.model import ModelClient
from touche_llm.llm.request import MAX_SAMPLES, Request, Sampling
from touche_llm.llm.settings import SamplingConfig
from touche_llm.prompts.purposes import LABELS
from touche_llm.ranking.steps import RankingSettings, parse_steps
from touche_llm.ranking.topics import RankedTopics, RankingPlan, rank_topics
from touche_llm.tasks import get_task

TASK = get_task("comparative")
WEIGHTS = {"relevance": 1.0, "quality": 1.0, "first_stage": 1.0}


@pytest.fixture
def cache() -> Iterator[Cache]:
    with Cache(Path("unused"), CacheMode.OFF) as opened:
        yield opened


def last_best(request: Request) -> Mapping[str, str]:
    """A judge for whom what is shown last is the best."""
    count = len((request.origin.document_id or "").split())
    if "order" in list_fields(request.schema):
        return {"order": " > ".join(reversed(LABELS[:count]))}
    return {"best": LABELS[count - 1]}


async def rank(
    cache: Cache,
    documents: Mapping[str, int],
    steps: str,
    script: Script = last_best,
    without_objects: tuple[str, ...] = (),
) -> tuple[RankedTopics, ScriptedEngine]:
    """Rank topics with so many candidates each, for the comparative task."""
    engine = ScriptedEngine(script)
    topics = [
        Topic(each, f"Question {each}?", objects=None if each in without_objects else ("x", "y"))
        for each in documents
    ]
    candidates = {
        topic: [
            Candidate(topic, f"{topic}-{rank}", rank, 1.0 / rank) for rank in range(1, count + 1)
        ]
        for topic, count in documents.items()
    }
    ids = [each.document_id for ranking in candidates.values() for each in ranking]
    ranked = await rank_topics(
        topics,
        candidates,
        {},
        {
            topic: {each.document_id: "NO" for each in ranking}
            for topic, ranking in candidates.items()
        },
        RankingPlan(
            TASK,
            WEIGHTS,
            parse_steps(steps.split(",")),
            RankingSettings(),
            "tag",
            documents=Held({each: f"Text of {each}." for each in ids}),
            prompts=load_prompts("comparative"),
            builder=RequestBuilder(
                ModelClient(
                    engine_info=FACTS, engine=engine, cache=cache, sampling=SamplingConfig()
                ),
                Sampling(),
                {},
                3,
            ),
        ),
        lambda: None,
    )
    return ranked, engine


def ranking_of(lines: list[RunLine], topic: str) -> list[str]:
    return [line.document_id for line in lines if line.topic_id == topic]


async def test_topics_without_documents_or_with_a_single_one_are_ranked_without_a_question(
    cache: Cache,
) -> None:
    ranked, engine = await rank(cache, {"1": 0, "2": 1, "3": 2}, "listwise:10")
    assert {request.origin.topic_id for request in engine.requests} == {"3"}
    assert [(line.topic_id, line.document_id, line.rank) for line in ranked.lines] == [
        ("2", "2-1", 1),
        ("3", "3-2", 1),
        ("3", "3-1", 2),
    ]


async def test_what_no_objects_are_known_for_is_not_compared_and_keeps_its_order(
    cache: Cache,
) -> None:
    for steps in ("setwise:3", "judge,listwise:3,balance:2"):
        ranked, engine = await rank(cache, {"1": 3, "2": 3}, steps, without_objects=("1",))
        assert {request.origin.topic_id for request in engine.requests} == {"2"}
        assert ranking_of(ranked.lines, "1") == ["1-1", "1-2", "1-3"]
        assert ranking_of(ranked.lines, "2") != ["2-1", "2-2", "2-3"]


async def test_lines_and_records_are_in_the_order_of_topics_whichever_answer_comes_first(
    cache: Cache,
) -> None:
    ranked, engine = await rank(cache, {"9": 7, "1": 4}, "sliding:6,listwise:3")
    steps = [(each.topic_id, each.step) for each in ranked.comparisons]
    expected = [(topic, step) for topic in ("9", "1") for step in ("sliding:6", "listwise:3")]
    assert [each for each, _ in groupby(steps)] == expected and len(steps) == len(engine.requests)
    assert [topic for topic, _ in groupby(line.topic_id for line in ranked.lines)] == ["9", "1"]
    for _, group in groupby(ranked.lines, key=lambda line: line.topic_id):
        of_topic = list(group)
        assert [line.rank for line in of_topic] == list(range(1, len(of_topic) + 1))
        assert all(above.score > below.score for above, below in pairwise(of_topic))
        assert {line.tag for line in of_topic} == {"tag"}


@pytest.mark.parametrize("steps", ["sliding:2,insertion:2,setwise:2", "listwise:2,listwise:2"])
async def test_a_question_that_failed_in_one_step_is_not_sent_again_in_the_next_and_counts_once(
    steps: str, cache: Cache
) -> None:
    ranked, engine = await rank(
        cache, {"1": 2}, steps, lambda request: {name: "Z" for name in list_fields(request.schema)}
    )
    questions = {(request.origin.prompt, request.origin.document_id) for request in engine.requests}
    assert len(engine.requests) == MAX_SAMPLES * len(questions)
    assert len(ranked.failures) == len(questions) >= 1
    assert ranking_of(ranked.lines, "1") == ["1-1", "1-2"]
