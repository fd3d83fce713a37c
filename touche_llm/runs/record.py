"""The record of a run: what its finished stages used, made and took, as `ir-metadata.yml` has it.

The stages write it, everything else reads it. The descriptions of the fields are the reference page
of the metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

import msgspec

from touche_llm.data.records import Count, JsonStruct
from touche_llm.engines.use import ModelRecord, PoolingUse
from touche_llm.llm.counts import Counts
from touche_llm.llm.label_statistics import LabelCounts
from touche_llm.retrieval.corpus import CorpusRecord

StageName = Literal["retrieve", "judge", "rank"]
STAGES: tuple[StageName, ...] = ("retrieve", "judge", "rank")
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class RequestCounts(JsonStruct, frozen=True, kw_only=True):
    """Counts of a stage's requests to a language model, and of their tokens.

    Attributes:
        requests: Requests sent to the engine, with resamples, without retries.
        cache_hits: Answers taken from the answer cache.
        retries: Repetitions of requests after transient failures.
        resamples: Further samples requested after unusable answers.
        failures: Requests without a usable answer.
        unusable_records: Unusable answers found in the cache.
        known_failures: Requests that failed before and were not sent again.
        cut: Documents that were truncated to fit the context.
        prompt_tokens: Tokens of the prompts sent.
        completion_tokens: Tokens of the completions received, with reasoning.
        cached_prompt_tokens: Prompt tokens of the answers taken from the answer cache.
        cached_completion_tokens: Completion tokens of the answers taken from the answer cache.
        prefix_cached_tokens: Prompt tokens taken from the server's prefix cache; null if the server
            reports none.
        thoughts: Requests in which the model reasons.
        thought_tokens: Completion tokens that are reasoning.
    """

    requests: Count
    cache_hits: Count
    retries: Count
    resamples: Count
    failures: Count
    unusable_records: Count
    known_failures: Count
    cut: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_prompt_tokens: Count
    cached_completion_tokens: Count
    prefix_cached_tokens: Count | None
    thoughts: Count
    thought_tokens: Count

    @classmethod
    def from_counts(cls, counts: Counts) -> RequestCounts:
        """Return the record of a client's counts."""
        has_prefix_reports = counts.prefix_reports > 0
        return cls(
            requests=counts.requests,
            cache_hits=counts.cache_hits,
            retries=counts.retries,
            resamples=counts.resamples,
            failures=counts.failures,
            unusable_records=counts.unusable_records,
            known_failures=counts.known_failures,
            cut=counts.cut,
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            cached_prompt_tokens=counts.cached_prompt_tokens,
            cached_completion_tokens=counts.cached_completion_tokens,
            prefix_cached_tokens=counts.prefix_cached_tokens if has_prefix_reports else None,
            thoughts=counts.thoughts,
            thought_tokens=counts.thought_tokens,
        )


class ModelUse(JsonStruct, frozen=True, kw_only=True):
    """A stage's use of a language model.

    Attributes:
        model: Model that answered.
        prompts: Name, version and hash of each prompt, by its purpose.
        counts: Counts of requests and tokens.
        failures: Number of requests without a usable answer, by kind of failure.
        labels: Counts of the answers whose labels are read from log-probabilities, by purpose of
            their prompt.
    """

    model: ModelRecord
    prompts: dict[str, str]
    counts: RequestCounts
    failures: dict[str, Count]
    labels: dict[str, LabelCounts]


class StageRecord(JsonStruct, frozen=True, kw_only=True):
    """What every stage records.

    Attributes:
        chosen_topics: Ids of the topics chosen by `--topic` or `--limit-topics`; null if all topics
            of the file are in the run.
        llm: Use of a language model; null if the stage used none.
        seconds: Duration of the stage.
        peak_memory_mib: Peak memory of the program until the end of the stage, in MiB.
    """

    chosen_topics: list[str] | None
    llm: ModelUse | None
    seconds: Seconds
    peak_memory_mib: Count

    @property
    def prompts(self) -> Mapping[str, str]:
        """Labels of the prompts, by purpose; empty if the stage used no language model."""
        return {} if self.llm is None else self.llm.prompts

    @property
    def labels(self) -> Mapping[str, LabelCounts]:
        """Counts of labels, by purpose of the prompt; empty if none were read."""
        return {} if self.llm is None else self.llm.labels


