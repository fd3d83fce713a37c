"""The facts about stages, and what commands and pages make of them."""

from __future__ import annotations

from msgspec.structs import replace

from tests.stage_records import all_records, judge_record, rank_record, retrieve_record
from touche_llm.runs.facts import Fact, FactGroup, join_texts, list_facts, sum_values
from touche_llm.runs.record import JudgeRecord, StageRecord


def facts_of(record: StageRecord) -> dict[str, Fact]:
    return {fact.name: fact for fact in list_facts(record)}


def with_prefix_cache(tokens: int | None, prompt_tokens: int) -> JudgeRecord:
    judge = judge_record()
    counts = replace(judge.llm.counts, prefix_cached_tokens=tokens, prompt_tokens=prompt_tokens)
    return replace(judge, llm=replace(judge.llm, counts=counts))


def test_each_fact_of_a_stage_has_its_own_name_and_label() -> None:
    for record in all_records().finished.values():
        facts = list_facts(record)
        assert len({fact.name for fact in facts}) == len({fact.label for fact in facts})
        assert len({fact.name for fact in facts}) == len(facts)


def test_what_a_stage_used_made_and_took_is_listed() -> None:
    retrieve, judge, rank = map(facts_of, (retrieve_record(), judge_record(), rank_record()))
    assert (
        retrieve["dense"].text == "embedder main" and rank["cross_encoder"].text == "reranker main"
    )
    assert (retrieve["candidates"].value, judge["judgments"].value, rank["lines"].value) == (
        9,
        9,
        9,
    )
    assert (judge["model"].text, judge["engine"].text) == ("tiny main", "vLLM 0.1")
    assert (judge["failures"].value, judge["unread"].value, judge["overruled"].value) == (3, 1, 2)
    assert (judge["prompt_tokens"].value, judge["prompt_tokens"].text) == (4000, "4,000")
    assert (judge["seconds"].value, judge["seconds"].text) == (2.5, "2.5 s")
    assert judge["labels_judge"].group is FactGroup.LABELS
    assert "0.500" in judge["labels_judge"].text
    # A stage without a language model sends nothing.
    assert not {"model", "prompts", "requests", "failures"} & {*retrieve, *rank}


def test_tokens_from_the_prefix_cache_have_their_share_if_the_server_reports_them() -> None:
    texts = {
        tokens: facts_of(with_prefix_cache(tokens, prompt_tokens=4000))["prefix_cached_tokens"].text
        for tokens in (1000, 0, None)
    }
    assert texts == {1000: "1,000 (25%)", 0: "0 (0%)", None: "–"}
    only_cached = facts_of(with_prefix_cache(0, prompt_tokens=0))
    assert only_cached["prefix_cached_tokens"].text == "0"


def test_values_are_summed_over_the_stages_that_have_them() -> None:
    records = [*all_records().finished.values(), with_prefix_cache(None, prompt_tokens=500)]
    names = ("prompt_tokens", "prefix_cached_tokens", "failures", "seconds", "nothing")
    assert sum_values(records, names) == {
        "prompt_tokens": 4500,
        "prefix_cached_tokens": 1000,
        "failures": 6,
        "seconds": 6.75,
        "nothing": 0,
    }
    assert sum_values([], ["requests"]) == {"requests": 0}


def test_the_texts_of_stages_are_joined_where_they_differ() -> None:
    judge = judge_record()
    other = replace(judge.llm.model, name="large")
    compared = replace(rank_record(), llm=replace(judge.llm, model=other))
    assert join_texts([judge, compared], FactGroup.SETUP) == {
        "model": "tiny main, large main",
        "engine": "vLLM 0.1",
        "prompts": "comparative/judge@4-ab",
        "cross-encoder": "reranker main",
    }
