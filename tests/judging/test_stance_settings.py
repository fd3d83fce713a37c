"""Settings of the stance: which prompt gives it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from touche_llm.data.records import Reading
from touche_llm.judging.labels import StanceSettings, combine_position


@pytest.mark.parametrize(
    ("given", "prompt", "depth"),
    [
        ({}, "shared", 0),
        ({"prompt": "own"}, "own", 20),
        ({"prompt": "both_orders", "depth": 7}, "both_orders", 7),
        ({"depth": 7}, "both_orders", 7),
    ],
)
def test_the_prompt_follows_from_what_is_given(given: dict[str, Any], prompt: str, depth: int) -> None:
    settings = StanceSettings.model_validate(given)
    assert (settings.prompt, settings.prompt_depth) == (prompt, depth)
    assert StanceSettings.model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    "given", [{"prompt": "shared", "depth": 7}, {"depth": -1}, {"both_orders": 3}, {"prompt": "x"}]
)
def test_what_has_no_effect_or_no_meaning_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StanceSettings.model_validate(given)


def test_a_stance_is_no_position_or_a_position_times_a_side() -> None:
    position = Reading(answered="YES", probabilities={"YES": 0.6, "NO": 0.4}, off_label_mass=0.1, shared=0.0)
    side = Reading(answered="PRO", probabilities={"PRO": 0.75, "CON": 0.25}, off_label_mass=0.5, shared=0.2)
    found = combine_position(position, side, ["PRO", "CON", "NO"], "NO")
    assert found.answered == "PRO"
    assert found.probabilities == pytest.approx({"NO": 0.4, "PRO": 0.45, "CON": 0.15})
    assert found.off_label_mass == pytest.approx(0.55) and found.shared == 0.2
    for one, other in ((0.1, None), (None, 0.1)):
        half = combine_position(
            msgspec.structs.replace(position, off_label_mass=one),
            msgspec.structs.replace(side, off_label_mass=other),
            ["PRO", "CON", "NO"],
            "NO",
        )
        assert half.off_label_mass == pytest.approx(0.1)
    plain = combine_position(Reading(answered="NO"), Reading(answered="PRO"), ["PRO", "CON", "NO"], "NO")
    assert plain == Reading(answered="NO")
