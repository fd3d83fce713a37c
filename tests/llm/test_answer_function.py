"""A function that answers in place of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import touche_llm as tl
from touche_llm.cli.demo import SAMPLES
from touche_llm.engines.answer_function import AnswerFunction, LabelShares
from touche_llm.llm.request import Request

VALUES: Mapping[str, int | str] = {
    "relevance": 2,
    "quality": 1,
    "position": "YES",
    "stance": "FIRST",
}
NO_STANCE_PROMPT = tl.StanceSettings(depth=0)


def spell(request: Request) -> str:
    return request.layout.spell(VALUES)


@pytest.fixture
def candidates(tmp_path: Path) -> tl.Candidates:
    corpus = tl.open_corpus(
        SAMPLES / "comparative/passages.jsonl", task="comparative", index=tmp_path / "index"
    )
    topics = tl.read_topics(SAMPLES / "comparative/topics.xml")
    return tl.retrieve(topics[:1], corpus, depth=3)


def judge(candidates: tl.Candidates, function: AnswerFunction, **options: Any) -> tl.Judgments:
    with tl.LanguageModel(answers=function, **options) as model:
        return tl.judge(candidates, model, stance=NO_STANCE_PROMPT)


@pytest.mark.filterwarnings("ignore::touche_llm.ToucheWarning")
def test_the_labels_of_a_text_are_certain(candidates: tl.Candidates) -> None:
    judgments = judge(candidates, spell).judgments
    assert len(judgments) == 3
    assert judgments[0].grades == {"relevance": 2.0, "quality": 1.0}
    assert judgments[0].readings["stance"].probabilities == {
        "FIRST": 1.0,
        "SECOND": 0.0,
        "NEUTRAL": 0.0,
        "NO": 0.0,
    }


@pytest.mark.filterwarnings("ignore::touche_llm.ToucheWarning")
def test_probabilities_become_expected_grades_and_a_named_cache_replays_them(
    candidates: tl.Candidates, tmp_path: Path
) -> None:
    def answer(request: Request) -> tl.FunctionAnswer:
        shares: dict[str, LabelShares] = {
            "relevance": {2: 0.6, 3: 0.4},
            "position": {"YES": 0.25, "NO": 0.75},
        }
        return tl.FunctionAnswer(spell(request), shares)

    cache = tmp_path / "answers.sqlite"
    judged = judge(candidates, answer, name="mine", cache=cache).judgments
    assert judged[0].grades["relevance"] == pytest.approx(2.4)
    stance = judged[0].readings["stance"].probabilities
    assert stance is not None and stance["NO"] == pytest.approx(0.75)
    with tl.LanguageModel(name="mine", cache=cache, cache_mode="replay") as model:
        assert tl.judge(candidates, model, stance=NO_STANCE_PROMPT).judgments == judged


@pytest.mark.filterwarnings("ignore::touche_llm.ToucheWarning")
def test_without_a_named_cache_a_changed_function_is_called_again(
    candidates: tl.Candidates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert judge(candidates, spell).judgments[0].grades["quality"] == 1.0
    changed = {**VALUES, "quality": 3}
    judgments = judge(candidates, lambda request: request.layout.spell(changed)).judgments
    assert judgments[0].grades["quality"] == 3.0
    assert not (tmp_path / ".touche-llm").exists()


def test_an_unusable_text_is_a_failure_after_three_samples(candidates: tl.Candidates) -> None:
    samples: list[int] = []

    def answer(request: Request) -> str:
        samples.append(request.sample)
        return "no idea"

    found = judge(candidates, answer)
    assert found.judgments == [] and sorted(samples) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert {failure.kind for failure in found.failures} == {"not_json"}


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ({"merit": {1: 1.0}}, "merit"),
        ({"relevance": {9: 1.0}}, "9"),
        ({"relevance": {2: 1.5}}, "1.5"),
        ({"relevance": {2: float("nan")}}, "nan"),
        ({"relevance": {2: 0.7, 3: 0.7}}, "relevance"),
        ({"relevance": {3: 1.0}}, "2"),
    ],
    ids=["field", "label", "above 1", "no number", "sum", "label of the text"],
)
def test_probabilities_that_do_not_fit_are_refused(
    candidates: tl.Candidates, shares: dict[str, LabelShares], named: str
) -> None:
    with pytest.raises(tl.UsageError, match=named) as raised:
        judge(candidates, lambda request: tl.FunctionAnswer(spell(request), shares))
    assert raised.value.location == "answers"


def test_something_else_than_an_answer_is_refused(candidates: tl.Candidates) -> None:
    with pytest.raises(tl.UsageError, match="None"):
        judge(candidates, lambda _: None)  # type: ignore[arg-type, return-value]


def test_a_function_and_a_server_exclude_each_other() -> None:
    with pytest.raises(tl.UsageError, match="url"):
        tl.LanguageModel("http://127.0.0.1:8000", answers=spell)


@pytest.mark.filterwarnings("ignore::touche_llm.ToucheWarning")
def test_without_log_probabilities_its_labels_are_plain(candidates: tl.Candidates) -> None:
    found = judge(candidates, spell, sampling=tl.SamplingConfig(logprobs=False))
    assert {judgment.source for judgment in found.judgments} == {"value"}
