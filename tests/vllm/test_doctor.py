"""The card of the real server, started with the recommended flags."""

from __future__ import annotations

import orjson
import pytest

from tests.vllm.command import touche

pytestmark = pytest.mark.vllm


def test_every_part_is_found(vllm_url: str) -> None:
    rows = orjson.loads(touche("doctor", vllm_url, "--thorough", "--format", "json").stdout)
    found = {row["name"]: row for row in rows}
    assert [name for name, row in found.items() if row["is_ok"] is not True] == []
    assert found["schema"]["value"] == "enforced with structured_outputs"
    assert found["logprobs"]["value"] == "for each token of an answer, renormalised"
    assert found["prefix cache"]["value"].startswith("384 of ")
    assert found["determinism"]["value"] == "0 of 40 repeats differ, probabilities by up to 0"
