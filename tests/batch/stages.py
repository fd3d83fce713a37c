"""Stages run with batch files on the sample, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import batch_replies as b
from tests.sample_runs import Silent, config_for, with_cache
from tests.scripted_engine import FACTS, Script, ScriptedEngine
from tests.write_demo_cassette import script_of
from touche_llm.config.configuration import Config
from touche_llm.llm.cache import Cache, CacheMode
from touche_llm.llm.request import Request
from touche_llm.runs.batch import Import, export_requests, import_responses
from touche_llm.runs.record import StageName
from touche_llm.runs.stages import run_judge, run_rank, run_retrieve

# Settings for few requests.
SHORT: Mapping[str, Mapping[str, Any]] = {
    "comparative": {"topic": ("3", "20"), "depth": 6, "stance__depth": 3, "expansion__use": True},
    "controversial": {"limit_topics": 1, "depth": 5, "stance__depth": 2},
    "sentence_pairs": {"limit_topics": 1, "depth": 60, "pairs__judged": 6, "pairs__both_orders": 2},
}


STEPS: Mapping[str, tuple[str, ...]] = {
    "comparative": ("judge", "sliding:4", "pairwise:3"),
    "controversial": ("judge", "setwise:5"),
    "sentence_pairs": ("judge", "listwise:5"),
}


COMPARATIVE = script_of("comparative")


def short_config(folder: Path, task: str = "comparative", **flags: Any) -> Config:
    engine = {
        "engine__model": "scripted",
        "engine__context": FACTS.context,
        "ranking__document_tokens": 4000,
    }
    return config_for(
        folder, **{"task": task, **SHORT[task], "rank": STEPS[task], **engine, **flags}
    )


def simple_config(folder: Path, **flags: Any) -> Config:
    """One topic, four documents, one question each."""
    return short_config(
        folder, topic=("3",), depth=4, stance__depth=0, expansion__use=False, **flags
    )


async def export_stage(
    config: Config, out: Path, stage: StageName = "judge", tokenizer: Path | None = None
) -> list[Request]:
    """Export a stage; the requests."""
    exported = await export_requests(stage, config, out, tokenizer, Silent())
    return exported.requests


async def import_files(out: Path, *files: Path) -> Import:
    return await import_responses(out, files, Silent())


async def answer_by_files(
    stage: StageName, config: Config, out: Path, script: Script, tokenizer: Path | None = None
) -> list[list[Request]]:
    """Export and import until nothing is pending; the requests of each round."""
    rounds = []
    while found := await export_stage(config, out, stage, tokenizer):
        rounds.append(found)
        await import_files(out, b.write(out / "replies.jsonl", b.answers(found, script)))
    return rounds


async def replay(stage: StageName, config: Config, out: Path) -> Any:
    """The stage's normal command without a server."""
    alone: Mapping[str, Any] = {"retrieve": run_retrieve, "judge": run_judge, "rank": run_rank}
    return await alone[stage](with_cache(config, mode=CacheMode.REPLAY), out, Silent())


def stored_keys(config: Config, kind: str = "answer") -> set[str]:
    if not config.cache.file.exists():
        return set()
    with Cache(config.cache.file, CacheMode.REPLAY) as cache:
        return {entry.key for entry in cache.find(kind)}


Waiting = tuple[Config, Path, list[Request]]


UNUSABLE = {
    "cut_off": b.body('{"relevance":2,', finish_reason="length"),
    "refused": b.body("", refusal="I cannot say."),
    "not_json": b.body("Well, I think"),
    "outside_schema": b.body('{"relevance":7,"quality":1,"stance":"NO"}'),
}


class TokenCounter(ScriptedEngine):
    """A tokeniser that counts like the scripted engine."""

    def __init__(self, folder: Path, chat_template_kwargs: Mapping[str, Any]) -> None:
        """Load nothing."""
