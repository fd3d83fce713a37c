from __future__ import annotations

import hashlib
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from touche_llm.llm.request import (
    EMPTY_CHAT,
    Message,
    Origin,
    Request,
    Sampling,
    Thinking,
    continue_thought,
    place_system_message,
    request_thought,
)

# Requests with the keys under which their answers were stored on 2026-11-22; never regenerated.
RECORDED = [
    orjson.loads(line)
    for line in Path(__file__).with_name("recorded_requests.jsonl").read_bytes().splitlines()
]
CONTRACT = Path(__file__).parents[2] / "docs" / "reference" / "answer-key.md"

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
        # Continues a thought, or ends with the same text as a question.
        (
            Message("system", "Judge."),
            Message("user", "Passage."),
            Message("assistant", "<think>Hm.</think>"),
        ),
        (
            Message("system", "Judge."),
            Message("user", "Passage."),
            Message("user", "<think>Hm.</think>"),
        ),
    ],
    "schema": [
        {"type": "object", "properties": {"a": {"enum": [2, 1]}}},
        {"type": "object", "properties": {"b": {"enum": [1, 2]}}},
        {"type": "array", "prefixItems": [{"enum": [1, 2]}]},
        {"type": "array", "prefixItems": [{"enum": [2, 1]}]},
        {"type": "string", "pattern": "(1|2)"},
        {"type": "string", "pattern": "(2|1)"},
        {},
    ],
    "sampling": [
        Sampling(temperature=0.5),
        Sampling(seed=1),
        Sampling(max_tokens=65),
        Sampling(top_logprobs=0),
        Sampling(top_logprobs=8),
    ],
    "model": ["n", ""],
    "revision": ["", "s"],
    "chat_template_kwargs": [{}, {"enable_thinking": True}, {"thinking": False}],
    "sample": [1, 2],
    "repeat": [1, 2],
    "stop": [("</think>",), ("1",), ("1", "2"), ("2", "1")],
}
CASES = [(name, value) for name, values in CHANGES.items() for value in values]


def test_every_part_of_a_request_except_its_origin_is_covered() -> None:
    assert set(CHANGES) == {field.name for field in fields(Request)} - {"origin", "thinking"}
    assert {
        name for sampling in CHANGES["sampling"] for name in _changed(Sampling(), sampling)
    } == {field.name for field in fields(Sampling)}


def _changed(one: Sampling, other: Sampling) -> list[str]:
    names = [field.name for field in fields(one)]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def test_all_changes_have_different_keys() -> None:
    assert (
        len({BASE.key, *(replace(BASE, **{name: value}).key for name, value in CASES)})
        == len(CASES) + 1
    )


def test_the_origin_is_not_part_of_the_key() -> None:
    assert replace(BASE, origin=Origin("other/prompt", 9, "xyz", "77", None)).key == BASE.key


def test_how_a_thought_was_limited_is_not_part_of_the_key_of_the_answer() -> None:
    short, long = (
        replace(BASE, thinking=Thinking(budget, "<think>", "</think>", 0.6)) for budget in (1, 512)
    )
    assert continue_thought(short, "Hm.").key == continue_thought(long, "Hm.").key
    assert continue_thought(short, "Hm.").key != continue_thought(short, "Ah.").key
    assert request_thought(short).key != request_thought(long).key


@pytest.mark.parametrize("recorded", RECORDED, ids=[recorded["key"][:8] for recorded in RECORDED])
def test_recorded_answers_keep_their_keys(recorded: dict[str, Any]) -> None:
    parts = recorded | {
        "messages": tuple(Message(role, text) for role, text in recorded["messages"]),
        "sampling": Sampling(**recorded["sampling"]),
        "origin": BASE.origin,
    }
    assert (
        Request(**{name: value for name, value in parts.items() if name != "key"}).key
        == recorded["key"]
    )


def test_the_documented_example_has_the_documented_key() -> None:
    text = CONTRACT.read_text(encoding="utf-8")
    example, key = re.findall(r"```json\n(.*?)```.*?`([0-9a-f]{64})`", text, re.DOTALL)[0]
    canonical = json.dumps(
        json.loads(example), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    assert hashlib.sha256(canonical.encode()).hexdigest() == key == BASE.key


def test_instructions_are_placed_before_the_first_user_message() -> None:
    system, example, answer, question = (
        Message("system", "Judge."),
        *map(Message, ("user", "assistant", "user"), "abc"),
    )
    chat = (system, example, answer, question)
    assert place_system_message(chat, "role") == chat
    assert place_system_message(chat, "user") == (Message("user", "Judge.\n\na"), answer, question)
    assert place_system_message(EMPTY_CHAT, "user") == (Message("user", ""),)
