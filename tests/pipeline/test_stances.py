"""The stance asked by a prompt of its own: gate and side, both orders of the objects, thresholds at rank time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sample_runs import (
    Silent,
    config_for,
    judge_stage,
    rank_stage,
    retrieve_stage,
    run_lines,
    scripted_model,
)
from tests.scripted_engine import Label, ScriptedEngine
from tests.write_demo_cassette import is_swapped
from touche_llm.config.configuration import Config
from touche_llm.data.files import read_records
from touche_llm.data.records import Failure, RunLine, StanceReading
from touche_llm.errors import DataError
from touche_llm.judging.result import Judgments
from touche_llm.llm.answer_schema import list_fields
from touche_llm.llm.protocol import Completion
from touche_llm.llm.request import Request

Answer = Mapping[str, Label | Mapping[Label, float]]
# What the judge prompt says of every document, here always SECOND.
JUDGED: Answer = {
    "relevance": 2,
    "quality": 1,
    "stance": {"SECOND": 0.8, "FIRST": 0.1, "NEUTRAL": 0.06, "NO": 0.04},
}
# A model that has a strong liking for what is named first.
FIRST_PLEASE: Answer = {
    "position": {"YES": 0.8, "NO": 0.2},
    "stance": {"FIRST": 0.7, "SECOND": 0.1, "NEUTRAL": 0.2},
}
UNUSABLE: Answer = {"position": "MAYBE", "stance": "FIRST"}
HEAT_PUMP = "heat pump"


class Judge:
    """Answers the judge prompt as given, and the stance prompt by order: with `swapped` where the objects are."""

    def __init__(self, straight: Answer, swapped: Answer, judged: Any = JUDGED) -> None:
        self.straight, self.swapped, self.judged = straight, swapped, judged

    def __call__(self, request: Request) -> Answer:
        if list(list_fields(request.schema)) == ["position", "stance"]:
            return self.swapped if is_swapped(request, HEAT_PUMP) else self.straight
        judged: Answer = self.judged(request) if callable(self.judged) else self.judged
        return judged


async def judged(
    config: Config, out: Path, script: Any, engine: type[ScriptedEngine] = ScriptedEngine
) -> tuple[Judgments, list[Request]]:
    """The stages but the last; and the requests of the stance prompt."""
    await retrieve_stage(config, out, Silent())
    with scripted_model(config, script, engine) as (model, scripted):
        outcome = await judge_stage(config, out, Silent(), model)
    return outcome, [
        request for request in scripted.requests if request.origin.prompt.endswith("/stance")
    ]


async def ranked(config: Config, out: Path) -> tuple[list[RunLine], Silent]:
    """The last stage, without a model."""
    progress = Silent()
    await rank_stage(config, out, progress)
    return run_lines(out / "run.txt"), progress


def readings(out: Path) -> list[StanceReading]:
    return read_records(out / "stances.jsonl", StanceReading, "stances")


def heating(folder: Path, **flags: Any) -> Config:
    """One topic, three documents, each asked for its stance."""
    return config_for(folder, **({"topic": ("3",), "depth": 3, "stance__depth": 3} | flags))


def sure_of(side: str, yes: float) -> Answer:
    return {"position": {"YES": yes, "NO": 1.0 - yes}, "stance": {side: 1.0}}


async def test_a_liking_for_the_first_place_cancels_out_over_both_orders(tmp_path: Path) -> None:
    _, asked = await judged(heating(tmp_path), tmp_path / "out", Judge(FIRST_PLEASE, FIRST_PLEASE))
    # Order by order, as the prefix cache of a server likes it.
    assert [is_swapped(request, HEAT_PUMP) for request in asked] == [False] * 3 + [True] * 3
    assert len(readings(tmp_path / "out")) == 3
    for reading in readings(tmp_path / "out"):
        expected = {"FIRST": 0.32, "SECOND": 0.32, "NEUTRAL": 0.16, "NO": 0.2}
        assert reading.probabilities == pytest.approx(expected)
        assert reading.orders == len(set(reading.answer_keys)) == 2
    # A true opinion stays whichever object is named first.
    other: Answer = {**FIRST_PLEASE, "stance": {"SECOND": 0.7, "FIRST": 0.1, "NEUTRAL": 0.2}}
    await judged(
        heating(tmp_path, sampling__seed=1), tmp_path / "other", Judge(FIRST_PLEASE, other)
    )
    assert readings(tmp_path / "other")[0].probabilities["FIRST"] == pytest.approx(0.56)


async def test_where_one_order_is_unusable_the_other_counts_and_the_failure_is_kept(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    outcome, _ = await judged(heating(tmp_path), out, Judge(UNUSABLE, FIRST_PLEASE))
    assert len(readings(out)) == 3
    for reading in readings(out):
        # Said of the objects in the other order.
        expected = {"FIRST": 0.08, "SECOND": 0.56, "NEUTRAL": 0.16, "NO": 0.2}
        assert reading.probabilities == pytest.approx(expected)
        assert reading.orders == len(reading.answer_keys) == 1
    failures = read_records(out / "failures.jsonl", Failure, "failures")
    assert failures == outcome.failures and len(failures) == 3
    for failure in failures:
        assert (failure.kind, failure.prompt.split("@")[0], len(failure.attempts)) == (
            "outside_schema",
            "comparative/stance",
            3,
        )
    assert {failure.document_id for failure in failures} == {
        reading.document_id for reading in readings(out)
    }
    lines, _ = await ranked(heating(tmp_path), out)
    assert {line.stance for line in lines} == {"SECOND"}


async def test_the_stance_prompt_counts_for_the_documents_it_was_asked_about_and_the_judge_prompt_for_the_others(
    tmp_path: Path,
) -> None:
    config = heating(tmp_path, depth=6, stance__depth=2, stance__prompt="own")
    await judged(config, tmp_path / "out", Judge(FIRST_PLEASE, UNUSABLE))
    lines, _ = await ranked(config, tmp_path / "out")
    assert [line.stance for line in lines] == ["FIRST"] * 2 + ["SECOND"] * 4
    metadata = yaml.safe_load((tmp_path / "out" / "ir-metadata.yml").read_text())["stages"]["judge"]
    assert set(metadata["llm"]["prompts"]) == {"judge", "stance"}


async def test_the_best_by_the_weights_of_the_task_are_asked_so_that_other_weights_need_no_answer(
    tmp_path: Path,
) -> None:
    def grades(request: Request) -> Answer:
        # Good documents are badly written here.
        good = documents.index(request.origin.document_id or "") >= 8
        return {**JUDGED, "relevance": 3 if good else 0, "quality": 0 if good else 1}

    out = tmp_path / "out"
    config = heating(
        tmp_path, depth=10, stance__depth=2, weights__relevance=0.0, weights__first_stage=0.0
    )
    await retrieve_stage(config, out, Silent())
    documents = [line.document_id for line in run_lines(out / "candidates.run.txt")]
    await judged(config, out, Judge(FIRST_PLEASE, FIRST_PLEASE, grades))
    assert {reading.document_id for reading in readings(out)} == set(documents[8:])
    by_quality, _ = await ranked(config, out)
    assert {line.document_id for line in by_quality[-2:]} == set(documents[8:])
    by_relevance, _ = await ranked(heating(tmp_path, depth=10, stance__depth=2), out)
    assert {line.document_id for line in by_relevance[:2]} == set(documents[8:])
    assert {line.document_id: line.stance for line in by_relevance} == {
        line.document_id: line.stance for line in by_quality
    }


class Plain(ScriptedEngine):
    """Sends no log-probabilities."""

    async def complete(self, request: Request) -> Completion:
        assert request.sampling.top_logprobs == 0
        return replace(await super().complete(request), tokens=[])


async def test_without_log_probabilities_the_answered_labels_count(tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = heating(tmp_path, sampling__logprobs=False)
    await judged(config, out, Judge(FIRST_PLEASE, FIRST_PLEASE), Plain)
    assert len(readings(out)) == 3
    for reading in readings(out):
        assert reading.source == "value"
        # FIRST in either order: each object once.
        assert reading.probabilities == {"FIRST": 0.5, "SECOND": 0.5, "NEUTRAL": 0.0, "NO": 0.0}
    no_position: Answer = {"position": "NO", "stance": "FIRST"}
    await judged(
        heating(tmp_path, sampling__logprobs=False, sampling__seed=1),
        out,
        Judge(no_position, no_position),
        Plain,
    )
    assert {tuple(reading.probabilities.values()) for reading in readings(out)} == {
        (0.0, 0.0, 0.0, 1.0)
    }
    lines, _ = await ranked(config, out)
    assert {line.stance for line in lines} == {"NO"}


async def test_readings_of_another_task_are_refused_when_ranking(tmp_path: Path) -> None:
    out = tmp_path / "out"
    await judged(heating(tmp_path), out, Judge(FIRST_PLEASE, FIRST_PLEASE))
    text = (out / "stances.jsonl").read_text()
    (out / "stances.jsonl").write_text(text.replace('"NEUTRAL"', '"NEU"'))
    with pytest.raises(DataError, match=r"stances.jsonl: topic 3, document .*: labels other than"):
        await ranked(heating(tmp_path), out)
    (out / "stances.jsonl").write_text(text.replace('"FIRST":0.', '"FIRST":7.', 1))
    with pytest.raises(
        DataError, match=r"stances.jsonl:1: not one of the stances: .*probabilities"
    ):
        await ranked(heating(tmp_path), out)
