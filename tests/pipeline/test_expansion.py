"""Other queries by the model: what they find comes in, what fails leaves the topic's own query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.sample_runs import Silent, config_for, retrieve_stage, run_lines, scripted_model
from tests.scripted_engine import Label
from touche_llm.config.configuration import Config
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, Queries
from touche_llm.errors import ReplayMiss
from touche_llm.llm.cache import CacheMode
from touche_llm.llm.request import Request
from touche_llm.prompts.purposes import AlternativeQueries

QUERIES = {
    "query1": "electric scooter commute",
    "query2": "bicycle city traffic",
    "query3": "notes on paper, by hand",
}
BAD = {**QUERIES, "query2": "site:evil.example heat pump"}


def answers(bad: tuple[str, ...] = ()) -> Any:
    def script(request: Request) -> Mapping[str, Label]:
        return BAD if request.origin.topic_id in bad else QUERIES

    return script


async def retrieved(
    config: Config, out: Path, script: Any
) -> tuple[Sequence[Failure], list[Request]]:
    with scripted_model(config, script) as (model, engine):
        found = await retrieve_stage(config, out, Silent(), model)
    return found.failures, engine.requests


def expanded(folder: Path, **flags: Any) -> Config:
    return config_for(folder, **({"expansion__use": True, "topic": ("3", "7")} | flags))


def candidates(out: Path, topic: str, name: str = "candidates.run.txt") -> list[str]:
    lines = [line for line in run_lines(out / name) if line.topic_id == topic]
    assert [line.rank for line in lines] == list(range(1, len(lines) + 1))
    assert len({line.document_id for line in lines}) == len(lines)
    return [line.document_id for line in lines]


async def test_a_document_that_only_another_query_finds_comes_in(tmp_path: Path) -> None:
    await retrieve_stage(expanded(tmp_path, expansion__use=False), tmp_path / "own", Silent())
    _, sent = await retrieved(expanded(tmp_path), tmp_path / "out", answers())
    own, more = candidates(tmp_path / "own", "3"), candidates(tmp_path / "out", "3")
    assert set(own) < set(more)
    assert [request.origin.topic_id for request in sent] == ["3", "7"]
    found = read_records(tmp_path / "out" / "queries.jsonl", Queries, "queries")
    assert [(each.topic_id, each.queries) for each in found] == [
        (topic, tuple(QUERIES.values())) for topic in ("3", "7")
    ]
    stage = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]["retrieve"]
    llm = stage["llm"]
    assert (llm["counts"]["requests"], llm["failures"]) == (2, {})
    assert list(llm["prompts"]) == ["queries"]


async def test_the_weight_decides_how_much_the_other_queries_count(tmp_path: Path) -> None:
    await retrieve_stage(expanded(tmp_path, expansion__use=False), tmp_path / "own", Silent())
    own = candidates(tmp_path / "own", "3")
    first: dict[str, list[str]] = {}
    for name, weight in (("little", 0.001), ("much", 1000.0)):
        config = expanded(tmp_path, expansion__weight=weight)
        await retrieved(config, tmp_path / name, answers())
        first[name] = candidates(tmp_path / name, "3")[: len(own)]
    assert first["little"] == own
    # Documents that only the other queries find displace some that the topic's own query finds.
    assert len(set(first["much"]) & set(own)) < len(own)


async def test_a_topic_whose_queries_cannot_be_used_keeps_its_own_and_the_failure_is_told(
    tmp_path: Path,
) -> None:
    await retrieve_stage(expanded(tmp_path, expansion__use=False), tmp_path / "own", Silent())
    failures, sent = await retrieved(expanded(tmp_path), tmp_path / "out", answers(bad=("7",)))
    assert len(sent) == 1 + 3
    (failure,) = failures
    assert (failure.topic_id, failure.document_id, failure.kind) == ("7", None, "outside_schema")
    assert "site:evil.example" in failure.attempts[0].text
    assert read_records(tmp_path / "out" / "query_failures.jsonl", Failure, "failures") == failures
    assert [
        each.topic_id
        for each in read_records(tmp_path / "out" / "queries.jsonl", Queries, "queries")
    ] == ["3"]
    assert candidates(tmp_path / "out", "7") == candidates(tmp_path / "own", "7")
    assert candidates(tmp_path / "out", "3") != candidates(tmp_path / "own", "3")


async def test_a_replay_finds_the_same_candidates_and_says_what_is_missing(tmp_path: Path) -> None:
    await retrieved(expanded(tmp_path), tmp_path / "one", answers())
    replay = expanded(tmp_path, cache__mode=CacheMode.REPLAY)
    _, sent = await retrieved(replay, tmp_path / "two", answers())
    assert sent == []
    for name in ("candidates.run.txt", "queries.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with pytest.raises(ReplayMiss, match=r"prompt comparative/queries .*topic 20"):
        await retrieved(
            expanded(tmp_path, cache__mode=CacheMode.REPLAY, topic=("20",)),
            tmp_path / "three",
            answers(),
        )
    assert not (tmp_path / "three" / "candidates.run.txt").exists()


async def test_sentences_are_searched_for_with_the_other_queries_too(tmp_path: Path) -> None:
    def script(request: Request) -> Mapping[str, Label]:
        return {name: words for name, words in zip(QUERIES, found, strict=True)}

    flags: dict[str, Any] = {"task": "sentence_pairs", "depth": 20, "sentences__pool": 60}
    one, other = (
        config_for(tmp_path, limit_topics=1, expansion__use=use, **flags) for use in (False, True)
    )
    await retrieve_stage(one, tmp_path / "own", Silent())
    topic = run_lines(tmp_path / "own" / "sentences.run.txt")[0].topic_id
    found = ["homework exercises pupils", "teachers grades lessons", "cost of energy and food"]
    await retrieved(other, tmp_path / "out", script)
    own, more = (candidates(tmp_path / name, topic, "sentences.run.txt") for name in ("own", "out"))
    assert len(more) <= 60 and own != more


def test_a_query_that_could_be_more_than_words_is_refused() -> None:
    for query in (
        '"heat pump"',
        "site:a.org heat",
        "heat pump\n",
        "<|im_end|>",
        "-heat pump",
        "a" * 101,
        "a\u202eb",
    ):
        with pytest.raises(ValidationError):
            AlternativeQueries.model_validate(QUERIES | {"query2": query})
