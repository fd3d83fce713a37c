"""Lines of the files of judgments and stances: the keys of answers in their form in the file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from touche_llm.data.records import Judgment, StanceReading

JUDGMENT = {
    "topic_id": "1",
    "document_id": "d",
    "grades": {"relevance": 2.0},
    "stance": "FIRST",
    "readings": {},
    "source": "value",
    "cut": None,
    "prompt": "p",
}
STANCE = {
    "topic_id": "1",
    "document_id": "d",
    "probabilities": {"FIRST": 1.0},
    "source": "value",
    "orders": 1,
    "prompt": "p",
}


@pytest.mark.parametrize(
    ("answers", "keys_in_file"),
    [
        ([], {"key": None}),
        (["a"], {"key": "a"}),
        (["a", "b"], {"key": None, "keys": ["a", "b"]}),
    ],
)
@pytest.mark.parametrize("thoughts", [[], ["t"]])
def test_a_judgment_is_stored_with_one_key_or_several(
    answers: list[str], keys_in_file: dict[str, Any], thoughts: list[str]
) -> None:
    thoughts_in_file = {"thoughts": thoughts} if thoughts else {}
    expected = {**JUDGMENT, **keys_in_file, "sample": 0, **thoughts_in_file}
    line = json.dumps(expected, separators=(",", ":")).encode()

    judgment = Judgment.from_json(line)

    assert (judgment.answer_keys, judgment.thought_keys) == (answers, thoughts)
    assert judgment.to_json() == line


@pytest.mark.parametrize("thoughts", [[], ["t"]])
def test_a_stance_is_stored_with_thoughts_only_if_there_are_some(thoughts: list[str]) -> None:
    thoughts_in_file = {"thoughts": thoughts} if thoughts else {}
    expected = {**STANCE, "keys": ["a"], **thoughts_in_file}
    line = json.dumps(expected, separators=(",", ":")).encode()

    stance = StanceReading.from_json(line)

    assert (stance.answer_keys, stance.thought_keys) == (["a"], thoughts)
    assert stance.to_json() == line
