"""Comparison of the prompts that the stance can come from."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.expect import raises_at
from tests.prompt_lab.conftest import NDCG, Bench
from tests.prompt_variants import LABELS
from tests.scripted_engine import ScriptedEngine
from tests.write_demo_cassette import is_swapped
from touche_llm.errors import UsageError
from touche_llm.judging.labels import StancePrompt
from touche_llm.llm.answers import list_fields
from touche_llm.llm.engine import Rejected
from touche_llm.llm.request import Request
from touche_llm.prompt_lab.variants import MACRO_F1, VariantSettings

ASPECTS = ("relevance", "stance")
SWAPPED = {"FIRST": "SECOND", "SECOND": "FIRST"}


def is_about_stance(request: Request) -> bool:
    return list(list_fields(request.schema)) == ["position", "stance"]


class Judge(ScriptedEngine):
    """Grades rightly. The judge prompt's stance is wrong for two of three documents, the stance prompt's for none.

    The stance prompt prefers the object named first if it is biased, which the other order undoes.
    """

    def __init__(self, refused: tuple[str, ...] = (), bias: float = 0.0) -> None:
        super().__init__(self._answer)
        self.refused, self.bias = refused, bias

    def _answer(self, request: Request) -> Any:
        grade = int(str(request.origin.document_id).partition("-")[2]) % 3
        if not is_about_stance(request):
            return {"relevance": grade, "quality": grade, "stance": LABELS[2 - grade]}
        label = LABELS[grade]
        if is_swapped(request, "tea"):
            label = SWAPPED.get(label, label)
        shares = {name: (1.0 - self.bias) * (name == label) for name in LABELS}
        return {"stance": shares | {"FIRST": shares["FIRST"] + self.bias}}

    async def complete(self, request: Request) -> Any:
        if is_about_stance(request) and request.origin.document_id in self.refused:
            raise Rejected(400, "not this one")
        return await super().complete(request)


def choices(*prompts: StancePrompt) -> list[VariantSettings]:
    return [VariantSettings(stance_prompt=prompt) for prompt in prompts]


@pytest.fixture
def judge() -> Judge:
    return Judge()


async def test_prompts_of_the_stance_are_chosen_and_confirmed_by_macro_f1(bench: Bench, judge: Judge) -> None:
    bench.engine = judge
    found = await bench.compare("judge", "judge", aspects=ASPECTS, settings=choices("shared", "own"), confirm=True)
    assert (found.verdict.winner, found.verdict.confirmed) == ("judge+own", True)
    assert [part.name for part in found.parts] == ["choice", "hold-out"]
    for part in found.parts:
        values = {name: estimates[MACRO_F1].value for name, estimates in part.estimates.items()}
        assert values["judge+shared"] == pytest.approx(1 / 3) and values["judge+own"] == 1.0
        stances, grades = part.differences["judge+own", MACRO_F1], part.differences["judge+own", NDCG]
        assert stances["difference"] == pytest.approx(2 / 3) and (stances["wins"], stances["n"]) == (8, 8)
        assert stances["p"] == pytest.approx(2 / 2**8)
        assert (grades["difference"], grades["p"]) == (0.0, 1.0)


async def test_each_judgment_is_requested_once_and_each_stance_once_or_in_both_orders(
    bench: Bench, judge: Judge
) -> None:
    bench.engine = judge
    found = await bench.compare(
        "judge", "judge", "judge", aspects=ASPECTS, settings=choices("shared", "own", "both_orders")
    )
    assert Counter(map(is_about_stance, judge.requests)) == {False: 48, True: 2 * 48}
    counts = {name: (said.counts.requests, said.counts.cache_hits) for (_, name), said in found.judged.items()}
    assert counts == {"judge+shared": (48, 0), "judge+own": (48, 48), "judge+both_orders": (48, 96)}


async def test_a_prompt_that_prefers_the_first_object_is_corrected_by_both_orders(bench: Bench) -> None:
    bench.engine = Judge(bias=0.6)
    found = await bench.compare("judge", "judge", aspects=ASPECTS, settings=choices("own", "both_orders"), split="all")
    values = {name: estimates[MACRO_F1].value for name, estimates in found.parts[0].estimates.items()}
    assert values["judge+own"] < values["judge+both_orders"] == 1.0
    assert found.verdict.winner == "judge+both_orders"


async def test_a_document_without_a_usable_stance_keeps_that_of_the_judge_prompt(bench: Bench) -> None:
    bench.engine = Judge(refused=("1-0", "3-2"))
    found = await bench.compare("judge", "judge", aspects=ASPECTS, settings=choices("shared", "own"))
    shared, own = (found.judged["choice", name] for name in ("judge+shared", "judge+own"))
    assert [failure.document_id for failure in own.failures] == ["1-0", "3-2"] and shared.failures == []
    kept = {
        document for (_, document), said in own.judgments.items() if said.stance == shared.judgments[_, document].stance
    }
    # The stance of 1 of 3 documents is the same by both prompts.
    assert {"1-0", "3-2"} <= kept and len(kept) == 48 // 3 + 2
    assert own.judgments["1", "1-2"].readings["stance"].answered == own.judgments["1", "1-2"].stance == "NEUTRAL"


async def test_stances_that_nobody_judged_cannot_choose(bench: Bench, judge: Judge) -> None:
    bench.engine = judge
    with raises_at(UsageError, "qrels"):
        await bench.compare("judge", "judge", settings=choices("shared", "own"))
    bench.files["stance"].write_text("".join(f"{topic} 0 {topic}-0 FIRST\n" for topic in range(1, 17, 2)))
    with raises_at(UsageError, "qrels", "hold-out"):
        await bench.compare("judge", "judge", aspects=ASPECTS, settings=choices("shared", "own"), confirm=True)
    assert judge.requests == []


async def test_a_variant_that_is_given_twice_is_refused(bench: Bench, judge: Judge) -> None:
    bench.engine = judge
    with raises_at(UsageError, "judge"):
        await bench.compare("judge", "judge", aspects=ASPECTS, settings=choices("own", "own"))
    with pytest.raises(UsageError, match="settings"):
        await bench.compare("judge", "judge", aspects=ASPECTS, settings=choices("own"))
