"""A collection with two prompts to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.prompt_variants import collection, config_of, opening, reader, wording
from tests.sample_runs import Silent
from tests.scripted_engine import ScriptedEngine
from touche_llm.data.measure import make_headline_ndcg
from touche_llm.evaluation.qrels import read_qrels
from touche_llm.prompt_lab.comparison import ComparisonInputs, PromptComparison, compare_prompts
from touche_llm.prompt_lab.holdout import access_log
from touche_llm.prompt_lab.sample import Plan
from touche_llm.tasks import get_task

NDCG = make_headline_ndcg("relevance")
SHARP, BLUNT = "SHARP", "BLUNT"
# A prompt with this word misreads two of three documents.
DULL: dict[str, Callable[[str, int], bool]] = {BLUNT: lambda topic, number: number < 4}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals are as wide as they like here; tests of 8 topics are exact with so many."""
    monkeypatch.setattr("touche_llm.evaluation.randomisation.RESAMPLES", 300)


@dataclass
class Bench:
    """A collection with two wordings, and what is compared on it."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    files: dict[str, Path]
    engine: ScriptedEngine = field(default_factory=lambda: reader(DULL))
    flags: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    task: str = "comparative"

    async def compare(
        self,
        *names: str | Path,
        aspects: tuple[str, ...] = ("relevance",),
        **plan: Any,
    ) -> PromptComparison:
        self.monkeypatch.setattr(
            "touche_llm.prompt_lab.comparison.open_client", opening(self.engine)
        )
        self.monkeypatch.chdir(self.folder)
        config = config_of(self.folder, self.files, task=self.task, **self.flags)
        qrels = read_qrels({aspect: self.files[aspect] for aspect in aspects}, get_task(self.task))
        progress = Silent()
        self.notices = progress.notices
        return await compare_prompts(
            ComparisonInputs(config, list(map(str, names)), qrels, Plan(**plan)), progress
        )

    @property
    def log(self) -> Path:
        return access_log(self.folder / "answers.sqlite")

    def wording(self, name: str, words: str) -> Path:
        return wording(self.folder / "mine" / f"{name}.jinja", words)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch, collection(tmp_path))


@pytest.fixture
def blunt(bench: Bench) -> Path:
    return bench.wording("blunt", BLUNT)


@pytest.fixture
def sharp(bench: Bench) -> Path:
    return bench.wording("sharp", SHARP)