class RetrieveRecord(StageRecord, frozen=True, kw_only=True):
    """Record of the first stage.

    Attributes:
        inputs: SHA-256 of the files that the stage read, by setting; that of the corpus also if
            only its index was read.
        corpus: Corpus that was searched.
        seconds_to_open_corpus: Part of `seconds` in which the corpus was stored or opened.
        topics: Number of topics.
        depth: Max candidates per topic.
        candidates: Number of candidates of all topics.
        topics_without_candidates: Ids of the topics for which nothing was found.
        dense: Use of an embedding model; null if there is no dense retrieval.
    """

    inputs: dict[str, str]
    corpus: CorpusRecord
    seconds_to_open_corpus: Seconds
    topics: Count
    depth: Count
    candidates: Count
    topics_without_candidates: list[str]
    dense: PoolingUse | None


class JudgeRecord(StageRecord, frozen=True, kw_only=True):
    """Record of the second stage.

    Attributes:
        llm: Use of the language model that judged.
        judgments: Number of judgments by the model, of candidates and of sentences.
        judgments_without_probabilities: Number of judgments that rest on the text of the answer,
            since no log-probabilities could be read.
        mean_off_label_mass: Mean probability outside the labels; null without log-probabilities.
        sentences: Number of judgments of sentences; null unless pairs are made.
        pairs: Number of pairs made of the sentences; null unless pairs are made.
    """

    llm: ModelUse
    judgments: Count
    judgments_without_probabilities: Count
    mean_off_label_mass: float | None
    sentences: Count | None
    pairs: Count | None


class RankRecord(StageRecord, frozen=True, kw_only=True):
    """Record of the last stage; it uses a language model only if documents are compared.

    Attributes:
        lines: Number of lines of the run.
        imputed_stances: Number of lines whose document has no judgment; their stance is the task's
            label for an unknown one.
        cross_encoder: Use of a cross-encoder; null if no step needs one.
    """

    lines: Count
    imputed_stances: Count
    cross_encoder: PoolingUse | None


class StageRecords(JsonStruct, frozen=True, kw_only=True, omit_defaults=True):
    """Records of the finished stages.

    Attributes:
        retrieve: Record of the first stage, once it is finished.
        judge: Record of the second stage, once it is finished.
        rank: Record of the last stage, once it is finished.
    """

    retrieve: RetrieveRecord | None = None
    judge: JudgeRecord | None = None
    rank: RankRecord | None = None

    @property
    def finished(self) -> dict[StageName, StageRecord]:
        """Records of the finished stages by name, in the order of the stages."""
        records: dict[StageName, StageRecord | None] = {
            "retrieve": self.retrieve,
            "judge": self.judge,
            "rank": self.rank,
        }
        return {name: record for name, record in records.items() if record is not None}

    @property
    def prompts(self) -> dict[str, str]:
        """Labels of the prompts of all stages, by purpose."""
        prompts: dict[str, str] = {}
        for record in self.finished.values():
            prompts.update(record.prompts)
        return prompts

    def select(self, stages: Collection[StageName]) -> StageRecords:
        """Return the records of these stages, as far as they are finished."""
        return StageRecords(
            retrieve=self.retrieve if "retrieve" in stages else None,
            judge=self.judge if "judge" in stages else None,
            rank=self.rank if "rank" in stages else None,
        )

    def before(self, stage: StageName) -> StageRecords:
        """Return the records of the stages before this one."""
        return self.select(STAGES[: STAGES.index(stage)])

    def add(self, record: RetrieveRecord | JudgeRecord | RankRecord) -> StageRecords:
        """Return the records with that of one more stage, without those of later stages."""
        match record:
            case RetrieveRecord():
                return StageRecords(retrieve=record)
            case JudgeRecord():
                return StageRecords(retrieve=self.retrieve, judge=record)
            case RankRecord():
                return StageRecords(retrieve=self.retrieve, judge=self.judge, rank=record)


# The other keys of the metadata are unknown here, and not forbidden.
class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a run: the part of its metadata that ir_metadata does not define.

    Attributes:
        stages: Records of the finished stages.
        unfinished: Stage that has begun to replace its outputs and has not finished.
    """

    stages: StageRecords
    unfinished: StageName | None = None
