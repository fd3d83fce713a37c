"""Records of finished stages, as a small run has them."""

from __future__ import annotations

from collections.abc import Sequence

from touche_llm.engines.use import ModelRecord, PoolingCounts, PoolingUse
from touche_llm.llm.counts import Counts
from touche_llm.llm.label_statistics import LabelCounts
from touche_llm.retrieval.corpus import CorpusRecord
from touche_llm.runs.record import (
    JudgeRecord,
    ModelUse,
    RankRecord,
    RequestCounts,
    RetrieveRecord,
    StageRecords,
)


def model_record(name: str = "tiny") -> ModelRecord:
    return ModelRecord(
        name=name, revision="main", context=4096, engine="vLLM 0.1", serving={"root": "/tiny"}
    )


def model_use(**prompts: str) -> ModelUse:
    counts = Counts(
        requests=8,
        cache_hits=2,
        prompt_tokens=4000,
        completion_tokens=90,
        prefix_cached_tokens=1000,
        prefix_reports=8,
        cut=1,
    )
    labels = LabelCounts(answers=9, unread=1, first="topic 3", overruled=2, bits={"stance": 0.5})
    return ModelUse(
        model=model_record(),
        prompts=prompts,
        counts=RequestCounts.from_counts(counts),
        failures={"not_json": 2, "timeout": 1},
        labels=dict.fromkeys(prompts, labels),
    )


def pooling_use(name: str, dimensions: int | None) -> PoolingUse:
    return PoolingUse(
        model=model_record(name),
        templates={"query": "query: {query}", "document": "{document}"},
        instruction="Find arguments",
        dimensions=dimensions,
        counts=PoolingCounts(requests=5, cache_hits=0, retries=1, cut=0),
    )


def retrieve_record() -> RetrieveRecord:
    return RetrieveRecord(
        chosen_topics=["3", "7"],
        llm=None,
        seconds=1.25,
        peak_memory_mib=90,
        inputs={"topics": "ab" * 32},
        corpus=CorpusRecord(source="passages.jsonl", documents=44, bad_lines=0),
        seconds_to_open_corpus=0.25,
        topics=2,
        depth=5,
        candidates=9,
        topics_without_candidates=[],
        dense=pooling_use("embedder", 32),
    )


def judge_record() -> JudgeRecord:
    return JudgeRecord(
        chosen_topics=["3", "7"],
        llm=model_use(judge="comparative/judge@4-ab"),
        seconds=2.5,
        peak_memory_mib=110,
        judgments=9,
        judgments_without_probabilities=1,
        mean_off_label_mass=0.125,
        sentences=None,
        pairs=None,
    )


def rank_record(chosen_topics: Sequence[str] | None = ("3", "7")) -> RankRecord:
    return RankRecord(
        chosen_topics=None if chosen_topics is None else list(chosen_topics),
        llm=None,
        seconds=0.5,
        peak_memory_mib=100,
        lines=9,
        imputed_stances=0,
        cross_encoder=pooling_use("reranker", None),
    )


def all_records() -> StageRecords:
    return StageRecords(retrieve=retrieve_record(), judge=judge_record(), rank=rank_record())
