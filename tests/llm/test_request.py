from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from touche_llm.llm import request as request_module
from touche_llm.llm.request import Message, Origin, Request, Sampling

BASE = Request(
    messages=(Message("system", "Judge."), Message("user", "Passage.")),
    schema={"type": "object", "properties": {"a": {"enum": [1, 2]}}},
    sampling=Sampling(),
    model="m",
    revision="r",
    chat_template_kwargs={"enable_thinking": False},
    origin=Origin("comparative/judge", 1, "abc", "1", "d"),
)
CHANGES: dict[str, list[Any]] = {
    "messages": [
        (Message("system", "Judge!"), Message("user", "Passage.")),
        (Message("system", "Judge."), Message("user", "Passage. ")),
        (Message("user", "Judge."), Message("user", "Passage.")),
        (Message("user", "Passage."), Message("system", "Judge.")),
        (Message("system", "Judge."),),
    ],
    "schema": [
        {"type": "object", "properties": {"a": {"enum": [2, 1]}}},
        {"type": "object", "properties": {"b": {"enum": [1, 2]}}},
    ],
    "sampling": [
        Sampling(temperature=0.5),
        Sampling(seed=1),
        Sampling(max_tokens=65),
        Sampling(top_logprobs=0),
    ],
    "model": ["n", ""],
    "revision": ["", "s"],
    "chat_template_kwargs": [{}, {"enable_thinking": True}, {"thinking": False}],
    "sample": [1, 2],
}
CASES = [(name, value) for name, values in CHANGES.items() for value in values]


def test_every_part_of_a_request_except_its_origin_is_covered() -> None:
    assert set(CHANGES) == {field.name for field in fields(Request)} - {"origin"}
    assert {name for sampling in CHANGES["sampling"] for name in _changed(Sampling(), sampling)} == {
        field.name for field in fields(Sampling)
    }


def _changed(one: Sampling, other: Sampling) -> list[str]:
    names = [field.name for field in fields(one)]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_changing_a_part_changes_the_key(name: str, value: Any) -> None:
    assert replace(BASE, **{name: value}).key != BASE.key


def test_all_changes_have_different_keys() -> None:
    assert len({replace(BASE, **{name: value}).key for name, value in CASES}) == len(CASES)


def test_the_origin_is_not_part_of_the_key() -> None:
    assert replace(BASE, origin=Origin("other/prompt", 9, "xyz", "77", None)).key == BASE.key


def test_the_order_of_a_mapping_is_not_part_of_the_key() -> None:
    one = replace(BASE, chat_template_kwargs={"a": 1, "b": 2})
    assert one.key == replace(BASE, chat_template_kwargs={"b": 2, "a": 1}).key


def test_the_key_version_changes_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = BASE.key
    monkeypatch.setattr(request_module, "KEY_VERSION", request_module.KEY_VERSION + 1)
    assert replace(BASE).key != before


def test_keys_are_stable() -> None:
    """Existing caches use these keys: a change needs a new KEY_VERSION."""
    assert request_module.KEY_VERSION == 1
    assert BASE.key == "69d61420b7f5c2978414e9e5f1bad48d9bfea6c624815cd835d871a53c232f4e"


def test_a_resample_has_a_seed_and_a_temperature_of_its_own() -> None:
    again = BASE.resample(2, 0.7)
    assert (again.sample, again.sampling.seed, again.sampling.temperature) == (2, 2, 0.7)
    assert again.messages == BASE.messages
