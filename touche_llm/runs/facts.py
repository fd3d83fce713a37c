"""The facts about stages that commands and pages show: one list of them, with labels and texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from touche_llm.engines.use import ModelRecord
from touche_llm.llm.label_statistics import LabelCounts
from touche_llm.runs.record import (
    JudgeRecord,
    ModelUse,
    RankRecord,
    RequestCounts,
    RetrieveRecord,
    StageRecord,
)


class FactGroup(StrEnum):
    """What facts are about."""

    # Models and prompts.
    SETUP = "setup"
    # What came out of the stage.
    RESULT = "result"
    # What the labels of each prompt are worth.
    LABELS = "labels"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a stage.

    Attributes:
        group: What it is about.
        name: Name for programs.
        label: Name for people.
        value: Number or text; None if the server does not report it.
        text: Value as people read it.
    """

    group: FactGroup
    name: str
    label: str
    value: int | float | str | None
    text: str


def list_facts(record: StageRecord) -> list[Fact]:
    """List the facts about a stage; facts that do not apply to it are left out."""
    facts = [*_list_models(record), *_list_results(record), *_list_costs(record)]
    if record.llm is not None:
        facts += _list_answer_facts(record.llm)
        facts += _list_request_costs(record.llm.counts)
    return facts


def select_facts(record: StageRecord, group: FactGroup) -> list[Fact]:
    """List the facts of one group about a stage."""
    return [fact for fact in list_facts(record) if fact.group is group]


def join_texts(records: Iterable[StageRecord], group: FactGroup) -> dict[str, str]:
    """Return the texts of a group of facts by label, joined by commas where stages differ."""
    texts_by_label: dict[str, list[str]] = {}
    for record in records:
        for fact in select_facts(record, group):
            texts = texts_by_label.setdefault(fact.label, [])
            if fact.text not in texts:
                texts.append(fact.text)
    return {label: ", ".join(texts) for label, texts in texts_by_label.items()}


def sum_values(records: Iterable[StageRecord], names: Collection[str]) -> dict[str, int | float]:
    """Return the sum over stages of the facts of these names; 0 if no stage has such a fact."""
    sums: dict[str, int | float] = dict.fromkeys(names, 0)
    for record in records:
        for fact in list_facts(record):
            if fact.name in sums and isinstance(fact.value, int | float):
                sums[fact.name] += fact.value
    # Durations are in milliseconds; their sum is not exact.
    return {name: round(value, 3) for name, value in sums.items()}


def format_seconds(seconds: float) -> str:
    """Return a duration as every command and page writes it."""
    return f"{seconds:,.1f} s"


def _list_models(record: StageRecord) -> Iterator[Fact]:
    """Yield the facts about the models that a stage used."""
    if record.llm is not None:
        yield _make_text(FactGroup.SETUP, "model", "model", _name_model(record.llm.model))
        yield _make_text(FactGroup.SETUP, "engine", "engine", record.llm.model.engine)
    if isinstance(record, RetrieveRecord) and record.dense is not None:
        name = _name_model(record.dense.model)
        yield _make_text(FactGroup.SETUP, "dense", "embedding model", name)
    if isinstance(record, RankRecord) and record.cross_encoder is not None:
        name = _name_model(record.cross_encoder.model)
        yield _make_text(FactGroup.SETUP, "cross_encoder", "cross-encoder", name)


def _name_model(model: ModelRecord) -> str:
    """Return the name of a model, followed by its revision if it has one."""
    return f"{model.name} {model.revision}".strip()


def _list_results(record: StageRecord) -> Iterator[Fact]:
    """Yield the facts about what came out of a stage."""
    match record:
        case RetrieveRecord():
            yield _make_result("topics", "topics", record.topics)
            yield _make_result("candidates", "candidates", record.candidates)
        case JudgeRecord():
            yield _make_result("judgments", "judgments", record.judgments)
        case RankRecord():
            yield _make_result("lines", "lines", record.lines)
            yield _make_result("imputed_stances", "imputed stances", record.imputed_stances)


def _list_answer_facts(use: ModelUse) -> Iterator[Fact]:
    """Yield the facts about the prompts of a stage and the answers to them."""
    prompts = ", ".join(use.prompts.values())
    yield _make_text(FactGroup.SETUP, "prompts", "prompts", prompts)
    for purpose, counts in use.labels.items():
        label = f"labels of {purpose}"
        yield _make_text(FactGroup.LABELS, f"labels_{purpose}", label, _describe_labels(counts))

    failures = sum(use.failures.values())
    unread = sum(counts.unread for counts in use.labels.values())
    overruled = sum(counts.overruled for counts in use.labels.values())
    yield _make_result("failures", "failures", failures)
    yield _make_result("unread", "answers with unreadable labels", unread)
    yield _make_result("overruled", "stances unlike the written answer", overruled)


def _describe_labels(counts: LabelCounts) -> str:
    """Return what the labels of a prompt say about documents, and the problems with them."""
    known = [f"{name} {bits:.3f}" for name, bits in counts.bits.items() if bits is not None]
    if known:
        information = f"information {', '.join(known)} bits"
    else:
        information = "too few answers to say whether labels differ by document"
    return "; ".join([information, *counts.list_problems(), *counts.describe_overruled()])


def _list_costs(record: StageRecord) -> Iterator[Fact]:
    """Yield the facts about time and memory of a stage."""
    yield Fact(
        group=FactGroup.COST,
        name="seconds",
        label="time",
        value=record.seconds,
        text=format_seconds(record.seconds),
    )
    yield _make_cost("peak_memory_mib", "peak memory, MiB", record.peak_memory_mib)


def _list_request_costs(counts: RequestCounts) -> Iterator[Fact]:
    """Yield the facts about the requests of a stage and their tokens."""
    yield _make_cost("requests", "requests", counts.requests)
    yield _make_cost("cached", "answers from the cache", counts.cache_hits)
    yield _make_cost("prompt_tokens", "prompt tokens", counts.prompt_tokens)
    yield Fact(
        group=FactGroup.COST,
        name="prefix_cached_tokens",
        label="prompt tokens from the prefix cache",
        value=counts.prefix_cached_tokens,
        text=_describe_prefix_cache(counts),
    )
    yield _make_cost("completion_tokens", "completion tokens", counts.completion_tokens)
    yield _make_cost(
        "cached_prompt_tokens",
        "prompt tokens saved by the answer cache",
        counts.cached_prompt_tokens,
    )
    yield _make_cost("cut", "truncated documents", counts.cut)


def _describe_prefix_cache(counts: RequestCounts) -> str:
    """Return the prompt tokens from the prefix cache with their share, or a dash if unknown."""
    tokens = counts.prefix_cached_tokens
    if tokens is None:
        return "–"
    if counts.prompt_tokens == 0:
        return f"{tokens:,}"
    return f"{tokens:,} ({tokens / counts.prompt_tokens:.0%})"


def _make_text(group: FactGroup, name: str, label: str, text: str) -> Fact:
    return Fact(group=group, name=name, label=label, value=text, text=text)


def _make_result(name: str, label: str, number: int) -> Fact:
    return _make_count(FactGroup.RESULT, name, label, number)


def _make_cost(name: str, label: str, number: int) -> Fact:
    return _make_count(FactGroup.COST, name, label, number)


def _make_count(group: FactGroup, name: str, label: str, number: int) -> Fact:
    return Fact(group=group, name=name, label=label, value=number, text=f"{number:,}")
